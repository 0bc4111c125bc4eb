"""FSMT models of transformers come in equal, with two vocabularies too; or not at all."""

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTTokenizer
from transformers.models.fsmt import modeling_fsmt

from hf_vanilla_transformer import score, translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import converted_folder, parity_certificate, weight_transforms
from hf_vanilla_transformer.apps.conversion.fsmt import from_fsmt
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from hf_vanilla_transformer.model.tokenization_fairseq import FairseqTokenizer
from tests.apps.conversion.fsmt import OTHER, SENTENCES, SOURCE, fsmt_model, write_tokenizer
from tests.apps.conversion.texts import texts
from tests.apps.conversion.tuning import check_fine_tuning
from tests.model.test_two_vocabularies import WITHOUT_THE_PACKAGE


TARGETS = ["Das kleine Haus ist nicht alt.", "Ein Hund läuft, und der Mann läuft.", "Zwei spielen hier & da."]


@pytest.fixture(scope="module", autouse=True)
def moses():
    pytest.importorskip("sacremoses")


def saved(folder, target=SOURCE, **fields):
    model = fsmt_model(target, **fields)
    model.save_pretrained(folder)
    write_tokenizer(folder, target)
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsmt") / "wmt19-en-ru"
    return folder, saved(folder, OTHER, shares="decoder")


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    return from_fsmt(str(source[0]), str(tmp_path_factory.mktemp("converted") / "model"), license="apache-2.0")


@torch.no_grad()
def test_from_fsmt_logits(source, converted):
    folder, fsmt = source
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    inputs = FSMTTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    targets = torch.randint(4, len(OTHER), (len(SENTENCES), 7), generator=torch.Generator().manual_seed(0))
    our_logits = model(**inputs, decoder_input_ids=targets, use_cache=False).logits
    fsmt_logits = fsmt(**inputs, decoder_input_ids=targets, use_cache=False).logits
    torch.testing.assert_close(our_logits, fsmt_logits, atol=1e-4, rtol=0)
    assert [model.config.source_vocab_size, model.config.vocab_size] == [len(SOURCE), len(OTHER)]
    assert model.config.position_offset == 2


@torch.no_grad()
def test_from_fsmt_logits_in_float64(source, converted, monkeypatch):
    """FSMT's mask and its positions are of float32 alone; with both computed in float64, nothing is left."""
    monkeypatch.setattr(modeling_fsmt, "fill_with_neg_inf", lambda mask: mask.fill_(-torch.inf))
    model, fsmt = AutoModelForSeq2SeqLM.from_pretrained(converted), copy.deepcopy(source[1])
    for stack in (fsmt.model.encoder, fsmt.model.decoder):
        count, d_model = stack.embed_positions.weight.shape
        angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(d_model // 2) / (d_model // 2 - 1))
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
        stack.embed_positions.weight.copy_(torch.from_numpy(table))
    comparison = parity_certificate.compare(model, fsmt, in_float64=True)["float64"]
    assert comparison["log_probs"]["random"] <= comparison["tolerance"] == 1e-9


def test_from_fsmt_translations(source, converted):
    folder, fsmt = source
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(converted), AutoTokenizer.from_pretrained(converted)
    of_source = FSMTTokenizer.from_pretrained(folder)
    assert type(tokenizer) is FairseqTokenizer
    assert tokenizer(SENTENCES).input_ids == of_source(SENTENCES).input_ids
    for settings in ({}, {"num_beams": 1}):
        rows = [fsmt.generate(**of_source(text, return_tensors="pt"), **settings)[0] for text in SENTENCES]
        expected = [of_source.decode(row, skip_special_tokens=True) for row in rows]
        assert translate(model, tokenizer, SENTENCES, **settings) == expected
    assert model.generation_config.num_beams == 3


def test_from_fsmt_target_vocabulary(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    labels = tokenizer(SENTENCES, text_target=TARGETS).labels
    assert tokenizer.batch_decode(labels, skip_special_tokens=True) == TARGETS
    assert [row[-1] for row in labels] == [2, 2, 2]
    words = tokenizer.convert_ids_to_tokens(labels[0])
    assert [OTHER[word] for word in words] == labels[0]
    # And sources again theirs.
    assert tokenizer("the house").input_ids == [SOURCE[token] for token in ("the</w>", *"hou", "se</w>", "</s>")]
    model = AutoModelForSeq2SeqLM.from_pretrained(converted)
    assert score(model, tokenizer, SENTENCES[:1], TARGETS[:1])[0].tokens == words


@pytest.mark.bridge
def test_from_fsmt_tokenizer(source, converted, tmp_path):
    tokenizer, of_source = AutoTokenizer.from_pretrained(converted), FSMTTokenizer.from_pretrained(source[0])
    assert tokenizer(texts()).input_ids == of_source(texts()).input_ids
    # FSMT's own encodes targets in the source's vocabulary, so the oracle of targets is that of the other direction.
    write_tokenizer(tmp_path, OTHER)
    (tmp_path / "vocab-src.json").write_text(json.dumps(OTHER))
    of_target = FSMTTokenizer.from_pretrained(tmp_path, langs=["de", "en"])
    lines = texts("de")
    labels = tokenizer(text_target=lines).input_ids
    assert labels == of_target(lines).input_ids
    assert tokenizer.batch_decode(labels[:1000]) == of_source.batch_decode(labels[:1000])


def test_from_fsmt_tokenizer_without_package(converted, tmp_path):
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(converted)]
    environment = {"HF_HOME": str(tmp_path / "home"), "PYTHONSAFEPATH": "1"}
    streams = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **streams)
    assert done.returncode == 0, done.stderr
    *_, refusal, ids = done.stdout.splitlines()
    assert refusal.endswith("ValueError True")
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert ids == str(tokenizer(["two dogs"], text_target=["zwei Hunde"]).data)


