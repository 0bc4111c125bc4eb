"""Scaled dot-product attention (Eq. 1) that is fast on CPUs, and attention masks that need no GPU synchronization.

`attention` is registered in transformers' attention interface under the name `vanilla_transformer`, and models use it
by default if the package is imported. It replaces the plain formula, `eager_attention_forward`. On CPUs with AVX-512,
short sentences are computed with two matmuls and a softmax. Everything else is computed with torch's fused attention,
which never holds all attention weights in memory.

For training steps of the base model with 480 tokens under bfloat16 autocast, the speedup over fused attention is 1.53x,
1.15x and 1.14x for sentences of 10, 30 and 60 tokens. In float32 there is no speedup (0.96x, 0.99x and 0.98x), but the
result can be differentiated twice. (One thread of an AMD EPYC with AVX-512, torch 2.13; medians of eleven alternating
pairs of CPU times.)

`attention_mask_without_sync` replaces the function with which transformers creates masks. On accelerators it reads no
values of the mask, so Python never waits for the device; tests/acceleration/test_launches.py counts the reads.

tests/acceleration/test_kernels.py compares both with the formula and with transformers' masks (`TestAttention`,
`TestMaskWithoutSync`). Axes of tensors are named as in `modeling_vanilla_transformer.py`.
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


# Per dtype, the largest number of keys for which two matmuls are faster than torch's fused attention on CPUs with
# AVX-512. docs/benchmarks.md ("What we learned") gives these lengths. Other dtypes always use the fused attention.
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

    CPUs use two matmuls where these are expected to be faster than torch's fused attention. The result of the matmuls
    can be differentiated twice. The fused attention has no second derivative.

    Args:
        module (`nn.Module`): the attention layer. Without a mask, its attribute `is_causal` decides whether attention
            is causal.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, 1, target, source)`, *optional*): one of four kinds:

            - None: a query may attend to all keys or, if attention is causal, only to itself and earlier keys.
            - boolean: True where a query may attend.
            - integer: not 0 where a query may attend.
            - floating-point: values to add to the scores.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.
        **kwargs: other arguments of transformers' attention functions. If `is_causal` is among them and not None, it
            takes precedence over the attribute of the layer.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None instead of attention weights.
    """
    mask = attention_mask
    if mask is not None and not mask.is_floating_point():
        # Integers become True unless they are 0. From here on, the mask is None, boolean, or values to add.
        mask = mask.bool()

    # Both functions below accept these three kinds. If the mask is None and the layer is causal, both of them make sure
    # that no query attends to later keys. `_attend_unfused` converts a boolean mask to values itself.
    if _unfused_is_faster(query, key):
        output = _attend_unfused(module, query, key, value, mask, scaling, dropout, kwargs)
        return output, None

    if mask is not None and is_plain_cpu_tensor(query):
        # With a boolean mask, torch returns 0 for a query that may attend to nothing. The formula gives the mean of all
        # values, which torch also returns with an additive mask. Only masks for plain CPU tensors are converted. In all
        # other cases, for example on accelerators, torch gets the mask as it is.
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
    """Compute attention (Eq. 1) with two matmuls and a softmax.

    Args:
        module: the attention layer.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        mask: `(batch, 1, target, source)`, True where a query may attend, or values to add to the scores; or None.
        scaling: 1 / sqrt(d_k).
        dropout: dropout rate of the attention weights.
        options: the caller's keyword arguments, in which `is_causal` may be set.

    Returns:
        The output, `(batch, target, heads, d_v)`.
    """
    # (batch, heads, target, source)
    scores = torch.matmul(query * scaling, key.transpose(-2, -1))

    # A single query belongs to the newest token and may attend to all keys, so it needs no look-ahead mask.
    has_several_queries = query.shape[2] > 1
    if mask is None and has_several_queries and is_causal(module, options):
        target_and_source = scores.shape[-2:]
        # True on and below the diagonal: the key is not later than the query.
        mask = torch.ones(target_and_source, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores + make_additive_mask(mask, scores.dtype)

    # A sum of exponentials in 16 bits would be imprecise, so the softmax is at least in float32.
    softmax_dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=-1, dtype=softmax_dtype)
    # Outside training, the caller passes a dropout rate of 0.
    weights = drop(weights.to(value.dtype), dropout)
    heads = torch.matmul(weights, value)  # (batch, heads, target, d_v)
    return heads.transpose(1, 2).contiguous()


