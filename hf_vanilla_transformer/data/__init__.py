"""Sentence pairs in, batches out: sources, the number corpus, tokenizer, filter and token-budget batches."""
