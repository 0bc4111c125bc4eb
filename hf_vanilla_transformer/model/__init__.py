"""The paper's model: its configuration, PyTorch modules, decoding and translation pipeline.

Saving a model copies these files into the saved folder, so that it can be loaded with `trust_remote_code=True` where
this package is not installed. The two files `tokenization_*.py` are copied only with a tokenizer that needs them. The
files import only the standard library, torch, transformers, huggingface_hub and each other.
"""
