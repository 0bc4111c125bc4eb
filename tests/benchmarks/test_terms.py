"""benchmarks/terms.py forces words of the references into translations."""

import json
from pathlib import Path

import pytest

from benchmarks import terms


pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"


def test_which_words_are_forced():
    reference = "Der Hund und der Schäferhund laufen, laufen im T-Shirt über 100000 Wiesen."
    assert terms.missing_words(reference, "Der Schäferhund-Hund läuft.", 2) == ["laufen", "Wiesen"]
    assert terms.missing_words(reference, "Schäferhunde laufen", 1) == ["Schäferhund"]
    assert terms.missing_words("Der Hund", "", 5) == []


def test_recall_is_of_whole_words():
    assert terms.recall([["Hund", "Katze"], [], ["Haus"]], ["Der Hund, Katzen", "Hund", "Das Haus."]) == pytest.approx(
        200 / 3
    )


def test_figures(tmp_path, capsys):
    (tmp_path / "test.en").write_text("forty-two\nseven\none hundred and one\n")
    (tmp_path / "test.de").write_text("zweiundvierzig\nachtundvierzig\neinhunderteins\n")
    output = tmp_path / "figures.json"
    figures = terms.main(
        [
            *("--model_name_or_path", str(FIXTURE), "--output", str(output), "--beams", "4", "--length_penalty", "0.6"),
            *("--test_file", str(tmp_path / "test.en"), str(tmp_path / "test.de")),
        ]
    )
    assert json.loads(output.read_text(encoding="utf-8")) == figures
    row = figures["4"]
    assert row["words"] == [[], ["achtundvierzig"], []]
    assert row["free"]["translations"] == ["zweiundvierzig", "sieben", "einhunderteins"]
    assert row["appended"]["translations"][1] == "sieben achtundvierzig"
    assert "achtundvierzig" in row["forced"]["translations"][1].split()
    assert row["forced"]["translations"][::2] == row["free"]["translations"][::2]
    assert [row[name]["recall"] for name in ("free", "appended", "forced")] == [0, 100, 100]
    assert "4 beams, forced: BLEU " in capsys.readouterr().out
