"""Equation 1 computed in its ways, and its name in transformers' attention interface.

Which way is faster depends on device, dtype and length, and is chosen by them; nothing here is an option. Shapes have
named axes, as in the model's file.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .fast_path import has_avx512, is_plain_cpu_tensor, is_traced, lacks_matmul
from .functional import drop


# The name under which transformers knows `attention`.
ATTENTION = "vanilla_transformer"
# Up to so many keys, plain products are faster on CPUs with AVX-512 than torch's fused attention. That one is slower
# still where torch has oneDNN make its products.
_LONGEST_FOR_PRODUCTS = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
_LONGEST_WITH_ONEDNN = 256
# On other CPUs, in float32 and in training: there the backward pass is the faster one, and not the forward pass alone.
_LONGEST_WITHOUT_AVX512 = 32
# In which flash attention computes what is in float32.
_FLASH_DTYPE = torch.bfloat16
# On CPUs, torch's softmax of fewer numbers takes ten times as long.
_NARROWEST_SOFTMAX = 16


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
    """Section 3.2.1, Eq. 1: softmax(Q K^T / sqrt(d_k)) V, as two products of short sentences where that is faster.

    Elsewhere it is torch's `scaled_dot_product_attention`, which never has the whole matrix of weights in memory, and
    cannot be differentiated twice on CPUs.

    Args:
        module (`nn.Module`): the attention that asks; its `is_causal` tells what no mask means, unless an argument of
            that name does.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, 1, target, source)`, *optional*): True, or another integer than
            0, where a query may look; or floating-point numbers to add to the scores.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): rate of dropout on the weights.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the weights.
    """
    if attention_mask is not None and not attention_mask.is_floating_point():
        attention_mask = attention_mask.bool()
    if lacks_matmul(query):
        wide = query.float(), key.float(), value.float()
        with torch.autocast("cpu", enabled=False):
            heads, _ = attention(module, *wide, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return heads.to(query.dtype), None
    if not _products_are_faster(module, query, key):
        if attention_mask is not None and is_plain_cpu_tensor(query):
            # torch's answer to a query that may look nowhere is 0; that of products is the mean.
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
    asked_for = arguments.get("is_causal")
    return bool(module.is_causal if asked_for is None else asked_for)


def flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1, by the function of transformers for flash attention.

    That one takes the mask of the last keys for that of the queries, which holds for the decoder's attention to itself.
    Elsewhere it is given the keys and values of real tokens alone, and told where each sentence's begin. What is in
    float32, as where the Trainer generates with bfloat16, is computed in bfloat16: flash attention knows 16 bits alone.

    Args:
        module, query, key, value: as [`attention`] takes them.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the weights.
    """
    dtype, is_wide = query.dtype, query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if is_wide:
        query, key, value = (each.to(_FLASH_DTYPE) for each in (query, key, value))
    more_in_value = value.shape[-1] - query.shape[-1]
    if more_in_value > 0:
        # Heads are of one width there. Zeros add nothing to a product.
        query, key = (nn.functional.pad(each, (0, more_in_value)) for each in (query, key))
    if attention_mask is None or _is_causal(module, kwargs):
        heads, _ = flash_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return heads.to(dtype) if is_wide else heads, None
    batch, _, target, _ = query.shape
    places: dict[str, Any] = {
        "cu_seq_lens_q": torch.arange(0, (batch + 1) * target, target, dtype=torch.int32, device=query.device),
        "cu_seq_lens_k": nn.functional.pad(attention_mask.sum(dim=1).cumsum(dim=0, dtype=torch.int32), (1, 0)),
        "max_length_q": target,
        "max_length_k": attention_mask.shape[1],
    }
    real = attention_mask.flatten().nonzero()[:, 0]
    # As one sentence, (1, heads, tokens, d).
    query, key, value = (each.transpose(0, 1).flatten(1, 2)[None] for each in (query, key, value))
    key, value = key.index_select(2, real), value.index_select(2, real)
    heads, _ = flash_attention_forward(module, query, key, value, None, **places, **kwargs)
    heads = heads.unflatten(1, (batch, target))[0]
    return heads.to(dtype) if is_wide else heads, None


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """softmax(scores), `(batch, heads, target, source)`, in float32 at least."""
    source = scores.shape[-1]
    if source < _NARROWEST_SOFTMAX:
        scores = nn.functional.pad(scores, (0, _NARROWEST_SOFTMAX - source), value=-math.inf)
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))[..., :source]


def _products_are_faster(module: nn.Module, query: torch.Tensor, key: torch.Tensor) -> bool:
    # A compiled or exported model must not depend on the lengths that it was traced with.
    if query.device.type != "cpu" or is_traced():
        return False
    if not has_avx512():
        # Not by gradients: reentrant checkpointing computes without them first, and is to drop the same later.
        return module.training and query.dtype == torch.float32 and key.shape[2] <= _LONGEST_WITHOUT_AVX512
    longest = _LONGEST_FOR_PRODUCTS.get(query.dtype, 0)
    if query.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        longest = _LONGEST_WITH_ONEDNN
    return key.shape[2] <= longest


def additive(attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where a query may look, and, for the paper's minus infinity, a number to which a score can still be added.

    Args:
        attention_mask (`torch.Tensor` of shape `(..., target, source)`): booleans, or numbers to add already.
        dtype (`torch.dtype`): of the result, which has one row for all queries where the mask shows one to all.
    """
    lowest = torch.finfo(dtype).min / 2
    if attention_mask.stride(-2) == 0:
        attention_mask = attention_mask[..., :1, :]
    if attention_mask.dtype != torch.bool:
        return attention_mask.to(dtype).clamp(min=lowest)
    zeros = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    return zeros.masked_fill_(~attention_mask, lowest)


# Here, and not where a model is built, because a model that is unpickled is not built. Twice changes nothing.
AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
