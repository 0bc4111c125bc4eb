"""Removing pairs that are empty or too long."""

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hf_vanilla_transformer import TokenBudgetBatchSampler, filter_pairs, load_pairs, tokenize_pairs


PAIRS = [
    ("a small house", "ein kleines Haus"),
    ("", "zwei"),
    ("two houses", "  \t "),
    ("a", "zwei kleine Häuser " * 9),
    (" \t", "ein kleines Haus"),
    ("\u3042", "ä"),
    ("x" * 90, " "),
    ("</s>", "zwei"),
]
# The last but one is too long, too.
REMAINING, EMPTY, LONG = [0, 5, 7], 3, 2
MOST = 30


@pytest.fixture
def data(tokenizer):
    return tokenize_pairs(Dataset.from_list([{"source": a, "target": b} for a, b in PAIRS]), tokenizer)


def rows(data):
    return data["input_ids"][:], data["labels"][:]


def test_filter_pairs_counts_empty_and_too_long(data, tokenizer):
    remaining, removed = filter_pairs(data, tokenizer, MOST)
    assert removed == {"empty": EMPTY, "too long": LONG}
    assert rows(remaining) == rows(data.select(REMAINING))
    assert len(remaining) + sum(removed.values()) == len(data)


def test_filter_pairs_at_the_limit(data, tokenizer):
    longest = max(len(ids) for column in rows(data) for ids in column)
    assert filter_pairs(data, tokenizer, longest)[1] == {"empty": EMPTY + 1, "too long": 0}
    assert filter_pairs(data, tokenizer, longest - 1)[1] == {"empty": EMPTY, "too long": 1}


def test_filter_pairs_without_a_limit(data, tokenizer):
    remaining, removed = filter_pairs(data, tokenizer)
    assert removed == {"empty": EMPTY + 1, "too long": 0}
    assert len(remaining) == len(data) - EMPTY - 1
    with pytest.raises(ValueError, match="none of the 2 pairs would remain: 2 are empty on one side and 0 longer"):
        filter_pairs(Dataset.from_dict({"input_ids": [[2], [2]], "labels": [[50], [50]]}), tokenizer)


def test_filter_pairs_in_chunks(data, tokenizer, monkeypatch):
    whole, removed = filter_pairs(data, tokenizer, MOST)
    monkeypatch.setattr("hf_vanilla_transformer.data.length_filter._ROWS_AT_ONCE", 3)
    parts, again = filter_pairs(data, tokenizer, MOST)
    assert rows(parts) == rows(whole)
    assert again == removed


def test_filter_pairs_of_selected_rows(data, tokenizer):
    order = [6, 0, 1, 7, 3, 5, 2]
    remaining, removed = filter_pairs(data.select(order), tokenizer, MOST)
    assert rows(remaining) == rows(data.select([0, 7, 5]))
    assert removed == {"empty": 2, "too long": 2}


def test_filter_pairs_with_missing_and_unknown_tokens(tokenizer):
    end = tokenizer.eos_token_id
    data = Dataset.from_dict({"input_ids": [None, [], [end], [10**6, end]], "labels": [[50]] * 4})
    remaining, removed = filter_pairs(data, tokenizer, MOST)
    assert removed == {"empty": 3, "too long": 0}
    assert rows(remaining) == ([[10**6, end]], [[50]])


def test_filter_pairs_returns_the_same_data_if_all_fit(data, tokenizer):
    fitting = data.select(REMAINING)
    remaining, removed = filter_pairs(fitting, tokenizer, MOST)
    assert remaining is fitting
    assert removed == {"empty": 0, "too long": 0}


def test_filter_pairs_makes_data_for_a_sampler(data, tokenizer):
    with pytest.raises(ValueError, match="longer than tokens_per_batch, which is 30"):
        TokenBudgetBatchSampler(data, MOST)
    remaining, _ = filter_pairs(data, tokenizer, MOST)
    assert sorted(index for batch in TokenBudgetBatchSampler(remaining, MOST) for index in batch) == [0, 1, 2]


def test_filter_pairs_keeps_the_format(data, tokenizer):
    remaining, _ = filter_pairs(data.with_format("torch", columns=["labels"]), tokenizer, MOST)
    assert remaining.format["type"] == "torch"
    assert remaining[0]["labels"].tolist() == data[0]["labels"]


def test_filter_pairs_reuses_indices_on_disk(write, tokenizer):
    files = [write("a.en", "".join(f"{source}\n" for source, _ in PAIRS))]
    files.append(write("a.de", "".join(f"{target}\n" for _, target in PAIRS)))
    data = tokenize_pairs(load_pairs(train_files=files), tokenizer)["train"]
    before = set(files[0].parent.rglob("*.arrow"))
    used = set()
    for limit, expected in ((MOST, REMAINING), (MOST, REMAINING), (MOST + 1, None), (4, None)):
        remaining, removed = filter_pairs(data, tokenizer, limit)
        fitting = [row for row, (a, b) in enumerate(zip(*rows(data), strict=True)) if max(len(a), len(b)) <= limit]
        fitting = [row for row in fitting if all(side.strip() for side in PAIRS[row])]
        assert expected in (None, fitting)
        assert rows(remaining) == rows(data.select(fitting))
        assert len(data) - sum(removed.values()) == len(fitting)
        # The tokens, and the indices of the remaining pairs.
        assert len(remaining.cache_files) == 2
        used |= {Path(file["filename"]) for file in remaining.cache_files}
    # The same limit twice reuses its indices.
    assert len(set(files[0].parent.rglob("*.arrow")) - before) == len(used - before) == 3


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "max_tokens is 0; it must be at least 1"),
        (2.5, TypeError, "max_tokens is 2.5; give a whole number"),
        (1, ValueError, r"none of the 8 .*: 0 are empty on one side and 8 longer than 1 tokens; raise max_tokens"),
    ],
)
def test_filter_pairs_rejects_limits(data, tokenizer, limit, error, message):
    with pytest.raises(error, match=message):
        filter_pairs(data, tokenizer, limit)


def test_filter_pairs_rejects_several_splits(data, tokenizer):
    with pytest.raises(TypeError, match=r"in a DatasetDict; give a datasets\.Dataset, such as load_pairs"):
        filter_pairs(DatasetDict(train=data, test=data), tokenizer, 9)


def test_filter_pairs_rejects_data_that_is_not_tokenized(tokenizer):
    with pytest.raises(ValueError, match="tokenize_pairs"):
        filter_pairs(Dataset.from_dict({"source": ["a"], "target": ["b"]}), tokenizer, MOST)
