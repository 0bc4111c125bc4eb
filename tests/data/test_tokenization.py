import pytest
from datasets import Dataset, DatasetDict

from hf_vanilla_transformer import tokenize_pairs


PAIRS = Dataset.from_list([{"number": 1, "source": "a small house", "target": "zwei"}])


def test_columns_of_a_trainer(tokenizer):
    row = tokenize_pairs(PAIRS, tokenizer)[0]
    assert set(row) == {"input_ids", "attention_mask", "labels"}
    assert row["input_ids"] == tokenizer("a small house").input_ids
    assert row["labels"] == tokenizer("zwei").input_ids
    assert row["labels"][-1] == tokenizer.eos_token_id


def test_a_missing_column(tokenizer):
    with pytest.raises(ValueError, match="the pairs have the columns number, source; they need source and target"):
        tokenize_pairs(PAIRS.remove_columns("target"), tokenizer)


def test_every_split(tokenizer):
    tokenized = tokenize_pairs(DatasetDict({"train": PAIRS, "test": PAIRS.remove_columns("number")}), tokenizer)
    assert tokenized["train"][0] == tokenized["test"][0] == tokenize_pairs(PAIRS, tokenizer)[0]
