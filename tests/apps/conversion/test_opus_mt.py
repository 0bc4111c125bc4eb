"""Folders in the layout of Helsinki-NLP's repositories come in, and what was converted loads in a new process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, MarianMTModel, MarianTokenizer

from hf_vanilla_transformer.apps import conversion
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.apps.conversion.fsmt import fsmt_model, write_tokenizer
from tests.apps.conversion.opus_mt import SEVERAL, TEXTS, write_opus_mt


FIXTURES = Path(__file__).parents[2] / "fixtures"
# As a user loads a folder: by the Auto classes, in a process that did not convert.
LOAD = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from hf_vanilla_transformer import translate
lines = json.loads(sys.argv[1])
translations = []
for folder in sys.argv[2:]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    translations.append(translate(model, tokenizer, lines, num_beams=1, max_new_tokens=5))
print(json.dumps(translations))
"""


@pytest.fixture(autouse=True)
def libraries():
    pytest.importorskip("sentencepiece")
    pytest.importorskip("sacremoses")


def translated(folder: Path, lines: list[str], **settings) -> list[str]:
    """By MarianMTModel and MarianTokenizer, a sentence at a time."""
    model, tokenizer = MarianMTModel.from_pretrained(folder), MarianTokenizer.from_pretrained(folder)
    rows = [model.generate(**tokenizer(line, return_tensors="pt"), **settings)[0] for line in lines]
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("source", "target", "weights"),
    [
        ("en", "de", "pytorch_model.bin"),
        ("fr", "en", "model.safetensors"),
        ("en", SEVERAL, "pytorch_model.bin"),
    ],
)
def test_convert_opus_mt_layout(tmp_path, capsys, monkeypatch, source, target, weights):
    monkeypatch.chdir(tmp_path)
    folder = write_opus_mt(Path(f"opus-mt-{source}-{target}"), source, target, weights)
    lines = [f">>fr<< {line}" if target == SEVERAL else line for line in TEXTS[source]]
    expected = translated(folder, lines, max_new_tokens=12)
    main(["convert", "--from", "auto", "--input", str(folder), "--output", "converted"])
    capsys.readouterr()
    main(["translate", "--model_name_or_path", "converted", "--max_new_tokens", "12", *lines])
    assert capsys.readouterr().out.splitlines() == expected
    ids = MarianTokenizer.from_pretrained(folder)(lines).input_ids
    assert AutoTokenizer.from_pretrained("converted")(lines).input_ids == ids
    assert len({*map(tuple, ids)}) == len(lines)
    certificate = json.loads(Path("converted/parity.json").read_text())
    assert certificate["equal"]
    assert set(certificate["log_probs"]) == {"random", "real"}
    assert list(certificate["sha256"]) == [weights]
    code = ">>de<< " if target == SEVERAL else ""
    assert read_card("converted").examples == (f"{code}A sentence to translate.",)
    languages = read_card("converted")[1:3]
    assert languages == ((None, None) if target == SEVERAL else (source, target))


def test_load_converted_models_in_new_process(tmp_path):
    opus, fsmt = write_opus_mt(tmp_path / "opus-mt"), tmp_path / "fsmt"
    fsmt_model().save_pretrained(fsmt)
    write_tokenizer(fsmt)
    sources = {
        "hf_marian": opus,
        "fsmt": fsmt,
        "fairseq": FIXTURES / "fairseq" / "two_vocabularies",
        "marian": FIXTURES / "marian" / "separate_relu",
    }
    folders = [
        str(getattr(conversion, f"from_{system}")(str(source), str(tmp_path / "out" / system)))
        for system, source in sources.items()
    ]
    command = [sys.executable, "-c", LOAD, json.dumps(TEXTS["en"]), *folders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    translations = json.loads(done.stdout)
    assert [len(lines) for lines in translations] == [len(TEXTS["en"])] * len(sources)
    assert translations[0] == translated(opus, TEXTS["en"], num_beams=1, max_new_tokens=5)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", None, "the tokenizer of .*opus-mt cannot be read"),
        ("source.spm", b"", "the tokenizer of .*opus-mt cannot be read"),
        ("tokenizer_config.json", b'{"tokenizer_class": "BertTokenizer"}', "opus-mt cannot be converted: "),
        ("tokenizer_config.json", b"[1", "opus-mt.*tokenizer_config.json is truncated or damaged"),
    ],
)
def test_from_hf_marian_damaged_tokenizer(tmp_path, name, content, message):
    folder = write_opus_mt(tmp_path / "opus-mt")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        conversion.from_hf_marian(str(folder), str(tmp_path / "converted"))
    assert not (tmp_path / "converted").exists()


def test_from_hf_marian_short_position_table(tmp_path):
    """Of sentences that are longer than the source can read, the ends are compared."""
    folder = write_opus_mt(tmp_path / "opus-mt", positions=24)
    converted = conversion.from_hf_marian(str(folder), str(tmp_path / "converted"))
    assert json.loads((converted / "parity.json").read_text())["translations"]["sentences"] == 8