def is_causal(module: nn.Module, options: Mapping[str, object]) -> bool:
    """Return True if an attention layer is causal, i.e. if a query may attend only to itself and earlier keys.

    Args:
        module (`nn.Module`): the attention layer, whose attribute `is_causal` is the default.
        options (`Mapping[str, object]`): keyword arguments of the attention function. `is_causal` among them takes
            precedence.
    """
    argument = options.get("is_causal")
    if argument is not None:
        return bool(argument)
    return bool(module.is_causal)


def _unfused_is_faster(query: Tensor, key: Tensor) -> bool:
    """Return True if two matmuls are expected to be faster than torch's fused attention.

    Without AVX-512, the fused attention is at most 2 % slower (docs/architecture.md, "Speed"), so it is always used.
    """
    # The code of a compiled or exported model must not depend on the lengths of its example inputs.
    if query.device.type != "cpu" or is_traced() or not has_avx512():
        return False
    # For other dtypes, the limit is 0, so the fused attention is used.
    longest_source = _LONGEST_UNFUSED.get(query.dtype, 0)
    if query.dtype == torch.float32 and not float32_matmuls_are_precise():
        # The matmuls are faster then, because oneDNN computes them.
        longest_source = _LONGEST_UNFUSED_WITH_ONEDNN
    source_length = key.shape[2]
    return source_length <= longest_source


def make_additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to values that are added to the scores: 0 where a query may attend, very negative elsewhere.

    If the mask was expanded along the queries, the result has one row for all of them. Adding it to the scores,
    `(..., target, source)`, repeats this row, so both shapes of the result give the same scores.

    The negative value is half the lowest finite value of the dtype, so adding it to a score does not overflow. The
    paper's minus infinity would give NaN for queries that may attend to nothing.

    Args:
        mask (`torch.Tensor` of shape `(..., target, source)`): True where a query may attend, or values to add.
        dtype (`torch.dtype`): the dtype of the result.

    Returns:
        `torch.Tensor` of shape `(..., target, source)`, or `(..., 1, source)` if the mask was expanded.
    """
    lowest = torch.finfo(dtype).min / 2
    if mask.stride(-2) == 0:
        # The stride is the distance in memory from one query's row to the next. It is 0 if `expand` has made a mask
        # (batch, 1, target, source) from (batch, 1, 1, source): all queries then read the same row, so one is enough.
        # This only saves work. A mask whose equal rows are separate copies keeps all of them.
        mask = mask[..., :1, :]
    if mask.dtype != torch.bool:
        # The mask already holds values to add. Only values below `lowest`, such as minus infinity, are changed.
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
    """Create the mask for [`attention`] as transformers does, but without reading tensor values on accelerators.

    transformers omits a mask that hides nothing. To find that out, Python must wait until the device has finished all
    earlier work, which takes longer than attention with a mask. On CPUs there is nothing to wait for.

    Args:
        mask_function (`Callable`): transformers' rule for where a query may attend: everywhere, or to earlier keys.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens, False for padding.
        allow_is_causal_skip, allow_is_bidirectional_skip (`bool`): whether a mask without padding may be omitted. On
            accelerators, a mask is always created from an `attention_mask`.
        **kwargs: other arguments of transformers' `sdpa_mask`, including the lengths.

    Returns:
        `torch.Tensor` of shape `(batch, 1, target, source)`: True where a query may attend; None if it is omitted.
    """
    # This condition is True for a mask on an accelerator, for tensor subclasses, and in `torch.func`, unless torch
    # compiles or traces. transformers' function `sdpa_mask` must not read values of such a mask. If the condition is
    # False, `sdpa_mask` gets the caller's arguments, for one of three reasons: without an `attention_mask`, there are
    # no values to read; on CPUs, reading them is fast; and while torch compiles or traces, `sdpa_mask` does not read
    # them.
    if attention_mask is not None and not is_plain_cpu_tensor(attention_mask) and not is_traced():
        is_same_for_every_query = mask_function is bidirectional_mask_function
        covers_all_keys = attention_mask.shape[-1] == kwargs["kv_length"]
        if is_same_for_every_query and covers_all_keys:
            # A view of the mask is enough. transformers would launch ten kernels to compute the same values.
            view_for_heads = attention_mask[:, None, None, :]  # (batch, 1, 1, source)
            return view_for_heads.expand(-1, -1, kwargs["q_length"], -1)  # (batch, 1, target, source)
        # `sdpa_mask` reads the mask's values only to find out whether it can omit the mask. Whatever the caller has
        # allowed, it may not omit the mask here, so it reads none.
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
    """Register the attention and its masks with transformers. The package's models then use them by default.

    Calling this again changes nothing.
    """
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, attention_mask_without_sync)
