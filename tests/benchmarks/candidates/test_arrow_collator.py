"""benchmarks/candidates/arrow_collator.py gives the batches of the stock collator, bit by bit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, List, Value, concatenate_datasets
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from benchmarks.candidates.arrow_collator import from_arrow
from hf_vanilla_transformer import tokenize_pairs


FIXTURE = Path(__file__).parents[2] / "fixtures" / "numbers_tiny"
PAIRS = 60


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


def sentences(seed, longest):
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 50, length).tolist() for length in generator.integers(1, longest, PAIRS)]


def random_pairs(token="int64"):
    features = Features({name: List(Value(token)) for name in ("input_ids", "labels")})
    return Dataset.from_dict({"input_ids": sentences(0, 20), "labels": sentences(1, 30)}, features=features)


def tokenized_text(tokenizer):
    numbers = ["one", "two hundred and seven", "forty-two", "nine thousand"] * 15
    return tokenize_pairs(Dataset.from_dict({"source": numbers, "target": numbers[::-1]}), tokenizer)


DATA = {
    "random": lambda tokenizer: random_pairs(),
    "int32": lambda tokenizer: random_pairs("int32"),
    "text": tokenized_text,
    "selected": lambda tokenizer: random_pairs().select(range(59, 0, -2)),
    "shuffled": lambda tokenizer: random_pairs().shuffle(seed=0),
    "slice": lambda tokenizer: random_pairs().select(range(13, 40)),
    "chunks": lambda tokenizer: concatenate_datasets([random_pairs(), random_pairs().select(range(7, 20))]),
}


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert torch.equal(actual[name], tensor)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("with_model", [True, False])
def test_batches_are_those_of_the_stock_collator(name, with_model, tokenizer, model):
    data = DATA[name](tokenizer)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model if with_model else None)
    pairs, tensors = from_arrow(data, collator)
    assert len(pairs) == len(data)
    generator = np.random.default_rng(3)
    batches = [generator.permutation(len(data))[:count].tolist() for count in (1, 2, 7, 25)]
    for batch in batches:
        expected = collator(data.__getitems__(batch))
        assert_same(tensors(pairs.__getitems__(batch)), expected)
        assert all(tensor.is_contiguous() for tensor in tensors(pairs.__getitems__(batch)).values())


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_loader_of_torch(workers, tokenizer, model):
    data = random_pairs()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    pairs, tensors = from_arrow(data, collator)
    batches = [[5, 2, 9], [0], [59, 1]]
    loader = DataLoader(pairs, batch_sampler=batches, collate_fn=tensors, num_workers=workers)
    for actual, batch in zip(loader, batches, strict=True):
        assert_same(actual, collator(data.__getitems__(batch)))


def test_the_tokens_are_not_copied(tokenizer):
    data = random_pairs()
    pairs, _ = from_arrow(data, DataCollatorForSeq2Seq(tokenizer))
    assert not pairs.source.tokens.flags.owndata


class OtherCollator(DataCollatorForSeq2Seq):
    pass


def test_other_collators_and_datasets_are_left_alone(tokenizer):
    data = random_pairs()
    stock = DataCollatorForSeq2Seq(tokenizer)
    assert from_arrow(data, stock) is not None
    others = [
        OtherCollator(tokenizer),
        DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8),
        DataCollatorForSeq2Seq(tokenizer, padding="max_length", max_length=40),
        DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=0),
        DataCollatorForSeq2Seq(tokenizer, return_tensors="np"),
    ]
    for collator in others:
        assert from_arrow(data, collator) is None
    other_data = [
        data.add_column("weight", [1.0] * PAIRS),
        data.with_format("torch"),
        data.select_columns(["labels"]),
        Dataset.from_dict({"input_ids": [[1], None], "labels": [[1], [2]]}),
        data.to_iterable_dataset(),
    ]
    for dataset in other_data:
        assert from_arrow(dataset, stock) is None


def test_padding_on_the_left_is_left_alone(tokenizer):
    other = AutoTokenizer.from_pretrained(FIXTURE, padding_side="left")
    assert from_arrow(random_pairs(), DataCollatorForSeq2Seq(other)) is None
