"""Cleaning and holding out, compared with plain Python: sets, `str`, and SipHash from its paper."""

import tracemalloc
from math import sqrt

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.data import cleaning
from hf_vanilla_transformer.data.cleaning import clean_pairs, drop_long_pairs, held_out_size, hold_out
from hf_vanilla_transformer.data.cleaning_rules import CLEANING_RULES


RULES = (
    "duplicates",
    "identical sides",
    "empty on one side",
    "in the test or validation pairs",
    "long lines",
    "length ratio",
)
# Few texts, so that rules meet: equal and blank ones, lengths from 0 to 200 characters, and the limit of 4,192 bytes.
TEXTS = st.sampled_from(
    [
        *("", " ", "\u2003", "a", "a ", "\x1fa", "ä\u0308", "日本", "b" * 12, "b" * 60, "c" * 200),
        *("d" * 4192, "d" * 4193, "ä" * 2096, "ä" * 2097),
    ]
) | st.text(max_size=6)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=25)


def dataset(pairs) -> Dataset:
    features = Features({"source": Value("string"), "target": Value("string")})
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    return Dataset.from_dict({"source": sources, "target": targets}, features=features)


def rows(pairs: Dataset) -> list[tuple[str, str]]:
    return list(zip(pairs["source"][:], pairs["target"][:], strict=True))


def clean(pairs, evaluated, skip=()):
    """Indices of the pairs that remain, and the number that each rule removes."""
    counts = {rule: 0 for rule in RULES if rule not in skip}
    remaining, seen = [], set()
    for index, (source, target) in enumerate(pairs):
        applies = {
            "duplicates": (source, target) in seen,
            "identical sides": source.strip() == target.strip(),
            "empty on one side": not source.strip() or not target.strip(),
            "in the test or validation pairs": (source, target) in evaluated,
            "long lines": len(source.encode()) > 4192 or len(target.encode()) > 4192,
        }
        seen.add((source, target))
        rules = [rule for rule in counts if applies.get(rule)]
        if rules:
            counts[rules[0]] += 1
        else:
            remaining.append(index)
    while remaining and "length ratio" in counts:
        lengths = {index: [len(text.strip()) for text in pairs[index]] for index in remaining}
        # If "empty on one side" is skipped, pairs without text on a side stay.
        lengths = {index: sides for index, sides in lengths.items() if min(sides) > 0}
        if not lengths:
            break
        scale = sqrt(sum(target for _, target in lengths.values()) / sum(source for source, _ in lengths.values()))
        fits = []
        for index, (source, target) in lengths.items():
            shorter, longer = sorted([source * scale, target / scale])
            ratio = (longer + 10) / (shorter + 10)
            if ratio <= 3:
                fits.append(index)
        counts["length ratio"] += len(lengths) - len(fits)
        if len(fits) == len(lengths):
            break
        remaining = [index for index in remaining if index in fits or index not in lengths]
    return remaining, counts


@settings(max_examples=200, deadline=None)
@given(PAIRS, PAIRS)
def test_clean_pairs_counts_each_rule(pairs, evaluated):
    remaining, counts = clean(pairs, evaluated)
    splits = [dataset(evaluated[::2]), dataset(evaluated[1::2])]
    if not remaining:
        with pytest.raises(
            ValueError, match=rf"no training pair of {len(pairs)} would remain: {max(counts.values())} "
        ):
            clean_pairs(dataset(pairs), splits)
        return
    cleaned, removed_counts = clean_pairs(dataset(pairs), splits)
    assert rows(cleaned) == [pairs[index] for index in remaining]
    assert removed_counts == counts
    assert list(removed_counts) == list(RULES)
    again, counts_again = clean_pairs(cleaned, splits)
    assert again is cleaned
    assert set(counts_again.values()) == {0}


@settings(max_examples=150, deadline=None)
@given(PAIRS, PAIRS, st.sets(st.sampled_from(RULES)))
def test_clean_pairs_skips_rules(pairs, evaluated, skip):
    remaining, counts = clean(pairs, evaluated, skip)
    if not remaining:
        return
    cleaned, removed_counts = clean_pairs(dataset(pairs), [dataset(evaluated)], sorted(skip))
    assert rows(cleaned) == [pairs[index] for index in remaining]
    assert removed_counts == counts


