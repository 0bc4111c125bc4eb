"""The paper's model: configuration, modules, decoding and pipeline. Every saved folder carries a copy of these files.

So they import the standard library, torch, transformers, huggingface_hub and each other, and nothing else.
"""
