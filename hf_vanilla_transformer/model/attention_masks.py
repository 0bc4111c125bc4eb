"""Make attention masks (section 3.2.3) in the form that each attention implementation of transformers needs.

Docstrings name the axes of tensors as in `modeling_vanilla_transformer.py`.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    flash_attention_mask,
    flex_attention_mask,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_checks import InputError
from .operations import replaceable


# transformers' mask functions that return a 4D mask unchanged, although the attention functions would misread it.
_FUNCTIONS_FOR_PADDING_MASKS = (flash_attention_mask, flex_attention_mask)


def choose_mask_config(
    config: VanillaTransformerConfig, output_attentions: bool | None, *masks: Tensor | None
) -> VanillaTransformerConfig:
    """Return the configuration from which transformers' mask functions read the attention implementation.

    It is `config`, or a copy with eager attention if attention weights are requested, which no other attention returns.

    Args:
        *masks (`torch.Tensor`, *optional*): the masks that the caller of the model has passed. They are only checked.

    Raises:
        ValueError: if the attention implementation accepts 2D masks only, and one of `masks` has more dimensions.
    """
    if output_attentions:
        # Only a copy may be changed, because `config` belongs to the model. Eager attention also accepts 4D masks.
        eager_config = copy.copy(config)
        eager_config._attn_implementation = "eager"
        return eager_config

    make_mask = ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    if make_mask in _FUNCTIONS_FOR_PADDING_MASKS:
        for mask in masks:
            _check_padding_mask(mask, config._attn_implementation)
    return config


def _check_padding_mask(mask: Tensor | None, implementation: str | None) -> None:
    """Raise ValueError if a mask for an implementation that accepts only 2D masks has more than two dimensions."""
    if mask is not None and mask.ndim > 2:
        raise InputError(
            f"a mask has the shape {tuple(mask.shape)}, but the attention implementation "
            f'"{implementation}" accepts only padding masks of shape (batch, length); pass a 2D mask, or load '
            'the model with attn_implementation="sdpa".'
        )


def look_ahead_mask(
    config: VanillaTransformerConfig, x: Tensor, attention_mask: Tensor | None, cache: Cache | None
) -> Any:
    """Make the decoder's mask, which hides later tokens and padding (the look-ahead mask of section 3.2.3).

    transformers makes the mask. Two attention implementations need more than that: flex attention cannot be used with a
    static cache, and flash attention with a cache always needs a padding mask.

    Args:
        config (`VanillaTransformerConfig`): the result of [`choose_mask_config`].
        x (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's input.
        attention_mask (`torch.Tensor` of shape `(batch, past + target)`, *optional*): 1 for real tokens, 0 for padding.
        cache (`Cache`, *optional*): the keys and values of earlier tokens.

    Returns:
        The mask, in the form that the attention implementation needs.

    Raises:
        ValueError: if flex attention is used with a static cache.
    """
    # An implementation may have several names, such as "flash_attention_2" and "flash_attention_3". All of them have
    # the same mask function, so this function shows which implementation is used.
    make_mask = ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    if make_mask is flex_attention_mask and cache is not None and cache.is_compileable:
        # `is_compileable` is True for static caches. Flex attention evaluates its mask later, when such a cache has
        # already grown.
        raise InputError(
            'flex attention does not work with a static cache; use another cache, or attn_implementation="sdpa".'
        )
    if make_mask is flash_attention_mask and cache is not None and attention_mask is None:
        # A static cache is longer than its contents, and flash attention reads from the mask how many positions are
        # filled. So the mask that the caller left out is replaced by one without padding, (batch, past + target).
        filled_length = int(cache.get_seq_length()) + x.shape[1]
        attention_mask = torch.ones(len(x), filled_length, dtype=torch.long, device=x.device)
    return create_causal_mask(config, x, attention_mask, cache)


@replaceable
def flash_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention (Eq. 1) with flash attention. The padding mask applies to the keys, but not to the queries.

    This placeholder raises an error, until importing the package replaces it. transformers' own function applies one
    padding mask to both queries and keys, which is correct only in self-attention.

    Args:
        module (`nn.Module`): the attention layer, whose `is_causal` applies unless that argument is passed.
        query (`torch.Tensor` of shape `(batch, heads, target, d_k)`): Q.
        key, value (`torch.Tensor`): of shapes `(batch, heads, source, d_k)` and `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None instead of attention weights.

    Raises:
        ValueError: if the package is not imported.
    """
    raise InputError(
        "flash attention needs the package hf_vanilla_transformer; install it and write "
        '`import hf_vanilla_transformer`, or load the model with attn_implementation="sdpa".'
    )
