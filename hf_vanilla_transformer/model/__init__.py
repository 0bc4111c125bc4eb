"""The paper's model: configuration, modules, decoding and pipeline. Every saved folder carries a copy of its files.

The two files `tokenization_*.py` travel only with such a tokenizer. All of them import the standard library, torch,
transformers, huggingface_hub and each other, and nothing else.
"""
