"""`align`: word alignments of files and arguments."""

import json
import shutil

import pytest

from hf_vanilla_transformer import align as align_words
from hf_vanilla_transformer.apps.cli import align
from hf_vanilla_transformer.translation.model_loading import load
from tests.number_alignment import english, german, spell
from tests.translation.test_alignment import FOLDER


NUMBERS = [42, 365, 7, 920_016, 61_000, 3_874]
SIDES = [[spell(language(number), True) for number in NUMBERS] for language in (english, german)]


@pytest.fixture
def files(write) -> list[str]:
    sides = zip(("a.en", "a.de"), SIDES, strict=True)
    return ["--test_file", *(str(write(name, "".join(f"{line}\n" for line in side))) for name, side in sides)]


def expected(folder):
    tokenizer, model = load(str(folder))
    return align_words(model, tokenizer, *SIDES)


def test_align_writes_links_of_files(files, tmp_path, capsys):
    output = tmp_path / "links.txt"
    alignments = align.main(["--model_name_or_path", str(FOLDER), *files])
    assert alignments == expected(FOLDER)
    lines = capsys.readouterr().out.splitlines()
    assert [[tuple(map(int, link.split("-"))) for link in line.split()] for line in lines] == alignments
    align.main(["--model_name_or_path", str(FOLDER), *files, "--output", str(output)])
    assert output.read_text().splitlines() == lines
    assert capsys.readouterr().out == ""


def test_align_writes_links_of_pairs_on_the_command_line(capsys):
    align.main(["--model_name_or_path", str(FOLDER), "forty two", "zwei und vierzig", "", "null"])
    assert capsys.readouterr().out == "0-1 0-2 1-0\n\n"


def test_align_uses_the_heads_of_the_configuration(files, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    entries = json.loads((folder / "config.json").read_text())
    entries["alignment_heads"] = [[0, 1]]
    (folder / "config.json").write_text(json.dumps(entries))
    alignments = align.main(["--model_name_or_path", str(folder), *files])
    assert alignments == expected(folder)
    assert alignments != expected(FOLDER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["forty two"], "there are 1 sentences; give pairs, each source before its target"),
        (["a", "b", "--dataset_name", "numbers"], "pairs were given both as arguments and as data"),
        (["a", "b", "--split", "test"], "split is test, but has no effect on pairs that are given as arguments"),
        (["a", "b", "--output", "nowhere/links"], "nowhere does not exist; create the folder"),
    ],
)
def test_align_rejects_wrong_arguments(arguments, message):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        align.main(["--model_name_or_path", str(FOLDER), *arguments])