@pytest.mark.bridge
def test_from_fsmt_certificate_and_card(converted):
    certificate = json.loads((converted / "parity.json").read_text())
    assert certificate["equal"]
    assert 0 < max(certificate["log_probs"].values()) <= certificate["tolerance"] == 1e-4
    assert certificate["translations"] == {"sentences": 8, "greedy": 8, "beam": 8}
    assert certificate["oracle"].startswith("FSMTForConditionalGeneration of transformers 5.")
    card = (converted / "README.md").read_text()
    assert "from `wmt19-en-ru` with hf-vanilla-transformer" in " ".join(card.split())
    assert not (converted / "tokenizer.json").exists()
    assert read_card(str(converted))[1:3] == ("en", "de")
    assert "5.24 or later, below 6; the tokenizer needs the package `sacremoses`.\nThe folder" in card
    assert "The training data are those of `wmt19-en-ru`: see its card, if it has one. Expect" in card


@pytest.mark.parametrize(
    ("target", "shares", "fields"),
    [
        (SOURCE, "all", {}),
        (SOURCE, "all", {"encoder_layers": 5, "decoder_layers": 1}),
        (SOURCE, "decoder", {"encoder_ffn_dim": 64}),
        (OTHER, "none", {"decoder_ffn_dim": 24}),
        (SOURCE, "none", {}),
    ],
)
def test_from_fsmt_other_shapes(tmp_path, target, shares, fields):
    saved(tmp_path / "fsmt", target, shares=shares, **fields)
    folder = from_fsmt(str(tmp_path / "fsmt"), str(tmp_path / "model"))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.tie_word_embeddings == (shares != "none")
    is_joint = target is SOURCE and shares != "decoder"
    assert (model.config.source_vocab_size is None) == is_joint
    translate(model, AutoTokenizer.from_pretrained(folder), SENTENCES[:1], max_new_tokens=2)


def swap(state, first_name, second_name):
    first_weight = state[first_name]
    state[first_name] = state[second_name]
    state[second_name] = first_weight


