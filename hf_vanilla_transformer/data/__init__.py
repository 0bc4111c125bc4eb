"""Sentence pairs in, batches out."""

from .batches import TokenBudgetBatchSampler
from .sources import load_pairs
from .tokenization import tokenize_pairs


__all__ = ["TokenBudgetBatchSampler", "load_pairs", "tokenize_pairs"]
