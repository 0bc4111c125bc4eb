"""`--from auto`, and the conversions by their public names."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Int8Config
from hf_vanilla_transformer.apps import conversion
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion.converted_folder import command
from hf_vanilla_transformer.apps.conversion.marian import read_arrays
from hf_vanilla_transformer.apps.conversion.source_folder import load_trained, read_license, recognize


FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ("from_fairseq", "from_fsmt", "from_hf_marian", "from_marian", "to_ctranslate2", "to_hf_marian")


@pytest.mark.parametrize("name", NAMES)
def test_conversion_public_names(name):
    direction, _, system = name.partition("_")
    assert direction in ("from", "to")
    assert name in dir(conversion)
    function = getattr(conversion, name)
    assert function.__name__ == name
    assert function.__module__ == f"hf_vanilla_transformer.apps.conversion.{system}"


def test_conversion_unknown_name():
    assert conversion.__all__ == sorted(NAMES)
    with pytest.raises(AttributeError, match=r"conversion' has no attribute 'from_nematus'"):
        _ = conversion.from_nematus


def test_conversion_imports_no_system():
    code = (
        "import sys, hf_vanilla_transformer.apps.conversion as c; dir(c)\n"
        "parts = 'transformer.conversion.', 'modeling_marian', 'modeling_fsmt', 'ctranslate2'\n"
        "print([name for name in sys.modules if any(part in name for part in parts)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def written(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_json", ".json").replace("_npz", ".npz")).write_text(content)
    return folder


def test_recognize_systems(tmp_path):
    assert recognize(str(FIXTURES / "marian" / "tied_relu")) == "marian"
    assert recognize(str(FIXTURES / "marian" / "tied_relu" / "model.npz")) == "marian"
    assert recognize(str(FIXTURES / "fairseq" / "joint")) == "fairseq"
    assert recognize(str(FIXTURES / "fairseq" / "joint" / "model.pt")) == "fairseq"
    for model_type, system in (("marian", "hf_marian"), ("fsmt", "fsmt")):
        folder = written(tmp_path / system, config_json=json.dumps({"model_type": model_type}))
        assert recognize(str(folder)) == system


def test_recognize_unknown_sources(tmp_path):
    bart = written(tmp_path / "bart", config_json='{"model_type": "bart"}')
    both = written(tmp_path / "both", config_json='{"model_type": "marian"}', model_npz="")
    damaged = written(tmp_path / "damaged", config_json="{")
    for folder, error_class, message in (
        (bart, ValueError, r"bart has no \.npz .* model_type is marian or fsmt, but bart; nothing else can be conv"),
        (written(tmp_path / "empty"), ValueError, r"empty has no \.npz .* model_type is marian or fsmt; nothing else"),
        (FIXTURES / "marian" / "tied_relu" / "vocab.spm", ValueError, r"vocab\.spm has no \.npz \(marian\), no \.pt"),
        (both, ValueError, "both holds models of hf_marian and marian; choose one of them with --from"),
        (damaged, ValueError, "config.json of .*damaged cannot be read"),
        (tmp_path / "nowhere", FileNotFoundError, "there is no folder .*nowhere, and the Hub answered"),
    ):
        with pytest.raises(error_class, match=message):
            recognize(str(folder))


def test_convert_from_auto(tmp_path, capsys):
    command = ["convert", "--from", "auto", "--input"]
    with pytest.raises(SystemExit, match=r"error: .* has no \.npz \(marian\)"):
        main([*command, str(tmp_path), "--output", str(tmp_path / "model")])
    source = str(FIXTURES / "marian" / "tied_relu")
    # An option that some systems have.
    with pytest.raises(SystemExit, match="error: positions is hf, but marian has no such option"):
        main([*command, source, "--output", str(tmp_path / "model"), "--positions", "hf"])
    if find_spec("sentencepiece") is not None:
        main([*command, source, "--output", str(tmp_path / "model")])
        printed = capsys.readouterr()
        assert f"{source} is a model of marian" in printed.err
        assert f"the model is in {tmp_path / 'model'}" in printed.out
        assert json.loads((tmp_path / "model" / "parity.json").read_text())["system"] == "marian"


@pytest.mark.parametrize("token", [["--token", "hf_secret"], ["--token=hf_secret"]])
@pytest.mark.bridge
def test_command_without_token(monkeypatch, token):
    """It is published with the folder."""
    arguments = ["convert", "--from", "fsmt", *token, "--input", "a b", "--output", "b"]
    programs = ("/usr/bin/hf-vanilla-transformer", "hf_vanilla_transformer_launcher.py")
    for program in (*programs, "/site-packages/hf_vanilla_transformer/__main__.py"):
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        assert command() == "hf-vanilla-transformer convert --from fsmt --input 'a b' --output b"
    # The arguments of another program may be anything.
    monkeypatch.setattr(sys, "argv", ["mine.py", *arguments])
    assert command() is None


def test_recognize_trainer_checkpoint(tmp_path):
    folder = written(tmp_path / "checkpoint", config_json=json.dumps({"model_type": "marian"}))
    for name in ("optimizer.pt", "scheduler.pt"):
        (folder / name).touch()
    assert recognize(str(folder)) == "hf_marian"


@pytest.mark.parametrize("place", ["end", "method", "flag"])
def test_read_arrays_damaged_archive(tmp_path, place):
    content = bytearray((FIXTURES / "marian" / "tied_relu" / "model.npz").read_bytes())
    directory = content.rfind(b"PK\x01\x02")
    content[{"end": content.rfind(b"PK\x05\x06") + 12, "method": directory + 10, "flag": directory + 8}[place]] ^= 0x41
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.npz cannot be read: "):
        read_arrays(tmp_path / "model.npz")


def test_read_license_damaged_card(tmp_path):
    (tmp_path / "README.md").write_text("---\ntags: 5\nlicense: mit\n---\n")
    assert read_license(tmp_path) is None


def test_load_trained_quantized_weights(tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURES / "numbers_tiny", quantization_config=Int8Config())
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(FIXTURES / "numbers_tiny").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="mine has quantized weights; convert the model that it was made from"):
        load_trained(tmp_path, "mine")