@pytest.mark.parametrize(
    "change",
    [
        lambda state: swap(state, *(f"model.encoder.layers.0.self_attn.{name}_proj.weight" for name in "qk")),
        lambda state: state["model.decoder.layers.1.fc1.bias"].zero_(),
        lambda state: state.update({"lm_head.weight": state["lm_head.weight"][:, [1, 0, *range(2, 32)]]}),
    ],
    ids=["queries and keys", "a bias", "two channels"],
)
def test_from_fsmt_wrong_conversion(source, tmp_path, monkeypatch, change):
    permute = weight_transforms.permute_channels

    def wrong(state, channels):
        state = permute(state, channels)
        change(state)
        return state

    monkeypatch.setattr(weight_transforms, "permute_channels", wrong)
    with pytest.raises(ValueError, match="the converted model is not equal to"):
        from_fsmt(str(source[0]), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("position", [("sinusoidal", 2), ("sinusoidal_tensor2tensor", 1)])
def test_from_fsmt_wrong_positions(source, tmp_path, monkeypatch, position):
    config_class = weight_transforms.VanillaTransformerConfig

    def wrong(**fields):
        return config_class(**{**fields, "position_embedding_type": position[0], "position_offset": position[1]})

    monkeypatch.setattr(weight_transforms, "VanillaTransformerConfig", wrong)
    with pytest.raises(ValueError, match="the converted model is not equal to"):
        from_fsmt(str(source[0]), str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale_embedding": False}, "fsmt cannot be converted: scale_embedding is False, but must be True"),
        ({"decoder_attention_heads": 2}, "decoder_attention_heads is 2, but must be 4"),
        ({"model_type": "bart", "decoder_start_token_id": 0}, "model_type is 'bart', .* 'fsmt'; decoder_start_.* is 0"),
    ],
)
def test_from_fsmt_unsupported_fields(tmp_path, fields, message):
    saved(tmp_path / "fsmt")
    path = tmp_path / "fsmt" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(ValueError, match=message):
        from_fsmt(str(tmp_path / "fsmt"), str(tmp_path / "model"))


def test_from_fsmt_tokenizer_settings(tmp_path):
    saved(tmp_path / "fsmt")
    path = tmp_path / "fsmt" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": True, "model_max_length": 99}))
    tokenizer = AutoTokenizer.from_pretrained(from_fsmt(str(tmp_path / "fsmt"), str(tmp_path / "model")))
    assert tokenizer(SENTENCES).input_ids == FSMTTokenizer.from_pretrained(tmp_path / "fsmt")(SENTENCES).input_ids
    assert tokenizer(SENTENCES).input_ids == tokenizer([text.lower() for text in SENTENCES]).input_ids
    assert tokenizer.model_max_length == 99


@pytest.mark.parametrize("file_name", ["tokenizer_config.json", "config.json"])
def test_from_fsmt_wrong_language_codes(tmp_path, file_name):
    saved(tmp_path / "fsmt")
    path = tmp_path / "fsmt" / file_name
    settings = json.loads(path.read_text())
    if file_name == "config.json":
        # The tokenizer's settings have precedence, so they must not contain the codes.
        (tmp_path / "fsmt" / "tokenizer_config.json").unlink()
    path.write_text(json.dumps({**settings, "langs": ["en"]}))
    with pytest.raises(ValueError, match=rf"langs in .*/{file_name} is \['en'\]; it must be the codes of two lang"):
        from_fsmt(str(tmp_path / "fsmt"), str(tmp_path / "model"))


def test_from_fsmt_missing_tokenizer_file(tmp_path):
    saved(tmp_path / "fsmt")
    (tmp_path / "fsmt" / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*merges\.txt"):
        from_fsmt(str(tmp_path / "fsmt"), str(tmp_path / "model"))


@pytest.mark.bridge
def test_from_fsmt_without_sacremoses(source, tmp_path, monkeypatch):
    monkeypatch.setattr(converted_folder, "find_spec", lambda name: None)
    folder = from_fsmt(str(source[0]), str(tmp_path / "model"))
    certificate = json.loads((folder / "parity.json").read_text())
    assert certificate["oracle"].endswith("on random tokens only, because sacremoses is not installed")
    assert list(certificate["log_probs"]) == ["random"]


def test_convert_from_fsmt(source, tmp_path, capsys):
    output = tmp_path / "model"
    main(["convert", "--from", "fsmt", "--input", str(source[0]), "--output", str(output)])
    assert f"the model is in {output}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="positions is hf, but fsmt has no such option"):
        main(["convert", "--from", "fsmt", "--input", str(source[0]), "--output", "x", "--positions", "hf"])


def test_from_fsmt_then_fine_tune(converted, tmp_path):
    check_fine_tuning(converted, SENTENCES, TARGETS, tmp_path)
