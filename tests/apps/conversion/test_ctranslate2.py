"""Trained folders go out to CTranslate2 equal, or not at all."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import TwoVocabularyTokenizer, train_tokenizer, translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import ctranslate2
from hf_vanilla_transformer.apps.conversion.ctranslate2 import to_ctranslate2
from hf_vanilla_transformer.apps.conversion.parity_certificate import SENTENCES
from hf_vanilla_transformer.hub.user_cache import hashes
from hf_vanilla_transformer.model.input_checks import sides_of
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerEncoder
from tests.apps.conversion.marian import translate_by_marian
from tests.ecosystem.documentation import FIXTURE, ROOT
from tests.models import decisive_model, small_model


needs_ctranslate2 = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")


def test_specification_of_unsupported_model():
    for fields, message in (
        ({"stack_layer_norm": True}, "stack_layer_norm is True, but CTranslate2 needs False"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh', but CTranslate2 has relu, gelu, swish, silu"),
    ):
        with pytest.raises(ValueError, match=message):
            ctranslate2.specification(small_model(d_k=None, d_v=None, **fields), [], [])


def test_to_ctranslate2_without_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"CTranslate2 needs ctranslate2; install it with: .*\[ctranslate2\]"):
        to_ctranslate2(str(FIXTURE), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def translations(folder, tokenizer, sentences, beams):
    """What a user of CTranslate2 writes."""
    translator = pytest.importorskip("ctranslate2").Translator(str(folder))
    # A copy of MarianTokenizer turns all tokens into ids, and ids into tokens, by one vocabulary.
    names = [
        json.loads((folder / f"{side}_vocabulary.json").read_text())
        for side in (("shared", "shared") if (folder / "shared_vocabulary.json").exists() else ("source", "target"))
    ]
    sources = [[names[0][token] for token in ids] for ids in tokenizer(sentences).input_ids]
    always = json.loads((folder / "parity.json").read_text())["translate_batch"]
    results = translator.translate_batch(sources, beam_size=beams, length_penalty=1, max_decoding_length=60, **always)
    best_hypotheses = [result.hypotheses[0] for result in results]
    rows = [[names[1].index(token) for token in tokens] for tokens in best_hypotheses]
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


NUMBERS = ["forty-two", "one thousand and six", "nine", "three hundred and twelve"]
RULES = {"length_penalty": 1.0, "length_penalty_type": "hf", "early_stopping": True, "max_new_tokens": 60}


@needs_ctranslate2
def test_to_ctranslate2_trained_folder(tmp_path):
    folder = to_ctranslate2(str(FIXTURE), str(tmp_path / "ct2"), sentences=NUMBERS)
    certificate = json.loads((folder / "parity.json").read_text())
    assert certificate["equal"]
    assert set(certificate["log_probs"]) == {"random", "real"}
    assert certificate["tolerance"] == 1e-4
    for difference in certificate["log_probs"].values():
        assert 0 < difference <= certificate["tolerance"]
    assert certificate["sha256"] == hashes([FIXTURE / "model.safetensors"])
    assert certificate["translations"] == {"sentences": 4, "greedy": 4, "beam": 4}
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(folder)
    for beams in (1, 4):
        expected = translate(model, tokenizer, NUMBERS, num_beams=beams, **RULES)
        assert translations(folder, tokenizer, NUMBERS, beams) == expected
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.bin",
        "parity.json",
        "shared_vocabulary.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@needs_ctranslate2
def test_to_ctranslate2_documented_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    to_ctranslate2(str(FIXTURE), "runs/numbers-ct2", sentences=NUMBERS)
    exec(re.search(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(), flags=re.DOTALL)[1], {})
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    assert capsys.readouterr().out.split() == translate(model, tokenizer, ["forty-two"], num_beams=4, **RULES)


@needs_ctranslate2
@pytest.mark.parametrize("quantization", ["int8", "bfloat16"])
def test_to_ctranslate2_quantized_weights(tmp_path, quantization):
    options = {"max_positions": 64, "sentences": NUMBERS}
    exact = to_ctranslate2(str(FIXTURE), str(tmp_path / "float32"), **options)
    folder = to_ctranslate2(str(FIXTURE), str(tmp_path / "ct2"), quantization=quantization, **options)
    assert (folder / "model.bin").stat().st_size < 0.6 * (exact / "model.bin").stat().st_size
    certificate = json.loads((folder / "parity.json").read_text())
    assert [certificate[name] for name in ("quantization", "tolerance", "equal")] == [quantization, None, None]
    # Without VNNI, CTranslate2 rounds more coarsely in int8.
    is_coarse = quantization == "int8" and not torch.cpu._is_vnni_supported()
    assert 1e-5 < certificate["log_probs"]["real"] < (3 if is_coarse else 0.5)
    assert certificate["translations"]["greedy"] >= (3 if is_coarse else 4)


@needs_ctranslate2
@pytest.mark.parametrize(
    "fields",
    [
        {"activation_function": "gelu"},
        {"activation_function": "swish", "lm_head_bias": True},
        {"position_embedding_type": "sinusoidal_tensor2tensor", "position_offset": 2},
        {"position_embedding_type": "learned", "max_position_embeddings": 80},
        {"attention_bias": False},
    ],
)
def test_to_ctranslate2_supported_models(tokenizer, tmp_path, fields):
    saved(tmp_path / "model", tokenizer, **fields)
    folder = to_ctranslate2(str(tmp_path / "model"), str(tmp_path / "ct2"), sentences=NUMBERS)
    assert json.loads((folder / "parity.json").read_text())["log_probs"]["real"] < 1e-4


def saved(folder, tokenizer, **fields):
    model = decisive_model(vocab_size=len(sides_of(tokenizer)[1]), d_k=None, d_v=None, **fields)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@needs_ctranslate2
@pytest.mark.parametrize("sizes", [(280, 270), (265, 280)])
def test_to_ctranslate2_two_vocabularies(tmp_path, sizes):
    texts = ["zweiundvierzig", "neun", "tausendsechs"], NUMBERS
    options = {"min_frequency": 1, "show_progress": False}
    sides = [train_tokenizer(lines, vocab_size=size, **options) for lines, size in zip(texts, sizes, strict=True)]
    tokenizer = TwoVocabularyTokenizer.of(*sides)
    saved(tmp_path / "model", tokenizer, source_vocab_size=len(sides[0]))
    folder = to_ctranslate2(str(tmp_path / "model"), str(tmp_path / "ct2"), sentences=texts[0])
    assert json.loads((folder / "parity.json").read_text())["equal"]
    assert {"source_vocabulary.json", "target_vocabulary.json"} <= {path.name for path in folder.iterdir()}
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    expected = translate(model, tokenizer, texts[0], num_beams=1, **RULES)
    assert translations(folder, tokenizer, texts[0], 1) == expected


@needs_ctranslate2
@pytest.mark.parametrize("change", ["queries and keys", "positions", "a bias"])
def test_to_ctranslate2_wrong_conversion(tmp_path, monkeypatch, change):
    from ctranslate2.converters.transformers import BartLoader

    set_attention = BartLoader.set_attention

    def wrong(self, spec, attention, self_attention=False):
        if change == "queries and keys" and self_attention:
            attention.q_proj, attention.k_proj = attention.k_proj, attention.q_proj
        if change == "a bias":
            attention.out_proj.bias.zero_()
        set_attention(self, spec, attention, self_attention)

    monkeypatch.setattr(BartLoader, "set_attention", wrong)
    if change == "positions":
        add = VanillaTransformerEncoder.add_positions
        # The table has two dimensions, batches have three.
        shifted = lambda self, x, positions, bound=None: add(self, x, positions + (x.ndim == 2), bound)  # noqa: E731
        monkeypatch.setattr(VanillaTransformerEncoder, "add_positions", shifted)
    with pytest.raises(ValueError, match="the converted model is not equal to"):
        to_ctranslate2(str(FIXTURE), str(tmp_path / "ct2"), sentences=NUMBERS)
    assert not (tmp_path / "ct2").exists()


@needs_ctranslate2
def test_to_ctranslate2_sentence_longer_than_table(tmp_path):
    folder = to_ctranslate2(str(FIXTURE), str(tmp_path / "ct2"), max_positions=64, sentences=["nine"])
    with pytest.raises(RuntimeError, match="64"):
        translations(folder, AutoTokenizer.from_pretrained(FIXTURE), ["nine " * 80], 1)
    for wrong in (9, 100_001, 10**12):
        with pytest.raises(ValueError, match=f"max_positions is {wrong}; it must lie between 64 and 100000"):
            to_ctranslate2(str(FIXTURE), str(tmp_path / "other"), max_positions=wrong)


@needs_ctranslate2
@pytest.mark.parametrize("fields", [{}, {"position_embedding_type": "learned", "max_position_embeddings": 30}])
def test_to_ctranslate2_compares_ends_of_long_sentences(tokenizer, tmp_path, fields):
    saved(tmp_path / "model", tokenizer, **fields)
    assert max(map(len, tokenizer(list(SENTENCES)).input_ids)) > 64
    folder = to_ctranslate2(str(tmp_path / "model"), str(tmp_path / "ct2"), max_positions=64)
    certificate = json.loads((folder / "parity.json").read_text())
    assert certificate["equal"]
    assert certificate["max_positions"] == fields.get("max_position_embeddings", 64)
    assert certificate["translations"]["sentences"] == len(SENTENCES)


@needs_ctranslate2
def test_convert_to_ctranslate2(tmp_path, capsys):
    arguments = ["convert", "--to", "ctranslate2", "--input", str(FIXTURE), "--output", str(tmp_path / "ct2")]
    main([*arguments, "--quantization", "int8"])
    assert f"the model is in {tmp_path / 'ct2'}" in capsys.readouterr().out
    for more, message in (
        ([], "ct2 exists; name another folder"),
        (["--from", "marian"], "give either --from or --to, and a system"),
        (["--license", "mit"], "license is mit, but ctranslate2 has no such option"),
        (["--quantization", "int3"], 'quantization is "int3"; choose one of float32, float16'),
        (["--to", "onnx"], "--to: invalid choice: 'onnx'"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*arguments, *more])


@needs_ctranslate2
@pytest.mark.skipif(find_spec("sentencepiece") is None, reason="needs sentencepiece")
@pytest.mark.parametrize(
    ("name", "vocabularies"),
    [("tied_swish", ["vocab.spm"] * 2), ("separate_relu", ["source.spm", "target.spm"])],
)
@pytest.mark.bridge
def test_to_ctranslate2_tuned_marian_model(tmp_path, capsys, name, vocabularies):
    """With the commands of docs/conversion.md; translations are compared at each stop."""
    marian = FIXTURE.parent / "marian" / name
    all_sentences, all_translations = translate_by_marian(marian, vocabularies)
    sentences = all_sentences[:8]
    expected = all_translations[:8]
    model = str(tmp_path / "model")
    tuned = str(tmp_path / "tuned")
    out = str(tmp_path / "out")
    settings = {"num_beams": 1, "max_new_tokens": 60}

    def translations_of(folder):
        models = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        return translate(*models, sentences, **settings)

    main(["convert", "--from", "marian", "--input", str(marian), "--output", model])
    assert translations_of(model) == expected
    # Three translations change places, which is to be learnt.
    files = [tmp_path / "pairs.en", tmp_path / "pairs.de"]
    for path, lines in zip(files, (sentences[:3], [*expected[1:3], expected[0]]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = {"max_steps": 60, "learning_rate": 5e-3, "per_device_train_batch_size": 3, "disable_tqdm": "true"}
    arguments = [part for option, value in options.items() for part in (f"--{option}", str(value))]
    arguments += ["--warmup_steps", "5"]
    main(["train", "--model_name_or_path", model, "--output_dir", tuned, "--train_file", *map(str, files), *arguments])
    learnt = translations_of(tuned)
    assert learnt != expected
    main(["convert", "--to", "ctranslate2", "--input", tuned, "--output", out])
    certificate = json.loads((Path(out) / "parity.json").read_text())
    assert certificate["equal"]
    assert certificate["translations"]["greedy"] == certificate["translations"]["sentences"]
    assert translations(Path(out), AutoTokenizer.from_pretrained(out), sentences, 1) == learnt
    capsys.readouterr()
    by_engine = ["--engine", "ctranslate2", *(f"--{name}={value}" for name, value in settings.items())]
    main(["translate", "--model_name_or_path", tuned, *by_engine, *sentences])
    assert capsys.readouterr().out.splitlines() == learnt
