"""The two names of the cache: `cache` in transformers 5.24 and later, `past_key_values` before."""

import warnings
from inspect import signature

import torch
from transformers import Cache, GenerationMixin


# What the installed transformers calls it, in `generate()` and in the outputs of models.
CACHE = "past_key_values"
if "cache" in signature(GenerationMixin.prepare_inputs_for_generation).parameters:
    CACHE = "cache"


def either_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that a caller gave by one of its names; by the earlier one with a warning, as transformers gives it.

    Raises:
        ValueError: if both are given.
    """
    if past_key_values is None:
        return cache
    if cache is not None:
        raise ValueError("cache and past_key_values are two names of one argument; give one of them.")
    if CACHE == "cache" and not torch.compiler.is_compiling():
        message = "`past_key_values` is deprecated since transformers 5.24; call the argument `cache`."
        warnings.warn(message, FutureWarning, stacklevel=2)
    return past_key_values
