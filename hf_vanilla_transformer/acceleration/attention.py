"""Equation 1 computed fast, and its masks, under a name in transformers' attention interface.

Device, dtype and length decide which computation is the fastest; there is no option. Shapes have named axes, as in the
model's file.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from ..model.operations import drop
from ..model.pretrained_model import ATTENTION
from .fast_path_checks import float32_matmuls_are_precise, has_avx512, is_plain_cpu_tensor, is_traced


# Maximum number of keys for unfused attention on CPUs with AVX-512, by dtype; with more keys torch's fused attention is
# faster. In float32 it is slower where torch leaves its matmuls to oneDNN.
_LONGEST_UNFUSED = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
_LONGEST_UNFUSED_WITH_ONEDNN = 256


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
    if attention_mask is None and is_causal(module, kwargs) and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None:
        scores = scores + additive(attention_mask, scores.dtype)
    # In float32 at least, because a sum of exponentials in 16 bits is imprecise.
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = drop(weights.to(value.dtype), dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def is_causal(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether attention without a mask is to earlier keys only: as an argument says, or else the attention layer."""
    argument = arguments.get("is_causal")
    if argument is not None:
        return bool(argument)
    return bool(module.is_causal)


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


def register_attention() -> None:
    """Register the attention with transformers; models then have it by default. Repeating it changes nothing."""
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, attention_mask_without_sync)
