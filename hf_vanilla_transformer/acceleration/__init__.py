"""Faster implementations of the model's operations.

Importing `hf_vanilla_transformer` replaces the plain formulas in `model/` with these implementations; `replacements.py`
lists them. They need no option. Each implementation checks the device, the dtype, the sizes and the modules at every
call. If it is not faster, or does not compute the same result, it calls the plain formula.
"""
