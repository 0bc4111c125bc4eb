"""Keys and values of earlier calls: those of the target's tokens grow, those of the source are computed once."""

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from .configuration_vanilla_transformer import VanillaTransformerConfig


def encoder_decoder_cache(
    config: VanillaTransformerConfig, cache: Cache | None, use_cache: bool | None
) -> EncoderDecoderCache | None:
    """A cache for both attentions of the decoder: the caller's or, with `use_cache`, a new one; otherwise None."""
    if isinstance(cache, EncoderDecoderCache):
        return cache
    if cache is None and not use_cache:
        return None
    self_attention_cache = DynamicCache(config=config) if cache is None else cache
    return EncoderDecoderCache(self_attention_cache, DynamicCache(config=config))


def extend_self_attention(
    cache: EncoderDecoderCache | None, layer_idx: int, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Append keys and values of new tokens; returns those of all tokens, `(batch, heads, past + target, d)`."""
    return (key, value) if cache is None else cache.self_attention_cache.update(key, value, layer_idx)


def stored_cross_attention(
    cache: EncoderDecoderCache | None, layer_idx: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values of the source, `(batch, heads, source, d)`; None if they are not stored yet."""
    if cache is None or not cache.is_updated.get(layer_idx):
        return None
    layer: Any = cache.cross_attention_cache.layers[layer_idx]
    layer.prefetch()  # An offloading cache may hold it on another device.
    return layer.keys, layer.values


def store_cross_attention(
    cache: EncoderDecoderCache | None, layer_idx: int, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Store keys and values of the source, `(batch, heads, source, d)`, and return them."""
    if cache is None:
        return key, value
    cache.is_updated[layer_idx] = True
    return cache.cross_attention_cache.update(key, value, layer_idx)