def test_cleaning_rules_are_those_that_clean_pairs_counts():
    assert tuple(clean_pairs(dataset([("one", "eins")]))[1]) == CLEANING_RULES


def test_clean_pairs_rejects_rules_in_one_string():
    with pytest.raises(ValueError, match="list of cleaning rules"):
        clean_pairs(dataset([("one", "eins")]), skip="duplicates")


def test_clean_pairs_rejects_an_unknown_rule():
    with pytest.raises(ValueError, match=r"'long'.*duplicates.*long lines"):
        clean_pairs(dataset([("one", "eins")]), skip=["long"])


def test_drop_long_pairs_counts_bytes():
    pairs = [("a", "b"), ("ä" * 2096, "b"), ("a", "ä" * 2097), ("d" * 4193, "b")]
    assert rows(drop_long_pairs(dataset(pairs))) == pairs[:2]
    with pytest.raises(ValueError, match=r"all 2 validation pairs have more than 4,192 bytes.*clean_skip"):
        drop_long_pairs(dataset(pairs[2:]))


def test_clean_pairs_removes_by_each_rule():
    pairs = [
        ("one", "eins"),
        ("two", "zwei"),
        ("one", "eins"),
        ("one", "Eins"),
        ("OK ", " OK"),
        ("", "drei"),
        ("four", "\u00a0"),
        ("five", "fünf"),
        ("six", "sechs " * 20),
        ("seven " * 1000, "sieben " * 1000),
        *((text[::-1], text) for text in ("eins", "ein Satz, der zum Verhältnis der Längen beiträgt" * 5)),
    ]
    cleaned, counts = clean_pairs(dataset(pairs), [dataset([("five", "fünf")]), dataset([("six", "fünf")])])
    assert rows(cleaned) == [pairs[index] for index in (0, 1, 3, 10, 11)]
    assert list(counts.values()) == [1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("short", "long"),
    [("OK", "Einverstanden"), ("Yes.", "Aber ja, natürlich."), ("e.g.", "zum Beispiel"), ("F1", "Hilfe aufrufen (F1)")],
)
def test_clean_pairs_keeps_short_pairs(short, long):
    ordinary = [(f"A sentence with number {number}.", f"Ein Satz mit Nummer {number}.") for number in range(20)]
    assert clean_pairs(dataset([*ordinary, (short, long), (long, short)]))[1]["length ratio"] == 0


def test_clean_pairs_scales_lengths_by_the_corpus():
    """Chinese has a third of the characters of English; a translation as long as its source is then a wrong one."""
    pairs = [("我" * length + str(length), "x" * (3 * length)) for length in range(20, 60)]
    wrong = [("我" * 90, "y" * 60), ("我" * 10, "y" * 200)]
    cleaned, counts = clean_pairs(dataset([*pairs, *wrong]))
    assert rows(cleaned) == pairs
    assert counts["length ratio"] == 2
    swapped = clean_pairs(dataset([pair[::-1] for pair in (*pairs, *wrong)]))[0]
    assert rows(swapped) == [pair[::-1] for pair in pairs]


def test_clean_pairs_rejects_two_copies_of_one_file():
    with pytest.raises(ValueError, match="no training pair of 3 would remain: 2 identical sides; give other pairs"):
        clean_pairs(dataset([("a", "a"), ("a", "a"), ("b", "b")]))


def test_clean_pairs_keeps_other_columns():
    numbers = load_pairs("numbers", train_size=50, max_digits=3)["train"]
    cleaned, counts = clean_pairs(numbers.select([0, 1, 1, *range(2, 50)]))
    assert counts["duplicates"] == 1
    assert cleaned.to_list() == numbers.to_list()
    train, validation = hold_out(numbers, 5)
    assert (len(train), len(validation)) == (45, 5)
    assert sorted(train["number"][:] + validation["number"][:]) == sorted(numbers["number"])


@pytest.fixture
def loaded(write) -> Dataset:
    lines = [f"line {number % 70} of the file" for number in range(100)]
    files = [write("a.en", "\n".join(lines)), write("a.de", "\n".join(lines).upper())]
    return load_pairs(train_files=files)["train"]


