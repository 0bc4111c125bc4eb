"""A trained model from an earlier version must load, and say what it said.

The model and its translations were made by tests/fixtures/make.py; making them anew is a break of compatibility.
"""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate


FOLDER = Path(__file__).parent / "fixtures" / "numbers_tiny"
EXPECTED = json.loads((FOLDER / "translations.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def loaded():
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_it_says_what_it_said(loaded, num_beams):
    model, tokenizer = loaded
    expected = EXPECTED[f"{num_beams} beams"]
    assert translate(model, tokenizer, list(expected), num_beams=num_beams) == list(expected.values())
    assert expected["forty-two"] == "zweiundvierzig"
    assert len(expected) >= 50


def test_it_was_trained(loaded):
    scores = json.loads((FOLDER / "scores.json").read_text(encoding="utf-8"))
    assert scores["exact_match"] >= 90


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000
