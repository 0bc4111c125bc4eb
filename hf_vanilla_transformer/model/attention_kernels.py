"""Equation 1 computed fast, its name in transformers' attention interface, and its masks.

Device, dtype and length decide which computation is the fastest; there is no option. Shapes have named axes, as in the
model's file.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    create_causal_mask,
    flash_attention_mask,
    flex_attention_mask,
    sdpa_mask,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .fast_path_checks import float32_matmuls_are_precise, has_avx512, is_plain_cpu_tensor, is_traced
from .input_error import InputError
from .linear_kernels import drop


# The name under which transformers knows `attention`.
ATTENTION = "vanilla_transformer"
# Maximum number of keys for unfused attention on CPUs with AVX-512, by dtype; with more keys torch's fused attention is
# faster. In float32 it is slower where torch leaves its matmuls to oneDNN.
_LONGEST_UNFUSED = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
_LONGEST_UNFUSED_WITH_ONEDNN = 256
# Flash attention computes float32 input in this dtype.
_FLASH_DTYPE = torch.bfloat16
# On CPUs, torch's softmax over fewer elements takes ten times as long.
_NARROWEST_SOFTMAX = 16
# These mask functions of transformers pass a 4D mask through unchanged, and their attention misreads it.
_PADDING_MASKS_ONLY = (flash_attention_mask, flex_attention_mask)


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1: softmax(Q K^T / sqrt(d_k)) V, by two matmuls where sentences are short.

    Otherwise by torch's `scaled_dot_product_attention`, which never holds the whole matrix of attention weights in
    memory and cannot be differentiated twice on CPUs.

    Args:
        module (`nn.Module`): the attention layer; without a mask, its `is_causal` decides whether attention is causal,
            unless an argument of that name does.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, 1, target, source)`, *optional*): True or a non-zero integer
            where a query may attend; or floating-point values to add to the scores.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the attention weights.
    """
    if attention_mask is not None and not attention_mask.is_floating_point():
        attention_mask = attention_mask.bool()
    if not _unfused_is_faster(query, key):
        if attention_mask is not None and is_plain_cpu_tensor(query):
            # For a query that may attend to nothing torch returns 0, and the formula the mean of all values.
            attention_mask = additive(attention_mask, query.dtype)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    scores = torch.matmul(query * scaling, key.transpose(-2, -1))
    if attention_mask is None and _is_causal(module, kwargs) and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None:
        scores = scores + additive(attention_mask, scores.dtype)
    weights = drop(_softmax(scores).to(value.dtype), dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def _is_causal(module: nn.Module, arguments: dict[str, Any]) -> bool:
    argument = arguments.get("is_causal")
    return bool(module.is_causal if argument is None else argument)


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
    if attention_mask is None or _is_causal(module, kwargs):
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


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """softmax(scores), `(batch, heads, target, source)`, in float32 at least."""
    source = scores.shape[-1]
    if source < _NARROWEST_SOFTMAX:
        scores = nn.functional.pad(scores, (0, _NARROWEST_SOFTMAX - source), value=-math.inf)
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))[..., :source]


def _unfused_is_faster(query: torch.Tensor, key: torch.Tensor) -> bool:
    # A compiled or exported model must not depend on the lengths of its example inputs.
    if query.device.type != "cpu" or is_traced() or not has_avx512():
        return False
    longest = _LONGEST_UNFUSED.get(query.dtype, 0)
    if query.dtype == torch.float32 and not float32_matmuls_are_precise():
        longest = _LONGEST_UNFUSED_WITH_ONEDNN
    return key.shape[2] <= longest


def additive(attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to the scores: 0 where a query may attend, and half the lowest finite value elsewhere.

    The paper's minus infinity would give NaN in rows without any key.

    Args:
        attention_mask (`torch.Tensor` of shape `(..., target, source)`): booleans, or values to add.
        dtype (`torch.dtype`): of the result.

    Returns:
        `torch.Tensor` of shape `(..., target, source)`, or `(..., 1, source)` where all queries have one mask.
    """
    lowest = torch.finfo(dtype).min / 2
    if attention_mask.stride(-2) == 0:
        attention_mask = attention_mask[..., :1, :]
    if attention_mask.dtype != torch.bool:
        return attention_mask.to(dtype).clamp(min=lowest)
    zeros = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    return zeros.masked_fill_(~attention_mask, lowest)


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


def attention_mask_without_sync(
    *,
    mask_function: Callable,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask that transformers makes for [`attention`], without reading values of tensors on accelerators.

    transformers leaves a mask out if it masks nothing. To find that out, Python must wait until the device has computed
    everything before, which takes longer than attention with a mask. On CPUs there is nothing to wait for.

    Args:
        mask_function (`Callable`): of transformers, says where a query may attend: everywhere, or to earlier keys only.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens, False for padding.
        allow_is_causal_skip, allow_is_bidirectional_skip (`bool`): whether a mask without padding may be left out.
        **kwargs: other arguments of transformers' `sdpa_mask`, among them the lengths.

    Returns:
        `torch.Tensor` of shape `(batch, 1, target, source)`: True where a query may attend; None if it is left out.
    """
    if attention_mask is None or is_plain_cpu_tensor(attention_mask) or is_traced():
        return sdpa_mask(
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            **kwargs,
        )
    if mask_function is bidirectional_mask_function and attention_mask.shape[-1] == kwargs["kv_length"]:
        # One view, where transformers launches ten kernels to compute the same mask.
        return attention_mask[:, None, None, :].expand(-1, -1, kwargs["q_length"], -1)
    return sdpa_mask(
        mask_function=mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        **kwargs,
    )


# At import, because unpickling a model does not run its constructor. Repeating it changes nothing.
AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, attention_mask_without_sync)
