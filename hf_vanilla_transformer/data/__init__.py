"""Sentence pairs in, batches out."""

from .sources import load_pairs
from .tokenization import tokenize_pairs


__all__ = ["load_pairs", "tokenize_pairs"]