def test_clean_pairs_keeps_memory_mapped_pairs_on_disk(loaded):
    cleaned, counts = clean_pairs(loaded)
    assert (len(cleaned), counts["duplicates"]) == (70, 30)
    parts = hold_out(cleaned, 7)
    assert [len(part) for part in parts] == [63, 7]
    for part in (cleaned, *parts):
        assert part.cache_files == loaded.cache_files
        assert type(part.data) is type(loaded.data)


def test_clean_pairs_in_chunks_and_of_selected_rows(loaded, monkeypatch):
    chosen = loaded.select([5, 75, 3, 99, 2, 5, 29])
    whole = [clean_pairs(loaded)[1], rows(hold_out(loaded, 20)[1])]
    monkeypatch.setattr(cleaning, "_ROWS_AT_ONCE", 3)
    assert [clean_pairs(loaded)[1], rows(hold_out(loaded, 20)[1])] == whole
    for pairs in (
        chosen,
        loaded.select(range(10, 90)),
        loaded.select(range(10, 90)).select([0, 79, 9, 70]),
        loaded.shuffle(seed=0),
    ):
        remaining, counts = clean(rows(pairs), [])
        cleaned, removed_counts = clean_pairs(pairs)
        assert rows(cleaned) == [rows(pairs)[index] for index in remaining]
        assert removed_counts == counts


def test_hold_out_is_the_same_in_every_process(loaded):
    """So tokenized pairs of the cache are found again."""
    assert clean_pairs(loaded)[0]._fingerprint == clean_pairs(loaded)[0]._fingerprint


def test_clean_pairs_memory_per_pair():
    numbers = np.arange(100_000)
    pairs = dataset([(f"source {number}", f"target {number % 40_000}") for number in [*numbers[1:], 7]])
    tracemalloc.start()
    cleaned, _ = clean_pairs(pairs)
    hold_out(cleaned, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The largest part is a list of indices that datasets makes, 40 bytes per pair.
    assert peak / len(pairs) < 120


def test_clean_pairs_with_large_strings():
    pairs = dataset([("one", "eins"), ("one", "eins"), ("two", "two")]).cast_column("target", Value("large_string"))
    assert list(clean_pairs(pairs)[1].values()) == [1, 1, 0, 0, 0, 0]


def sip_hash(text: str) -> int:
    """SipHash-2-4 (Aumasson and Bernstein 2012) with pandas' key, then splitmix64's mixing, which pandas adds."""
    mask, data = (1 << 64) - 1, text.encode()
    key = [int.from_bytes(b"0123456789123456"[place : place + 8], "little") for place in (0, 8)]
    v = [
        key[0] ^ 0x736F6D6570736575,
        key[1] ^ 0x646F72616E646F6D,
        key[0] ^ 0x6C7967656E657261,
        key[1] ^ 0x7465646279746573,
    ]

    def rotated(value, bits):
        return (value << bits | value >> (64 - bits)) & mask

    def rounds(count):
        for _ in range(count):
            for a, b, bits in ((0, 1, 13), (2, 3, 16)):
                v[a] = (v[a] + v[b]) & mask
                v[b] = rotated(v[b], bits) ^ v[a]
            v[0] = rotated(v[0], 32)
            for a, b, bits in ((2, 1, 17), (0, 3, 21)):
                v[a] = (v[a] + v[b]) & mask
                v[b] = rotated(v[b], bits) ^ v[a]
            v[2] = rotated(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for place in range(0, len(padded), 8):
        word = int.from_bytes(padded[place : place + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    value = v[0] ^ v[1] ^ v[2] ^ v[3]
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
    return value ^ value >> 31


def pair_hash(pair: tuple[str, str]) -> int:
    return (3 * sip_hash(pair[0]) + sip_hash(pair[1])) % 2**64


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=2, max_size=20, unique=True), st.data())
def test_hold_out_takes_the_smallest_hashes(pairs, data):
    count = data.draw(st.integers(1, len(pairs) - 1))
    train, validation = hold_out(dataset(pairs), count)
    chosen = sorted(pairs, key=pair_hash)[:count]
    assert rows(validation) == [pair for pair in pairs if pair in chosen]
    assert rows(train) == [pair for pair in pairs if pair not in chosen]
    shuffled = data.draw(st.permutations(pairs))
    assert set(rows(hold_out(dataset(shuffled), count)[1])) == set(chosen)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=2, max_size=30), st.data())
