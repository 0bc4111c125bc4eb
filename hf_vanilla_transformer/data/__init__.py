"""Sentence pairs in, batches out."""

from .batches import TokenBudgetBatchSampler
from .lengths import filter_pairs
from .sources import load_pairs
from .tokenization import tokenize_pairs


__all__ = ["TokenBudgetBatchSampler", "filter_pairs", "load_pairs", "tokenize_pairs"]
