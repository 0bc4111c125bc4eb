"""The paper's model: its configuration, modules, decoding and pipeline. Every saved folder has a copy of these files.

The two files `tokenization_*.py` are copied only with a tokenizer that needs them. All files import the standard
library, torch, transformers, huggingface_hub and each other, and nothing else.
"""
