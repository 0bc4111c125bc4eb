"""The files that the command of docs/pronunciation.md writes."""

from hashlib import sha256

from hf_vanilla_transformer import load_pairs
from tests.support.pronunciation_page import write_pronunciations


# The third entry differs from the second in its stress marks only. The last two are no words of letters.
ENTRIES = [
    ("read", ["R", "EH1", "D"]),
    ("read", ["R", "IY1", "D"]),
    ("read", ["R", "IY2", "D"]),
    ("abbey", ["AE1", "B", "IY0"]),
    ("o'clock", ["AH0", "K", "L", "AA1", "K"]),
    ("a.", ["EY1"]),
    ("'bout", ["B", "AW1", "T"]),
]
PRONUNCIATIONS = {"read": ["R EH D", "R IY D"], "abbey": ["AE B IY"], "o'clock": ["AH K L AA K"]}


def by_hash(words):
    return sorted(words, key=lambda word: sha256(word.encode()).hexdigest())


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_words_are_assigned_to_splits_by_their_hashes(tmp_path):
    folder = write_pronunciations(tmp_path, ENTRIES, test_words=1, validation_words=1)
    names = ("train", "validation", "test")
    pairs = load_pairs(**{f"{name}_files": folder / f"{name}.tsv" for name in names})
    test_word, validation_word, training_word = by_hash(PRONUNCIATIONS)
    assert pairs["test"]["source"][:] == [test_word]
    assert pairs["validation"]["source"][:] == [validation_word]
    assert set(pairs["train"]["source"][:]) == {training_word}


def test_training_pairs_are_without_stress_marks_and_duplicates(tmp_path):
    folder = write_pronunciations(tmp_path, ENTRIES, test_words=0, validation_words=0)
    pairs = [f"{word}\t{text}" for word in by_hash(PRONUNCIATIONS) for text in PRONUNCIATIONS[word]]
    assert lines(folder / "train.tsv") == ["source\ttarget", *pairs]


def test_test_words_have_every_pronunciation_as_a_reference(tmp_path):
    folder = write_pronunciations(tmp_path, ENTRIES, test_words=len(PRONUNCIATIONS), validation_words=0)
    words = by_hash(PRONUNCIATIONS)
    assert lines(folder / "test.tsv") == ["source\ttarget", *(f"{word}\t{PRONUNCIATIONS[word][0]}" for word in words)]
    assert lines(folder / "test_other_1.txt") == [PRONUNCIATIONS[word][-1] for word in words]
    assert lines(folder / "test_other_3.txt") == [PRONUNCIATIONS[word][0] for word in words]
