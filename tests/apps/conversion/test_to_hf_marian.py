"""Trained folders go out as stock Marian models, equal or not at all; OPUS-MT models are fine-tuned as they are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel

from hf_vanilla_transformer import TwoVocabularyTokenizer, load_engine, train_tokenizer, translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import from_hf_marian, to_hf_marian
from hf_vanilla_transformer.data.sentencepiece_tokenizer import train_sentencepiece
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.training.model_arguments import ModelArguments
from tests.apps.conversion.opus_mt import TEXTS, write_opus_mt
from tests.ecosystem.documentation import FIXTURE, ROOT
from tests.models import small_model


NUMBERS = ["forty-two", "one thousand and six", "nine", "three hundred and twelve", "</s> seven"]
# Where this package is not installed.
STOCK = """
import json, sys
sys.modules["hf_vanilla_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, lines = sys.argv[1], json.loads(sys.argv[2])
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
rows = tokenizer(lines, padding=True, return_tensors="pt")
outputs = model.generate(**rows, num_beams=1)
print(json.dumps([type(model).__name__, tokenizer(lines).input_ids, tokenizer.batch_decode(outputs, True)]))
"""

EXPORT = """
import sys
sys.modules["hf_vanilla_transformer"] = None
import torch
from transformers import AutoModelForSeq2SeqLM
from transformers.exporters import OnnxConfig, OnnxExporter
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1]).eval()
def inputs(batch, source, target):
    ids = torch.randint(3, 100, (batch, source + target))
    names = {"input_ids": ids[:, :source], "decoder_input_ids": ids[:, source:]}
    return {**names, "attention_mask": torch.ones(batch, source, dtype=torch.long), "use_cache": False}
exported = OnnxExporter().export(model, inputs(2, 6, 5), config=OnnxConfig(dynamic=True))
other = inputs(3, 9, 4)
with torch.no_grad():
    print(float((exported(**other).logits - model(**other).logits).abs().max()))
