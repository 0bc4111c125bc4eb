"""The masks of section 3.2.3, in the forms that transformers' attention implementations need.

Shapes have named axes, as in the model's file.
"""

import copy
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    flash_attention_mask,
    flex_attention_mask,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_checks import InputError
from .operations import replaceable


# These mask functions of transformers pass a 4D mask through unchanged, and their attention misreads it.
_PADDING_MASKS_ONLY = (flash_attention_mask, flex_attention_mask)


def mask_config(
    config: VanillaTransformerConfig, output_attentions: bool | None, *masks: torch.Tensor | None
) -> VanillaTransformerConfig:
    """The configuration that masks are made for: only eager attention returns attention weights.

    Raises:
        ValueError: if the attention implementation takes 2D masks only, and a mask has more dimensions.
    """
    if output_attentions:
        config = copy.copy(config)
        config._attn_implementation = "eager"
        return config
    name = config._attn_implementation
    takes_padding_only = ALL_MASK_ATTENTION_FUNCTIONS.get(name) in _PADDING_MASKS_ONLY
    if takes_padding_only and any(mask is not None and mask.ndim > 2 for mask in masks):
        raise InputError(
            f'a mask has more dimensions than (batch, length), but "{name}" takes padding masks only; give a 2D '
            'mask, or load the model with attn_implementation="sdpa".'
        )
    return config


def look_ahead_mask(
    config: VanillaTransformerConfig, x: torch.Tensor, attention_mask: torch.Tensor | None, cache: Any
) -> Any:
    """Section 3.2.3: the look-ahead mask with padding, in the form that the attention implementation needs.

    Args:
        config (`VanillaTransformerConfig`): of [`mask_config`].
        x (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's input.
        attention_mask (`torch.Tensor` of shape `(batch, past + target)`, *optional*): 1 for real tokens, 0 for padding.
        cache (`Cache`, *optional*): keys and values of earlier tokens.

    Raises:
        ValueError: for flex attention with a static cache.
    """
    makes_masks = ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    if makes_masks is flex_attention_mask and cache is not None and cache.is_compileable:
        # The mask reads the static cache's length during attention, when the cache has already grown.
        raise InputError(
            'flex attention does not work with a static cache; use another cache, or attn_implementation="sdpa".'
        )
    if makes_masks is flash_attention_mask and cache is not None and attention_mask is None:
        # Flash attention takes the filled length of a static cache from this mask.
        length = int(cache.get_seq_length()) + x.shape[1]
        attention_mask = torch.ones(len(x), length, dtype=torch.long, device=x.device)
    return create_causal_mask(config, x, attention_mask, cache)


@replaceable
def flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1, by transformers' flash attention, which takes the mask of the last keys for the queries'.

    That holds for the decoder's self-attention alone, so there is no plain operation.

    Args:
        module (`nn.Module`): the attention layer; its `is_causal` decides whether attention is causal, unless an
            argument of that name does.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the attention weights.

    Raises:
        ValueError: if the package is not imported.
    """
    raise InputError(
        "flash attention needs the package hf_vanilla_transformer; install it, and write "
        '`import hf_vanilla_transformer`, or load the model with attn_implementation="sdpa".'
    )
