"""Faster implementations of the model's operations.

Importing `hf_vanilla_transformer` puts them in the place of the plain formulas in `model/`; `replacements.py` lists
them. No option enables a fast path. Each implementation decides at every call, by the device, the dtype, the sizes and
the modules, whether it is faster and computes the same; otherwise it calls the plain formula.
"""
