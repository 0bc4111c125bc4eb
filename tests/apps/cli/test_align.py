"""`align`: word alignments of files and arguments, their error rate, and the choice of heads."""

import json
import shutil

import pytest

from hf_vanilla_transformer import align as align_words
from hf_vanilla_transformer.apps.cli import align
from hf_vanilla_transformer.translation.model_loading import load
from tests.number_alignment import english, german, gold, spell
from tests.translation.test_alignment import FOLDER


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
        (["a", "b", "--gold_file", "TWO"], r".*two\.txt has 2 lines, but there are 1 pairs; give one line per pair"),
        (
            ["forty two", "zwei und vierzig", "--gold_file", "ONE"],
            r".*one\.txt, line 1 links 2-2, but its pair has 2 source and 3 target words; links count from 0",
        ),
        (["a", "b c", "--gold_file", "FAR"], r".*far\.txt, line 1 links 0-2, but its pair has 1 source and 2 target"),
        (["a", "b", "--split", "test"], "split is test, but has no effect on pairs that are given as arguments"),
        (["a", "b", "--output", "nowhere/links"], "nowhere does not exist; create the folder"),
    ],
)
def test_wrong_arguments(write, arguments, message):
    texts = {"bad": "0-0 1/2\n", "two": "0-0\n0-0\n", "one": "1-1 1-2 2-2\n", "far": "0-0 0p2\n"}
    names = {"GOLD": "bad", "TWO": "two", "ONE": "one", "FAR": "far"}
    paths = {name: str(write(f"{file}.txt", texts[file])) for name, file in names.items()}
    with pytest.raises(SystemExit, match=f"error: {message}"):
        align.main(["--model_name_or_path", str(FOLDER), *(paths.get(each, each) for each in arguments)])


def test_a_wrong_gold_file_raises_before_the_output_is_written(write, tmp_path):
    output = tmp_path / "links.txt"
    output.write_text("old\n")
    gold = ["--gold_file", str(write("two.txt", "0-0\n0-0\n"))]
    with pytest.raises(SystemExit, match="has 2 lines, but there are 1 pairs"):
        align.main(["--model_name_or_path", str(FOLDER), "a", "b", *gold, "--output", str(output)])
    assert output.read_text() == "old\n"


@pytest.mark.parametrize("pair", [("forty two", ""), ("", "zwei und vierzig"), ("forty two", "zwei und vierzig")])
def test_a_choice_without_evidence_writes_nothing(pair, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "model")
    before = (folder / "config.json").read_bytes()
    with pytest.raises(SystemExit, match=r"error: all \d+ candidates cost \d\.\d+, so these pairs \(1\) show no best"):
        align.main(["--model_name_or_path", str(folder), *pair, "--choose"])
    assert (folder / "config.json").read_bytes() == before


def test_choosing_for_a_model_of_the_hub():
    with pytest.raises(SystemExit, match=r"choose writes config\.json, but user/name is no local folder; copy it"):
        align.main(["--model_name_or_path", "user/name", "a", "b", "--choose"])