def test_hold_out_keeps_equal_pairs_together(pairs, data):
    count = data.draw(st.integers(1, len(pairs) - 1))
    first = min(pairs, key=pair_hash)
    if pairs.count(first) > count:
        with pytest.raises(
            ValueError, match=rf"^{count} of {len(pairs)} training pairs cannot be held out, .* more than {count} "
        ):
            hold_out(dataset(pairs), count)
        return
    train, validation = map(rows, hold_out(dataset(pairs), count))
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(pairs)
    # The next pair, with all its copies, would be too many.
    assert len(validation) <= count < len(validation) + train.count(min(train, key=pair_hash))


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ValueError, "count is 0; it must be at least 1"),
        (1.5, TypeError, "count is 1.5; give a whole number"),
        (2, ValueError, "2 of 2 training pairs are too many to hold out"),
        (3, ValueError, "3 of 2 training pairs are too many to hold out"),
    ],
)
def test_hold_out_rejects_counts(count, error, message):
    with pytest.raises(error, match=message):
        hold_out(dataset([("a", "b"), ("c", "d")]), count)


def test_held_out_size_by_corpus_size():
    sizes = [0, 1, 2, 50, 99, 100, 29_000, 49_999, 50_000, 5_000_000]
    assert [held_out_size(size) for size in sizes] == [0, 0, 1, 1, 1, 2, 580, 999, 1000, 1000]


@pytest.mark.parametrize("function", [clean_pairs, lambda pairs: hold_out(pairs, 1)])
def test_cleaning_rejects_data_without_pairs(function):
    with pytest.raises(TypeError, match=r"the pairs are in a DatasetDict; give a datasets\.Dataset"):
        function(DatasetDict(train=dataset([("a", "b")])))
    with pytest.raises(ValueError, match="have the columns source; they need source and target"):
        function(Dataset.from_dict({"source": ["a"]}))
    with pytest.raises(ValueError, match="they need source and target"):
        function(Dataset.from_dict({"source": ["a", "b"], "target": [1, 2]}))
    with pytest.raises(ValueError, match=r"no training pair of 0 would remain|1 of 0 training pairs are too many"):
        function(dataset([]))


def assert_cleans_as_plain_python(folder, languages, splits):
    files = {
        f"{split}_files": [folder / f"{name}.{language}" for language in languages] for split, name in splits.items()
    }
    pairs = load_pairs(**files)
    evaluated = [pairs[split] for split in pairs if split != "train"]
    cleaned, counts = clean_pairs(pairs["train"], evaluated)
    remaining, expected = clean(rows(pairs["train"]), {pair for split in evaluated for pair in rows(split)})
    assert counts == expected
    assert rows(cleaned) == rows(pairs["train"].select(remaining))
    return list(counts.values())


def test_clean_pairs_on_multi30k(multi30k):
    splits = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    assert assert_cleans_as_plain_python(multi30k, ("en", "de"), splits) == [3, 0, 0, 0, 0, 2]
    splits_of_french = {"train": "train", "validation": "val"}
    assert assert_cleans_as_plain_python(multi30k, ("en", "fr"), splits_of_french) == [5, 0, 0, 1, 0, 0]


def test_clean_pairs_on_libreoffice_help(libreoffice_help):
    splits = {"train": "train", "validation": "val"}
    counts = assert_cleans_as_plain_python(libreoffice_help, ("en", "de"), splits)
    assert counts == [0, 0, 0, 0, 0, 15]
    assert assert_cleans_as_plain_python(libreoffice_help, ("de", "en"), splits) == counts


def test_clean_pairs_on_localization(localization):
    """Messages and manuals of free software: half of the pairs are short strings, and many are equal on both sides."""
    splits = {"train": "train", "validation": "val"}
    counts = assert_cleans_as_plain_python(localization, ("en", "de"), splits)
    assert counts == [0, 4607, 0, 0, 0, 6]
