"""A corpus of random tokens with the lengths of ordinary text, made in a second."""

import numpy as np
import pyarrow
from datasets import Dataset
from numpy.typing import NDArray

from benchmarks.support.random_batches import FIRST_TOKEN_ID


# A log-normal source length with mean 28, and the logarithm of the ratio of target to source length.
_MEAN_LOG_LENGTH, _SPREAD_OF_LOG_LENGTH = 3.2, 0.55
_SPREAD_OF_LOG_RATIO = 0.18
_SHORTEST, _LONGEST = 2, 200


def random_corpus(pairs: int, vocab_size: int, seed: int = 0) -> Dataset:
    """Return pairs of random tokens in the columns `input_ids` and `labels`."""
    generator = np.random.default_rng(seed)
    source = np.exp(generator.normal(_MEAN_LOG_LENGTH, _SPREAD_OF_LOG_LENGTH, pairs))
    target = source * np.exp(generator.normal(0.0, _SPREAD_OF_LOG_RATIO, pairs))
    columns = {}
    for name, lengths in (("input_ids", source), ("labels", target)):
        whole_lengths = lengths.round().astype(np.int64).clip(_SHORTEST, _LONGEST)
        columns[name] = _random_lists(whole_lengths, vocab_size, generator)
    return Dataset(pyarrow.table(columns))


def _random_lists(lengths: NDArray[np.int64], vocab_size: int, generator: np.random.Generator) -> pyarrow.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = generator.integers(FIRST_TOKEN_ID, vocab_size, offsets[-1])
    return pyarrow.ListArray.from_arrays(offsets, tokens)
