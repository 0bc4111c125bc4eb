"""The cache, the keys and values of earlier tokens: its two names, and how many tokens it saves from being read.

transformers calls it `cache` since 5.24, and `past_key_values` before.
"""

import warnings
from inspect import signature

import torch
from transformers import Cache, GenerationMixin, __version__


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


def tokens_to_read(cache: Cache | None, length: int, given: int | None) -> int | None:
    """How many of the last target tokens the model must read; None for all.

    Args:
        cache (`Cache`, *optional*): of earlier tokens.
        length (`int`): target tokens so far.
        given (`int`, *optional*): what transformers' loop says; it says nothing at the first step.

    Raises:
        ValueError: if the cache holds all tokens.
        RuntimeError: if transformers leaves out tokens, and gives no cache that holds them.
    """
    if cache is None:
        if given is not None and given < length:
            # Later releases may give it another name, and the model would go on without the earlier tokens.
            raise RuntimeError(
                f"transformers {__version__} gives the cache by a name that this code does not know; install a release "
                "from 5.17 to 5.24."
            )
        return None
    if given is not None:
        return given
    past_length = int(cache.get_seq_length())
    if length <= past_length:
        raise ValueError(
            f"the cache holds {past_length} tokens, but decoder_input_ids has {length}; to continue, give all target "
            "tokens so far, at least one more than the cache holds."
        )
    return length - past_length