"""


def certificate_of(folder: Path) -> dict:
    return json.loads((folder / "parity.json").read_text())


def save(folder: Path, model, tokenizer=None) -> Path:
    model.save_pretrained(folder)
    (tokenizer or AutoTokenizer.from_pretrained(FIXTURE)).save_pretrained(folder)
    return folder


def saved(folder: Path, **fields) -> Path:
    """A small model with the tokenizer of the fixture."""
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    return save(folder, small_model(**{"d_k": None, "d_v": None, "vocab_size": len(tokenizer), **fields}), tokenizer)


def test_to_hf_marian_in_process_without_package(tmp_path):
    folder = to_hf_marian(str(FIXTURE), str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-c", STOCK, str(folder), json.dumps(NUMBERS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    class_name, rows, texts = json.loads(done.stdout)
    model, tokenizer = load(FIXTURE)
    assert class_name == "MarianMTModel"
    assert rows == tokenizer(NUMBERS).input_ids
    assert texts == translate(model, tokenizer, NUMBERS, num_beams=1)
    assert texts[0] == "zweiundvierzig"
    assert not list(folder.glob("*.py"))
    # Releases before 5 would make token types, which the model does not take.
    assert (
        json.loads((folder / "tokenizer_config.json").read_text())["model_input_names"] == tokenizer.model_input_names
    )


def test_to_hf_marian_drops_settings_of_this_package(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    tokenizer.init_kwargs |= {"longest_training_source": 9, "translated_letterless_share": 0.0}
    save(tmp_path / "model", small_model(d_k=None, d_v=None, vocab_size=len(tokenizer)), tokenizer)
    folder = to_hf_marian(str(tmp_path / "model"), str(tmp_path / "out"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert not {"longest_training_source", "translated_letterless_share"} & settings.keys()


@pytest.mark.bridge
def test_to_hf_marian_certificate(tmp_path):
    certificate = certificate_of(to_hf_marian(str(FIXTURE), str(tmp_path / "out")))
    same = certificate["with_epsilon_of_the_source"]
    assert certificate["equal"]
    assert max(same["log_probs"].values()) <= 1e-4 < certificate["tolerance"]
    assert same["float64"]["log_probs"]["random"] <= 1e-9
    assert certificate["not_carried"] == {
        "length_penalty": 0.6,
        "length_penalty_type": "gnmt",
        "max_length_offset": 50,
    }
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (settings["length_penalty"], settings["max_length"], settings["num_beams"]) == (1.0, 1024, 4)
    assert certificate["ctranslate2"] == "convert --to ctranslate2"


@pytest.mark.parametrize("fields", [{"lm_head_bias": True}, {"activation_function": "swish"}])
def test_to_hf_marian_other_configurations(tmp_path, fields):
    folder = to_hf_marian(str(saved(tmp_path / "model", **fields)), str(tmp_path / "out"))
    assert certificate_of(folder)["equal"]
    assert MarianMTModel.from_pretrained(folder).final_logits_bias.any() == ("lm_head_bias" in fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding_type": "sinusoidal_tensor2tensor"}, "position_embedding_type is 'sinusoidal_tensor2"),
        ({"position_embedding_type": "learned"}, "position_embedding_type is 'learned', but MarianMTModel needs"),
        ({"position_offset": 2}, "position_offset is 2, but MarianMTModel needs 0"),
        ({"stack_layer_norm": True}, "stack_layer_norm is True, but MarianMTModel needs False"),
        ({"d_k": 6}, "key_dim is 6, but MarianMTModel needs 8"),
        ({"d_v": 10}, "value_dim is 10, but MarianMTModel needs 8"),
        ({"attention_bias": False}, "attention_bias is False, but MarianMTModel needs True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, but MarianMTModel needs True"),
    ],
)
def test_to_hf_marian_unsupported_fields(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        to_hf_marian(str(saved(tmp_path / "model", **fields)), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_to_hf_marian_two_vocabularies(tmp_path):
    sides = [train_tokenizer(TEXTS[code], 280) for code in ("en", "de")]
    sizes = dict(zip(("source_vocab_size", "vocab_size"), map(len, sides), strict=True))
    folder = save(tmp_path / "model", small_model(d_k=None, d_v=None, **sizes), TwoVocabularyTokenizer.of(*sides))
    with pytest.raises(
        ValueError, match=r"is a TwoVocabularyTokenizer, which needs code .*; train .* a joint vocabulary"
    ):
        to_hf_marian(str(folder), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def opus(tmp_path):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("sacremoses")
    return write_opus_mt(tmp_path / "opus-mt-en-de")


def test_to_hf_marian_restores_opus_mt(opus, tmp_path):
    ours = from_hf_marian(str(opus), str(tmp_path / "ours"))
    out = to_hf_marian(str(ours), str(tmp_path / "out"))
    before, after = (MarianMTModel.from_pretrained(folder).state_dict() for folder in (opus, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (out / name).read_bytes() == (opus / name).read_bytes()
    assert certificate_of(out)["not_carried"] == {}
    assert certificate_of(out)["log_probs"]["real"] <= 1e-4
    assert certificate_of(out)["ctranslate2"].startswith("by its own loader of Marian models")


def fine_tune(opus: Path, folder: Path, monkeypatch) -> Path:
    """By the verb, with the cache of conversions in this folder."""
    monkeypatch.setattr(user_cache, "CACHE", folder / "cache")
    files = [folder / f"mine.{code}" for code in ("en", "de")]
    for file in files:
        file.write_text("\n".join(TEXTS[file.suffix[1:]] * 4) + "\n", encoding="utf-8")
    arguments = {"--model_name_or_path": opus, "--output_dir": folder / "tuned", "--max_steps": 6, "--use_cpu": "true"}
    arguments |= {"--learning_rate": 0.01, "--warmup_steps": 1, "--per_device_train_batch_size": 4}
    options = [f"{name}={value}" for name, value in arguments.items()]
    main(["train", "--train_file", *map(str, files), *options])
    return folder / "tuned"


def test_fine_tune_opus_mt_keeps_zero_start(opus, tmp_path, monkeypatch):
    tuned = fine_tune(opus, tmp_path, monkeypatch)
    before, after = (
        load_file(next((tmp_path / "cache").glob("*/model.safetensors"))),
        load_file(tuned / "model.safetensors"),
    )
    moved = (before["model.shared.weight"] != after["model.shared.weight"]).any(dim=1)
    assert not after["model.shared.weight"][-1].any()
    assert moved[:-1].all()
    assert "from `opus-mt-en-de` with hf-vanilla-transformer. It translates from en to de" in read(tuned / "README.md")
    out = to_hf_marian(str(tuned), str(tmp_path / "out"))
    texts = [translate(*load(folder), TEXTS["en"], num_beams=1, max_new_tokens=8) for folder in (tuned, out)]
    assert texts[0] == texts[1]


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def load(folder: Path) -> tuple:
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_to_hf_marian_model_with_sentencepiece(tmp_path):
    """Trained from scratch, it goes out in the files of an OPUS-MT model."""
    sentencepiece = pytest.importorskip("sentencepiece")
    files = [tmp_path / f"mine.{code}" for code in ("en", "de")]
    for file in files:
        file.write_text("\n".join(TEXTS[file.suffix[1:]] * 20) + "\n", encoding="utf-8")
    arguments = {"--output_dir": tmp_path / "ours", "--tokenizer_type": "sentencepiece", "--vocab_size": 320}
    arguments |= {
        "--num_layers": 1,
        "--d_model": 16,
        "--d_ff": 16,
        "--num_heads": 2,
        "--max_steps": 2,
        "--use_cpu": True,
    }
    options = [f"{name}={value}" for name, value in arguments.items()]
    main(["train", "--train_file", *map(str, files), *options])
    out = to_hf_marian(str(tmp_path / "ours"), str(tmp_path / "out"))
    model, tokenizer = load(out)
    assert type(tokenizer).__name__ == "MarianTokenizer"
    assert (tokenizer.source_lang, tokenizer.target_lang) == ("en", "de")
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 1, len(tokenizer) - 1)
    config = model.config
    assert (config.bos_token_id, config.decoder_start_token_id) == (0, tokenizer.pad_token_id)
    assert not model.model.shared.weight[-1].any()
    line = "Ünknown: 漢 ﬁn"
    ids = tokenizer(line).input_ids
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Ünknown: 漢 fin"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "source.spm")).encode(line, out_type=str)
    assert tokenizer.convert_ids_to_tokens(ids) == [*pieces, "</s>"]
    assert certificate_of(out)["ctranslate2"].startswith("by its own loader")


def test_train_sentencepiece_without_texts():
    pytest.importorskip("sentencepiece")
    with pytest.raises(ValueError, match="SentencePiece cannot learn 300 tokens from these texts"):
        train_sentencepiece([], 300)


@pytest.mark.parametrize(
    ("name", "value"), [("normalization", "nfkc"), ("whitespace_words", True), ("joint_vocabulary", False)]
)
def test_model_arguments_unsupported_by_sentencepiece(name, value):
    with pytest.raises(
        ValueError, match=f"{name} is {value}, but SentencePiece has one vocabulary .*leave out --{name}"
    ):
        ModelArguments(tokenizer_type="sentencepiece", **{name: value})


def test_to_hf_marian_then_onnx(tmp_path):
    """Its ONNX graph computes the logits of the stock model, at another length than that of the example."""
    for library in ("onnx", "onnxruntime", "onnxscript", "transformers.exporters"):
        pytest.importorskip(library)
    folder = to_hf_marian(str(FIXTURE), str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", EXPORT, str(folder)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1e-4


def test_load_engine_opus_mt(opus, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    model, tokenizer = load(opus)
    settings = {"num_beams": 1, "max_new_tokens": 8}
    expected = translate(model, tokenizer, TEXTS["en"], **settings)
    assert translate(load_engine(str(opus)), tokenizer, TEXTS["en"], **settings) == expected
    names = sorted(path.name.partition("-")[2] for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert names == ["float32", "marian"]


def test_to_hf_marian_documented_example(opus, tmp_path, capsys):
    out = to_hf_marian(str(from_hf_marian(str(opus), str(tmp_path / "ours"))), str(tmp_path / "out"))
    (block,) = re.findall(r"```python\n(.*?)```", read(ROOT / "docs" / "fine_tune_opus_mt.md"), flags=re.DOTALL)
    exec(block.replace("runs/mine-marian", out.as_posix()), {})
    model, tokenizer = load(opus)
    expected = tokenizer.decode(
        model.generate(**tokenizer(TEXTS["en"][:1], return_tensors="pt"))[0], skip_special_tokens=True
    )
    assert capsys.readouterr().out.splitlines()[-1] == str([expected])


def test_to_hf_marian_then_loader_of_ctranslate2(opus, tmp_path, monkeypatch):
    ctranslate2 = pytest.importorskip("ctranslate2")
    out = to_hf_marian(str(fine_tune(opus, tmp_path, monkeypatch)), str(tmp_path / "out"))
    ctranslate2.converters.TransformersConverter(str(out)).convert(str(tmp_path / "ct2"))
    model, tokenizer = load(out)
    translator = ctranslate2.Translator(str(tmp_path / "ct2"))
    for line in TEXTS["en"]:
        source = tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids)
        (result,) = translator.translate_batch([source], beam_size=1, max_decoding_length=8)
        tokens = result.hypotheses[0]
        rows = model.generate(**tokenizer(line, return_tensors="pt"), num_beams=1, max_new_tokens=8)
        expected = tokenizer.convert_ids_to_tokens(rows[0, 1:])
        # The last token is forced to be </s> by transformers.
        assert tokens[:7] == [token for token in expected if token != "</s>"][:7]
        assert tokens
