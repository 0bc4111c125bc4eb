"""The corpus of training comparisons, and its batches: Multi30k if it is available, generated pairs otherwise."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from benchmarks.support.random_batches import FIRST_TOKEN_ID
from benchmarks.support.training_implementations import Batch
from hf_vanilla_transformer import (
    TokenBudgetBatchSampler,
    VanillaTransformerTokenizer,
    load_pairs,
    tokenize_pairs,
    train_tokenizer,
)


BPE_SIZE = 10_000
# Fitted to Multi30k's English-German training pairs with EOS, under a joint BPE of 10,000 tokens: a log-normal source
# length with mean 15.0 and standard deviation 4.6, and the difference between target and source length.
MEDIAN_LENGTH, LOG_SPREAD, LONGEST = 14.3, 0.3, 50
MEAN_DIFFERENCE, DIFFERENCE_SPREAD = 0.4, 2.6
GENERATED_PAIRS = 29_000


@dataclass
class Corpus:
    """Tokenized pairs, a description of their origin, and their tokenizer."""

    data: Dataset
    origin: str
    tokenizer: VanillaTransformerTokenizer


def read_corpus() -> Corpus:
    """Multi30k from the folder in the environment variable MULTI30K_DIR, else random tokens of similar lengths.

    Raises:
        FileNotFoundError: if MULTI30K_DIR is set and train.en or train.de is missing.
    """
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        few = ["a small house", "ein kleines Haus"]
        tokenizer = train_tokenizer(few, vocab_size=300, show_progress=False)
        return Corpus(generate_pairs(), "generated lengths, mean 15", tokenizer)
    pairs = load_pairs(train_files=[Path(folder) / "train.en", Path(folder) / "train.de"])["train"]
    tokenizer = train_tokenizer(pairs["source"][:] + pairs["target"][:], vocab_size=BPE_SIZE, show_progress=False)
    data = tokenize_pairs(pairs, tokenizer)
    return Corpus(data, f"Multi30k en-de, joint BPE of {len(tokenizer):,} tokens", tokenizer)


def generate_pairs(count: int = GENERATED_PAIRS) -> Dataset:
    """Pairs of random tokens whose lengths have Multi30k's mean and standard deviation."""
    generator = np.random.default_rng(0)
    source = generator.lognormal(np.log(MEDIAN_LENGTH), LOG_SPREAD, count)
    target = source + generator.normal(MEAN_DIFFERENCE, DIFFERENCE_SPREAD, count)
    source, target = (side.round().astype(int).clip(4, LONGEST) for side in (source, target))
    tokens = [
        [generator.integers(FIRST_TOKEN_ID, BPE_SIZE, length).tolist() for length in lengths]
        for lengths in (source, target)
    ]
    masks = [[1] * length for length in source]
    return Dataset.from_dict({"input_ids": tokens[0], "attention_mask": masks, "labels": tokens[1]})


def corpus_batches(corpus: Corpus, tokens_per_batch: int, how_many: int) -> list[Batch]:
    """The first batches, padded to their longest sentence; from several epochs if needed."""
    sampler = TokenBudgetBatchSampler(corpus.data, tokens_per_batch)
    collate = DataCollatorForSeq2Seq(corpus.tokenizer)
    rows = list(islice(of_all_epochs(sampler), how_many))
    return [_tensors(collate([corpus.data[index] for index in batch])) for batch in rows]


def of_all_epochs(sampler: TokenBudgetBatchSampler) -> Iterator[list[int]]:
    """The batches of one epoch after another, in the order of the Trainer."""
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from sampler


def _tensors(collated: dict) -> Batch:
    return {name: torch.as_tensor(collated[name]) for name in ("input_ids", "attention_mask", "labels")}
