"""Sentence pairs in, batches out."""
