"""The masks of section 3.2.3, and flash attention, in the forms that transformers' attention implementations need.

Shapes have named axes, as in the model's file.
"""

import copy
from typing import Any

import torch
from torch import nn
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    flash_attention_mask,
    flex_attention_mask,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_checks import InputError


# These mask functions of transformers pass a 4D mask through unchanged, and their attention misreads it.
_PADDING_MASKS_ONLY = (flash_attention_mask, flex_attention_mask)
# Flash attention computes float32 input in this dtype.
_FLASH_DTYPE = torch.bfloat16


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


def is_causal(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether attention without a mask is to earlier keys only: as an argument says, or else the attention layer."""
    argument = arguments.get("is_causal")
    if argument is not None:
        return bool(argument)
    return bool(module.is_causal)


def flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1, by transformers' flash attention.

    transformers assumes that the mask of the last keys is the mask of the queries, which holds for the decoder's
    self-attention. For other attention, this function passes the keys and values of real tokens only, and where each
    sentence begins. It computes float32 input, as where the Trainer generates with bfloat16, in bfloat16, because flash
    attention supports 16-bit dtypes only.

    Args:
        module, query, key, value: as [`attention`] takes them.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the attention weights.
    """
    dtype, is_wide = query.dtype, query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if is_wide:
        query, key, value = (each.to(_FLASH_DTYPE) for each in (query, key, value))
    wider_value = value.shape[-1] - query.shape[-1]
    if wider_value > 0:
        # Flash attention has one width for d_k and d_v. Zeros add nothing to a dot product.
        query, key = (nn.functional.pad(each, (0, wider_value)) for each in (query, key))
    if attention_mask is None or is_causal(module, kwargs):
        heads, _ = flash_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return heads.to(dtype) if is_wide else heads, None
    batch, _, target, _ = query.shape
    boundaries: dict[str, Any] = {
        "cu_seq_lens_q": torch.arange(0, (batch + 1) * target, target, dtype=torch.int32, device=query.device),
        "cu_seq_lens_k": nn.functional.pad(attention_mask.sum(dim=1).cumsum(dim=0, dtype=torch.int32), (1, 0)),
        "max_length_q": target,
        "max_length_k": attention_mask.shape[1],
    }
    real = attention_mask.flatten().nonzero()[:, 0]
    # All sentences in one row, (1, heads, tokens, d).
    query, key, value = (each.transpose(0, 1).flatten(1, 2)[None] for each in (query, key, value))
    key, value = key.index_select(2, real), value.index_select(2, real)
    heads, _ = flash_attention_forward(module, query, key, value, None, **boundaries, **kwargs)
    heads = heads.unflatten(1, (batch, target))[0]
    return heads.to(dtype) if is_wide else heads, None
