"""The KV cache: its two names in transformers, and its use by both attentions of the decoder.

The cache, the keys and values of earlier tokens, is `cache` since transformers 5.24, and `past_key_values` before.
"""

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from transformers import GenerationMixin, __version__
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from .input_error import InputError


# The cache's name in the installed transformers, in `generate()` and in the outputs of models.
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
        raise InputError("cache and past_key_values are two names of one argument; give one of them.")
    if CACHE == "cache" and not torch.compiler.is_compiling():
        message = "`past_key_values` is deprecated since transformers 5.24; call the argument `cache`."
        warnings.warn(message, FutureWarning, stacklevel=2)
    return past_key_values


def tokens_to_read(cache: Cache | None, length: int, given: int | None) -> int | None:
    """How many of the last target tokens the model must read; None for all.

    Args:
        cache (`Cache`, *optional*): of earlier tokens.
        length (`int`): target tokens so far.
        given (`int`, *optional*): the value that transformers' loop passes; None at the first step.

    Raises:
        ValueError: if the cache holds all tokens.
        RuntimeError: if transformers leaves out tokens, and gives no cache that holds them.
    """
    if cache is None:
        if given is not None and given < length:
            # Later releases may give it another name, and the model would continue without the earlier tokens.
            raise RuntimeError(
                f"transformers {__version__} gives the cache by a name that this code does not know; install a release "
                "from 5.17 to 5.24."
            )
        return None
    if given is not None:
        return given
    past_length = int(cache.get_seq_length())
    if length <= past_length:
        raise InputError(
            f"the cache holds {past_length} tokens, but decoder_input_ids has {length}; to continue, give all target "
            "tokens so far, at least one more than the cache holds."
        )
    return length - past_length


def encoder_decoder_cache(stack: Any, cache: Cache | None, use_cache: bool | None) -> EncoderDecoderCache | None:
    """A cache for both attentions of the decoder: the caller's or, with `use_cache`, a new one; otherwise None.

    Raises:
        ValueError: for the caller's cache in training with gradient checkpointing, where no cache is made either.
    """
    config, is_checkpointing = stack.config, stack.gradient_checkpointing and stack.training and torch.is_grad_enabled()
    if cache is None and (is_checkpointing or not (config.use_cache if use_cache is None else use_cache)):
        return None
    if is_checkpointing:
        # The second time, during backward, would extend the cache again.
        raise InputError(
            "gradient checkpointing computes layers twice, which would extend the cache twice; leave the cache "
            "out, or call the model under torch.no_grad()."
        )
    if isinstance(cache, EncoderDecoderCache):
        return cache
    self_attention_cache = DynamicCache(config=config) if cache is None else cache
    return EncoderDecoderCache(self_attention_cache, DynamicCache(config=config))


def keys_values_of_source(
    cache: EncoderDecoderCache | None, layer_idx: int, project: Callable, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the source, `(batch, heads, source, d)`: of the cache, or else computed, and stored there.

    Args:
        cache (`EncoderDecoderCache`, *optional*): of this source.
        layer_idx (`int`): the layer's number.
        project (`Callable`): computes keys and values from states.
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
    """
    if cache is None:
        return project(states)
    if not cache.is_updated.get(layer_idx):
        cache.is_updated[layer_idx] = True
        key, value = cache.cross_attention_cache.update(*project(states), layer_idx)
        layer: Any = cache.cross_attention_cache.layers[layer_idx]
    else:
        layer = cache.cross_attention_cache.layers[layer_idx]
        layer.prefetch()  # An offloading cache may hold it on another device.
        key, value = layer.keys, layer.values
    if layer.is_compileable:
        # A static cache may be longer than the source; without a mask, queries would attend to its zeros.
        key, value = (each[:, :, : states.shape[1]] for each in (key, value))
    return key, value
