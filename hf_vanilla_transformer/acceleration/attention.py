"""A fast version of scaled dot-product attention (Eq. 1), and of the function that makes its masks.

`attention` is registered in transformers' attention interface under the name `vanilla_transformer`, and models use it
by default if the package is imported. It replaces the plain formula, `eager_attention_forward`. Short sentences on CPUs
with AVX-512 are computed by two matmuls and a softmax, everything else by torch's fused attention, which never holds
all attention weights in memory. Under bfloat16 autocast, training steps of the base model with 480 tokens are 1.53,
1.15 and 1.14 times as fast as with fused attention for sentences of 10, 30 and 60 tokens. In float32 they are not
(0.96, 0.99 and 0.98), but can be differentiated twice. (One thread of an AMD EPYC with AVX-512, torch 2.13; medians of
eleven alternating pairs of CPU times.)

`attention_mask_without_sync` replaces the function with which transformers makes the masks. On accelerators it reads no
value of the mask, so Python never waits for the device; tests/acceleration/test_launches.py counts the reads.

tests/acceleration/test_kernels.py compares both with the formula and with transformers' masks (`TestAttention`,
`TestMaskWithoutSync`). Shapes have named axes, as in the model's file.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from ..model.operations import drop
from ..model.pretrained_model import ATTENTION
from .fast_path_checks import float32_matmuls_are_precise, has_avx512, is_plain_cpu_tensor, is_traced


# The largest number of keys for which two matmuls are faster than torch's fused attention on CPUs with AVX-512, by
# dtype. docs/benchmarks.md ("What we learnt") gives these lengths. Other dtypes always use the fused attention.
_LONGEST_UNFUSED = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
# In float32, the limit is higher if the user allows a lower precision, because oneDNN then computes the two matmuls and
# is faster than MKL.
_LONGEST_UNFUSED_WITH_ONEDNN = 256


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, Eq. 1).

    On CPUs, the two matmuls can be differentiated twice; the fused attention has no second derivative.

    Args:
        module (`nn.Module`): the attention layer. Without a mask, its attribute `is_causal` decides whether attention
            is causal, unless the caller passes an argument of that name.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, 1, target, source)`, *optional*): True or a non-zero integer
            where a query may attend; or floating-point values to add to the scores.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None in place of the attention weights.
    """
    mask = attention_mask
    if mask is not None and not mask.is_floating_point():
        mask = mask.bool()

    if _unfused_is_faster(query, key):
        return _attend_unfused(module, query, key, value, mask, scaling, dropout, kwargs), None

    if mask is not None and is_plain_cpu_tensor(query):
        # With a boolean mask, torch returns 0 for a query that may attend to nothing. The formula gives the mean of all
        # values, and so does torch with an additive mask.
        mask = make_additive_mask(mask, query.dtype)
    return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)


def _attend_unfused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float,
    options: Mapping[str, object],
) -> Tensor:
    """Compute attention (Eq. 1) by two matmuls and a softmax.

    The arguments are those of [`attention`]. Returns the output, `(batch, target, heads, d_v)`.
    """
    # (batch, heads, target, source)
    scores = torch.matmul(query * scaling, key.transpose(-2, -1))

    # A single query is the newest one and may attend to all keys, so it needs no look-ahead mask.
    if mask is None and is_causal(module, options) and query.shape[2] > 1:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores + make_additive_mask(mask, scores.dtype)

    # A sum of exponentials in 16 bits would be imprecise, so the softmax is in float32 at least.
    softmax_dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=-1, dtype=softmax_dtype)
    weights = drop(weights.to(value.dtype), dropout)
    heads = torch.matmul(weights, value)
    return heads.transpose(1, 2).contiguous()


def is_causal(module: nn.Module, options: Mapping[str, object]) -> bool:
    """Return True if, without a mask, a query may attend to earlier keys only.

    Args:
        module (`nn.Module`): the attention layer, whose attribute `is_causal` is the default.
        options (`Mapping[str, object]`): other arguments of the attention function; `is_causal` among them decides.
    """
    argument = options.get("is_causal")
    if argument is not None:
        return bool(argument)
    return bool(module.is_causal)


def _unfused_is_faster(query: Tensor, key: Tensor) -> bool:
    """Return True if two matmuls are faster than torch's fused attention.

    Without AVX-512 the fused attention is at most 2 % slower (docs/architecture.md, "Speed"), so it is always used.
    """
    # A compiled or exported model must not depend on the lengths of its example inputs.
    if query.device.type != "cpu" or is_traced() or not has_avx512():
        return False
    longest = _LONGEST_UNFUSED.get(query.dtype, 0)
    if query.dtype == torch.float32 and not float32_matmuls_are_precise():
        longest = _LONGEST_UNFUSED_WITH_ONEDNN
    return key.shape[2] <= longest


def make_additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores: 0 where a query may attend, and a very negative value elsewhere.

    The paper's minus infinity would give NaN in rows without any key. The value is half the lowest finite one, so that
    adding it to a score does not overflow.

    Args:
        mask (`torch.Tensor` of shape `(..., target, source)`): True where a query may attend; or values to add.
        dtype (`torch.dtype`): the dtype of the result.

    Returns:
        `torch.Tensor` of shape `(..., target, source)`, or `(..., 1, source)` if all queries share one mask.
    """
    lowest = torch.finfo(dtype).min / 2
    if mask.stride(-2) == 0:
        # The mask was expanded along the queries, so one row has all of its values.
        mask = mask[..., :1, :]
    if mask.dtype != torch.bool:
        return mask.to(dtype).clamp(min=lowest)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill_(~mask, lowest)


def attention_mask_without_sync(
    *,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask for [`attention`] as transformers does, without reading values of tensors on accelerators.

    transformers leaves a mask out if it masks nothing. To find that out, Python must wait until the device has computed
    everything before, which takes longer than attention with a mask. On CPUs there is nothing to wait for.

    Args:
        mask_function (`Callable`): transformers' rule for where a query may attend: everywhere, or to earlier keys.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens, False for padding.
        allow_is_causal_skip, allow_is_bidirectional_skip (`bool`): whether a mask without padding may be left out.
        **kwargs: other arguments of transformers' `sdpa_mask`, including the lengths.

    Returns:
        `torch.Tensor` of shape `(batch, 1, target, source)`: True where a query may attend; None if it is left out.
    """
    if attention_mask is not None and not is_plain_cpu_tensor(attention_mask) and not is_traced():
        if mask_function is bidirectional_mask_function and attention_mask.shape[-1] == kwargs["kv_length"]:
            # A mask that covers all keys is the same for every query: one view of it, where transformers would launch
            # ten kernels to compute the same values.
            return attention_mask[:, None, None, :].expand(-1, -1, kwargs["q_length"], -1)
        # transformers reads the values of the mask only to find out whether it may leave it out.
        allow_is_causal_skip = False
        allow_is_bidirectional_skip = False
    return sdpa_mask(
        mask_function=mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **kwargs,
    )


def register_attention() -> None:
    """Register the attention and its masks with transformers, which makes them the default of models.

    Calling this again changes nothing.
    """
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, attention_mask_without_sync)
