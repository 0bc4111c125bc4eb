from collections import Counter

import pytest
from num2words import num2words

from hf_vanilla_transformer import load_pairs


SMALL = {"train_size": 900, "validation_size": 60, "test_size": 200}


@pytest.fixture(scope="module")
def pairs():
    return load_pairs("numbers", **SMALL)


def test_number_pairs_sizes(pairs):
    assert {name: len(split) for name, split in pairs.items()} == {"train": 900, "validation": 60, "test": 200}


def test_splits_have_no_number_in_common(pairs):
    numbers = [number for split in pairs.values() for number in split["number"]]
    assert len(numbers) == len(set(numbers)) == 1160


def test_words_are_those_of_num2words(pairs):
    for row in pairs["test"]:
        assert row["source"] == num2words(row["number"], lang="en")
        assert row["target"] == num2words(row["number"], lang="de")


def test_training_numbers_are_drawn_evenly_by_length(pairs):
    digits = Counter(len(str(number)) for number in pairs["train"]["number"])
    assert digits[1] <= 10
    assert digits[2] <= 90
    assert all(100 <= digits[length] <= 125 for length in range(3, 10))


def test_half_of_the_test_numbers_are_long(pairs):
    digits = Counter(len(str(number)) for number in pairs["test"]["number"])
    assert digits[7] + digits[8] + digits[9] == 100
    assert digits[1] <= 1
    assert digits[2] <= 9


def test_same_seed_same_numbers(pairs):
    assert load_pairs("numbers", **SMALL)["train"]["number"][:] == pairs["train"]["number"][:]
    assert load_pairs("numbers", **SMALL, seed=1)["train"]["number"][:] != pairs["train"]["number"][:]


def test_test_numbers_do_not_depend_on_the_training_size(pairs):
    fewer = load_pairs("numbers", **{**SMALL, "train_size": 9})
    assert fewer["test"]["number"][:] == pairs["test"]["number"][:]


def test_few_numbers_give_few_pairs():
    pairs = load_pairs("numbers", max_digits=2, train_size=1000)
    numbers = sorted(number for split in pairs.values() for number in split["number"])
    assert set(numbers) <= set(range(100))
    assert len(numbers) == len(set(numbers))
    assert len(pairs["train"]) >= 90


def test_number_pairs_in_other_languages():
    pairs = load_pairs("numbers", source="fr", target="pl", **SMALL)
    row = pairs["train"][0]
    assert row["source"] == num2words(row["number"], lang="fr")
    assert row["target"] == num2words(row["number"], lang="pl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "tlh"}, 'num2words has no language "tlh"; use one of: am, ar, '),
        ({"source": "de"}, 'source and target language are both "de"'),
        ({"train_size": 0}, "train_size is 0; it must be at least 1"),
        ({"test_size": -5}, "test_size is -5; it must be at least 0"),
        ({"max_digits": 20}, "max_digits is 20; it must lie between 1 and 18"),
    ],
)
def test_number_pairs_rejects_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_pairs("numbers", **arguments)


def test_number_pairs_without_num2words(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "num2words", None)
    with pytest.raises(ImportError, match=r"pip install '/path/to/this/repository\[numbers\]'"):
        load_pairs("numbers")
