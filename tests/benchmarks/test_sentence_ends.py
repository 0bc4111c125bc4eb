"""benchmarks/sentence_ends.py counts ends of sentences, and the table of the docs has its figures."""

import re
from pathlib import Path

import pytest

from benchmarks import sentence_ends
from benchmarks.sentence_ends import Counts, count_own_text, ends_of


pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "translation_experiments.md"


def test_ends_are_counted_without_white_space():
    assert ends_of(["One. ", " Two.\n", "Three."]) == ends_of(["One.", "Two.", "Three."]) == {4, 8}


def test_counts_of_a_splitter(monkeypatch, tmp_path):
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "en.txt").write_text("Dr. X came.|He left.|She too.\n\nNo.\n")
    monkeypatch.setattr(sentence_ends, "TEXTS", tmp_path)
    counts = count_own_text(lambda line, language: re.findall(r"\S+ came\. He \S+|\S+\.|\S+", line), "seen", "en")
    # "Dr." is none, the end after "came." is missed.
    assert counts == Counts(right=1, wrong=2, missed=1)
    assert counts.precision == pytest.approx(100 / 3)
    assert counts.recall == pytest.approx(50)


def test_figures_of_the_page(monkeypatch, libreoffice_help):
    pytest.importorskip("sentencex")
    monkeypatch.setenv("LIBREOFFICE_HELP_DIR", str(libreoffice_help))
    names = ["sentencex", "the package"]
    section = PAGE.read_text(encoding="utf-8").partition("## Ends of sentences")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == sentence_ends.heading(names)
    assert cells[2:] == list(sentence_ends.rows(names))
