"""Marian models of transformers come in equal: logits, greedy search, beam search, tokenizer; or not at all."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, MarianTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import converted_folder, parity_certificate, weight_transforms
from hf_vanilla_transformer.apps.conversion.hf_marian import from_hf_marian
from hf_vanilla_transformer.apps.conversion.source_folder import read_license
from hf_vanilla_transformer.apps.conversion.weight_transforms import permute_channels
from tests.apps.conversion.marian import SENTENCES, VOCABULARY, write_tokenizer
from tests.apps.conversion.texts import texts
from tests.apps.conversion.tuning import check_fine_tuning


PAD = VOCABULARY - 1


def marian_model(seed: int = 0, **fields) -> MarianMTModel:
    """A random Marian model in which every weight shows."""
    torch.manual_seed(seed)
    config = MarianConfig(
        **{
            "vocab_size": VOCABULARY,
            "decoder_vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": PAD,
            "eos_token_id": 0,
            "decoder_start_token_id": PAD,
            "forced_eos_token_id": 0,
            "init_std": 0.2,
            **fields,
        }
    )
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        for name, weight in model.state_dict().items():
            if "embed_tokens" in name or "shared" in name:
                weight[PAD] = 0  # Marian decodes from a zero vector.
    model.generation_config.update(num_beams=3, bad_words_ids=[[PAD]], max_length=40)
    return model


def saved(folder, **fields):
    model = marian_model(**fields)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian") / "opus-mt-xx-yy"
    return folder, saved(folder)


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    return from_hf_marian(str(source[0]), str(tmp_path_factory.mktemp("converted") / "model"), license="cc-by-4.0")


def logits(model, folder):
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    targets = torch.randint(1, VOCABULARY - 1, (len(SENTENCES), 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(**inputs, decoder_input_ids=targets).logits


def test_from_hf_marian_logits(source, converted):
    folder, marian = source
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    torch.testing.assert_close(logits(model, folder), logits(marian, folder), atol=1e-4, rtol=0)
    assert model.config.lm_head_bias
    assert model.config.activation_function == "swish"


def test_from_hf_marian_translations(source, converted):
    folder, marian = source
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(converted), AutoTokenizer.from_pretrained(converted)
    of_source = AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer).__name__ == "MarianTokenizer"
    assert tokenizer(SENTENCES).input_ids == of_source(SENTENCES).input_ids
    assert tokenizer(text_target=SENTENCES).input_ids == of_source(text_target=SENTENCES).input_ids
    for settings in ({}, {"num_beams": 1}):
        rows = [marian.generate(**of_source(text, return_tensors="pt"), **settings)[0] for text in SENTENCES]
        expected = [of_source.decode(row, skip_special_tokens=True) for row in rows]
        assert translate(model, tokenizer, SENTENCES, **settings) == expected
    assert model.generation_config.num_beams == 3


@pytest.mark.bridge
def test_from_hf_marian_tokenizer(source, converted):
    tokenizer, oracle = AutoTokenizer.from_pretrained(converted), MarianTokenizer.from_pretrained(source[0])
    lines = texts()
    our_batch = tokenizer(lines, text_target=lines)
    oracle_batch = oracle(lines, text_target=lines)
    assert our_batch.data == oracle_batch.data
    assert tokenizer.batch_decode(our_batch.labels) == oracle.batch_decode(oracle_batch.labels)
    targets = tokenizer(text_target=SENTENCES).input_ids
    assert tokenizer.batch_decode(targets, skip_special_tokens=True) == SENTENCES


@pytest.mark.bridge
def test_from_hf_marian_certificate_and_card(source, converted):
    certificate = json.loads((converted / "parity.json").read_text())
    assert certificate["equal"]
    assert 0 < max(certificate["log_probs"].values()) <= certificate["tolerance"] == 1e-4
    assert certificate["float64"]["log_probs"]["random"] <= certificate["float64"]["tolerance"] == 1e-9
    assert certificate["translations"] == {"sentences": 8, "greedy": 8, "beam": 8}
    assert certificate["oracle"].startswith("MarianMTModel of transformers 5.")
    assert set(certificate["sha256"]) == {"model.safetensors"}
    card = (converted / "README.md").read_text()
    assert "(Vaswani et al. 2017), converted\nfrom `opus-mt-xx-yy` with hf-vanilla-transformer" in card
    assert "| result | equal |" in card
    assert "| in float64, random input |" in card
    assert "license: cc-by-4.0" in card
    assert f"| SHA-256 of `model.safetensors` | {certificate['sha256']['model.safetensors']} |" in card
    assert f", transformers {transformers.__version__}, " in card
    assert certificate["versions"]["transformers"] == transformers.__version__
    assert "Evaluation" not in card


def test_from_hf_marian_license(source, tmp_path):
    shutil.copytree(source[0], tmp_path / "marian")
    (tmp_path / "marian" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n", encoding="utf-8")
    for license, stated in ((None, "apache-2.0"), ("mit", "mit")):
        folder = from_hf_marian(str(tmp_path / "marian"), str(tmp_path / stated), license=license)
        assert f"license: {stated}\n" in (folder / "README.md").read_text()
    for damaged in ("---\nlicense: [\n---\n", "no metadata", "---\nlicense: [mit]\n---\n"):
        (tmp_path / "marian" / "README.md").write_text(damaged)
        assert read_license(tmp_path / "marian") is None
    assert read_license(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"encoder_ffn_dim": 80},
        {"decoder_ffn_dim": 20, "activation_function": "relu"},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70},
    ],
)
def test_from_hf_marian_other_shapes(tmp_path, fields):
    pytest.importorskip("sentencepiece")
    saved(tmp_path / "marian", **fields)
    folder = from_hf_marian(str(tmp_path / "marian"), str(tmp_path / "model"))
    assert json.loads((folder / "parity.json").read_text())["equal"]


@pytest.mark.bridge
def test_from_hf_marian_without_sentencepiece(source, tmp_path, monkeypatch):
    monkeypatch.setattr(converted_folder, "find_spec", lambda name: None)
    certificate = json.loads((from_hf_marian(str(source[0]), str(tmp_path / "model")) / "parity.json").read_text())
    assert set(certificate["log_probs"]) == {"random"}
    assert certificate["oracle"].endswith(", on random tokens only, because sentencepiece is not installed")
    assert (tmp_path / "model" / "source.spm").is_file()


def test_from_hf_marian_positions_of_marian(source, tmp_path):
    folder = from_hf_marian(str(source[0]), str(tmp_path / "model"), positions="marian")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.config.position_embedding_type, model.config.layer_norm_eps) == ("sinusoidal_tensor2tensor", 1e-6)
    certificate = json.loads((folder / "parity.json").read_text())
    assert certificate["equal"]
    assert certificate["oracle"].endswith("with the positions of tensor2tensor and epsilon 1e-6")
    assert (logits(model, source[0]) - logits(source[1], source[0])).abs().max() > 1e-3


def swap(first_name, second_name):
    def mistake(state):
        swapped = {}
        for name, weight in state.items():
            if first_name in name:
                swapped[name.replace(first_name, second_name)] = weight
            else:
                swapped[name.replace(second_name, first_name)] = weight
        return swapped

    return mistake


def swap_channels(state):
    channels = torch.arange(32)
    channels[[4, 6]] = channels[[6, 4]]
    return permute_channels(state, channels)


def forget_a_bias(state):
    bias = "model.decoder.layers.1.fc2.bias"
    return {**state, bias: torch.zeros_like(state[bias])}


@pytest.mark.parametrize(
    "mistake", [swap("q_proj", "k_proj"), swap_channels, forget_a_bias], ids=["qk", "channels", "bias"]
)
def test_from_hf_marian_wrong_weights(source, tmp_path, monkeypatch, mistake):
    monkeypatch.setattr(weight_transforms, "permute_channels", lambda *args: mistake(permute_channels(*args)))
    with pytest.raises(
        ValueError, match=r"is not equal to .*: log-probabilities in float\d\d differ by .*; --force writes"
    ):
        from_hf_marian(str(source[0]), str(tmp_path / "model"))
    assert not list(tmp_path.iterdir())
    folder = from_hf_marian(str(source[0]), str(tmp_path / "model"), force=True)
    assert not json.loads((folder / "parity.json").read_text())["equal"]
    assert "| result | not equal |" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({"position_offset": 1}, "float32"),
        ({"position_embedding_type": "sinusoidal_tensor2tensor"}, "float32"),
        ({"layer_norm_eps": 1.2e-5}, "float64"),
    ],
    ids=["shifted positions", "other positions", "another epsilon"],
)
def test_from_hf_marian_wrong_configuration(source, tmp_path, monkeypatch, fields, precision):
    config_class = weight_transforms.VanillaTransformerConfig

    def make_wrong_config(**right_fields):
        return config_class(**{**right_fields, **fields})

    monkeypatch.setattr(weight_transforms, "VanillaTransformerConfig", make_wrong_config)
    with pytest.raises(ValueError, match=f"log-probabilities in {precision} differ by .*, more than "):
        from_hf_marian(str(source[0]), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "bart"}, "other cannot be converted: model_type is 'bart', but must be 'marian'"),
        ({"normalize_before": True}, "normalize_before is True, but must be False"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False, but"),
        ({"decoder_attention_heads": 8}, "decoder_attention_heads is 8, but must be 4"),
        (
            {"scale_embedding": False, "add_final_layer_norm": True, "decoder_attention_heads": 2},
            "scale_embedding is False, but must be True; add_final_layer_norm is True, .*; decoder_attention_.* is 2",
        ),
    ],
)
def test_from_hf_marian_unsupported_fields(source, tmp_path, fields, message):
    shutil.copytree(source[0], tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(ValueError, match=message):
        from_hf_marian(str(tmp_path / "other"), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_from_hf_marian_pickled_weights(source, tmp_path):
    shutil.copytree(source[0], tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(source[0] / "model.safetensors"), tmp_path / "pickled" / "pytorch_model.bin")
    folder = from_hf_marian(str(tmp_path / "pickled"), str(tmp_path / "model"))
    assert list(json.loads((folder / "parity.json").read_text())["sha256"]) == ["pytorch_model.bin"]


def test_convert_from_hf_marian(source, tmp_path, capsys):
    output, command = tmp_path / "model", ["convert", "--from", "hf_marian"]
    main([*command, "--input", str(source[0]), "--output", str(output)])
    assert f"the model is in {output}; {output / 'parity.json'} says how" in capsys.readouterr().out
    assert "| equal translations, 4 beams | 8 of 8 |" in (output / "README.md").read_text()
    for arguments, message in (
        (["--from", "nematus"], "--from: invalid choice: 'nematus'"),
        (["--to", "ctranslate2"], "give either --from or --to"),
        (["--output", str(output)], "already holds a model"),
        (["--input", str(tmp_path / "nowhere")], "there is no folder .*nowhere, and the Hub answered"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*command, "--input", str(source[0]), "--output", str(tmp_path / "other"), *arguments])
    assert not (tmp_path / "other").exists()


def test_from_hf_marian_then_fine_tune(converted, tmp_path):
    check_fine_tuning(converted, SENTENCES, SENTENCES, tmp_path)


def test_from_hf_marian_wrong_arguments(source, converted, tmp_path):
    with pytest.raises(ValueError, match='positions is "fairseq"; choose one of hf, marian'):
        from_hf_marian(str(source[0]), str(tmp_path / "model"), positions="fairseq")
    with pytest.raises(FileExistsError, match="already holds a model"):
        from_hf_marian(str(source[0]), str(converted))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        from_hf_marian(str(tmp_path / "empty"), str(tmp_path / "model"))
    assert len(parity_certificate.SENTENCES) == 8
