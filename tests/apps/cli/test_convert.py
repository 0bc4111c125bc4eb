"""`convert`: inputs and outputs that cannot be, in one sentence each."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from hf_vanilla_transformer.apps.cli import convert


FIXTURES = Path(__file__).parents[2] / "fixtures"
SOURCES = {
    "marian": FIXTURES / "marian" / "tied_relu",
    "fairseq": FIXTURES / "fairseq" / "joint",
    "hf_marian": FIXTURES / "numbers_tiny",
    "fsmt": FIXTURES / "numbers_tiny",
}
needs_ctranslate2 = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")


def run(direction: str, system: str, source: object, output: object, *options: str) -> None:
    convert.main([f"--{direction}", system, "--input", str(source), "--output", str(output), *options])


@pytest.mark.parametrize("system", SOURCES)
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "output is empty; name a folder for the converted model"),
        ("source", "is the folder of the source; name another folder for the converted model"),
        ("/dev/null", "is a file; name a folder for the converted model"),
    ],
)
def test_convert_rejects_outputs(tmp_path, monkeypatch, system, output, message):
    monkeypatch.chdir(tmp_path)
    source = shutil.copytree(SOURCES[system], "source")
    before = sorted(Path(source).iterdir())
    with pytest.raises(SystemExit, match=message):
        run("from", system, source, output)
    assert sorted(Path(source).iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("system", SOURCES)
@pytest.mark.parametrize("name", ["nowhere", "file.txt", "empty"])
def test_convert_rejects_inputs(tmp_path, monkeypatch, system, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("text\n")
    (tmp_path / "empty").mkdir()
    faults = {"nowhere": "is no folder|does not exist|there is no", "file.txt": "is a file|is no", "empty": "holds"}
    with pytest.raises(SystemExit, match=f"{name} ({faults[name]})|({faults[name]}) folder {name}"):
        run("from", system, name, "output")
    assert not Path("output").exists()


@needs_ctranslate2
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "holds no config.json; name the folder of a model"),
        ("tokenizer.json", "{}", "the tokenizer of .* cannot be read: a file lacks 'added_tokens'"),
        ("tokenizer.json", "", "the tokenizer of .* cannot be read: Expecting value"),
        ("tokenizer.json", None, "the tokenizer of .* cannot be read: [^\n]*$"),
    ],
)
def test_convert_rejects_damaged_folders(tmp_path, name, content, message):
    folder = shutil.copytree(FIXTURES / "numbers_tiny", tmp_path / "model")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(SystemExit, match=message):
        run("to", "ctranslate2", folder, tmp_path / "output")


@needs_ctranslate2
@pytest.mark.parametrize("count", ["0", "-5"])
def test_convert_rejects_max_positions_out_of_range(tmp_path, count):
    with pytest.raises(SystemExit, match=f"max_positions is {count}; it must lie between 64 and 100000"):
        run("to", "ctranslate2", FIXTURES / "numbers_tiny", tmp_path / "output", "--max_positions", count)
