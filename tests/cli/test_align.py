"""`align`: word alignments of files and arguments, their error rate, and the choice of heads."""

import json
import shutil

import pytest

from hf_vanilla_transformer import align as align_words
from hf_vanilla_transformer.cli import align
from hf_vanilla_transformer.cli.loading import load
from tests.number_alignment import english, german, gold, spell
from tests.test_alignment import FOLDER


NUMBERS = [42, 365, 7, 920_016, 61_000, 3_874]
SIDES = [[spell(language(number), True) for number in NUMBERS] for language in (english, german)]


@pytest.fixture
def files(write) -> list[str]:
    sides = zip(("a.en", "a.de"), SIDES, strict=True)
    return ["--test_file", *(str(write(name, "".join(f"{line}\n" for line in side))) for name, side in sides)]


@pytest.fixture
def gold_file(write) -> str:
    links = [gold(number, True) for number in NUMBERS]
    lines = [
        " ".join(f"{one}{'-' if (one, other) in sure else '?'}{other}" for one, other in possible)
        for sure, possible in links
    ]
    return str(write("gold.txt", "".join(f"{line}\n" for line in lines)))


def expected(folder):
    tokenizer, model = load(str(folder))
    return align_words(model, tokenizer, *SIDES)


def test_files(files, tmp_path, capsys):
    output = tmp_path / "links.txt"
    found = align.main(["--model_name_or_path", str(FOLDER), *files])
    assert found == expected(FOLDER)
    lines = capsys.readouterr().out.splitlines()
    assert [[tuple(map(int, link.split("-"))) for link in line.split()] for line in lines] == found
    align.main(["--model_name_or_path", str(FOLDER), *files, "--output", str(output)])
    assert output.read_text().splitlines() == lines
    assert capsys.readouterr().out == ""


def test_pairs_as_arguments(capsys):
    align.main(["--model_name_or_path", str(FOLDER), "forty two", "zwei und vierzig", "", "null"])
    assert capsys.readouterr().out == "0-1 0-2 1-0\n\n"


def test_error_rate_and_choice(files, gold_file, tmp_path, capsys):
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    entries = json.loads((folder / "config.json").read_text())
    entries |= {"alignment_heads": [[0, 1]], "own": 3}
    (folder / "config.json").write_text(json.dumps(entries))
    command = ["--model_name_or_path", str(folder), *files]
    rates = []
    for given in ([], ["--choose"]):
        align.main([*command, *given, "--gold_file", gold_file])
        rates.append(float(capsys.readouterr().err.splitlines()[-1].removeprefix("alignment error rate: ")[:-2]))
    assert rates[1] < 10 < rates[0]
    saved = json.loads((folder / "config.json").read_text())
    assert saved == {**entries, "alignment_heads": saved["alignment_heads"], "alignment_shift": False}
    assert {layer for layer, _ in saved["alignment_heads"]} == {1}
    align.main([*command, "--choose"])
    assert capsys.readouterr().err.splitlines()[-6] == "cross-entropy  layer.head, from 0"
    assert align.main(command) == expected(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["forty two"], "there are 1 sentences; give pairs, each source before its target"),
        (["a", "b", "--dataset_name", "numbers"], "pairs were given both as arguments and as data"),
        (["a", "b", "--gold_file", "missing"], "missing does not exist"),
        (["a", "b", "--gold_file", "GOLD"], r".*bad\.txt, line 1 is '0-0 1/2'; give links such as 0-0 1-2"),
        (["a", "b", "--gold_file", "TWO"], "there are 1 alignments and 2 true ones"),
        (["a", "b", "--output", "nowhere/links"], "nowhere does not exist; create the folder"),
    ],
)
def test_wrong_arguments(write, arguments, message):
    paths = {"GOLD": str(write("bad.txt", "0-0 1/2\n")), "TWO": str(write("two.txt", "0-0\n0-0\n"))}
    with pytest.raises(SystemExit, match=f"error: {message}"):
        align.main(["--model_name_or_path", str(FOLDER), *(paths.get(each, each) for each in arguments)])


def test_choosing_for_a_model_of_the_hub():
    with pytest.raises(SystemExit, match=r"choose writes config\.json, but user/name is no local folder; copy it"):
        align.main(["--model_name_or_path", "user/name", "a", "b", "--choose"])
