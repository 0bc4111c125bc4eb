"""benchmarks/marian_positions.py joins sentences, and compares the positions of a model of Marian."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import marian_positions


pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "marian" / "tied_relu"


def test_sentences_are_joined():
    assert marian_positions.join(["a", "b", "c", "d", "e"], [2, 1, 2]) == ["a b", "c", "d e"]
    assert marian_positions.join(["a", "b", "c"], [2, 2]) == ["a b", "c"]


def test_the_corpus_of_training_has_all_sentences_alone_and_joined(monkeypatch):
    monkeypatch.setattr(marian_positions, "PASSES", 3)
    sources = [f"s{number}" for number in range(40)]
    sides = marian_positions.mixed(sources, [source.replace("s", "t") for source in sources])
    assert [line.replace("s", "t") for line in sides[0]] == sides[1]
    lengths = [len(line.split()) for line in sides[0]]
    assert (lengths.count(1) >= 3 * 20, max(lengths) > 4, max(lengths) <= 8) == (True, True, True)
    assert sorted(" ".join(sides[0]).split()) == sorted(sources * 3)


@pytest.mark.skipif(find_spec("sentencepiece") is None, reason="needs sentencepiece")
def test_positions_are_compared(tmp_path, capsys):
    expected = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))
    files = [tmp_path / "test.en", tmp_path / "test.de"]
    for path, lines in zip(files, (expected["sentences"], expected["beam"]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ["--source_file", str(files[0]), "--target_file", str(files[1]), "--joined", "1", "4"]
    figures = marian_positions.main(["compare", "--folder", str(FIXTURE), *options])
    assert {count: row["lines"] for count, row in figures.items()} == {"1": 20, "4": 5}
    assert all(0 < row["same"] <= row["lines"] for row in figures.values())
    assert figures["4"]["tokens"] > 3 * figures["1"]["tokens"]
    # The references are the model's own translations; it was trained on single numbers.
    assert figures["1"]["marian"]["chrf"] > 95 > figures["4"]["marian"]["chrf"]
    assert figures["1"]["hf"] != figures["1"]["marian"]
    assert "| sentences per line | lines |" in capsys.readouterr().out
    for modes, message in (([], "the mode is missing; give one of train, compare"), (["run"], "the mode is run; give")):
        with pytest.raises(SystemExit, match=message):
            marian_positions.main([*modes, "--folder", "x", *options])
