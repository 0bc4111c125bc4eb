"""Packed attention in Triton: a tile holds several short sentences, so that no tile is mostly padding.

A program computes 64 or 128 neighboring queries. The keys of all their sentences are one range, which it reads in
tiles; the first and the last key of each query mask what belongs to other sentences.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from benchmarks.candidates.packed_attention import PackedSentences


_QUERIES, _KEYS = 64, 64
_WARPS = 4
_LOG2_E = 1.4426950408889634
# Greater than every position.
_NO_POSITION: tl.constexpr = tl.constexpr(2**30)


# Triton's constants are in capitals.
@triton.jit
def _rows_of_head(tensor, positions, is_inside, head, heads, D: tl.constexpr):  # noqa: N803
    """Load rows of a head, `(positions, D)`, from a contiguous `(tokens, heads, D)`."""
    channels = tl.arange(0, D)
    offsets = (positions[:, None] * heads + head) * D + channels[None, :]
    return tl.load(tensor + offsets, mask=is_inside[:, None], other=0.0)


@triton.jit
def _store_rows_of_head(tensor, values, positions, is_inside, head, heads, D: tl.constexpr):  # noqa: N803
    channels = tl.arange(0, D)
    offsets = (positions[:, None] * heads + head) * D + channels[None, :]
    tl.store(tensor + offsets, values.to(tensor.dtype.element_ty), mask=is_inside[:, None])


@triton.jit
def _forward(
    queries,
    keys,
    values,
    first_keys,
    last_keys,
    outputs,
    log_sums,
    num_queries,
    num_keys,
    heads,
    scaling_log2,
    D: tl.constexpr,  # noqa: N803
    QUERIES: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
):
    head = tl.program_id(1)
    positions = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    is_query = positions < num_queries
    first = tl.load(first_keys + positions, mask=is_query, other=_NO_POSITION)
    last = tl.load(last_keys + positions, mask=is_query, other=0)
    begin = tl.min(first, axis=0) // KEYS * KEYS
    end = tl.max(last, axis=0)
    query = _rows_of_head(queries, positions, is_query, head, heads, D)

    largest = tl.full((QUERIES,), -float("inf"), tl.float32)
    sum_of_weights = tl.zeros((QUERIES,), tl.float32)
    output = tl.zeros((QUERIES, D), tl.float32)
    for start in range(begin, end, KEYS):
        key_positions = start + tl.arange(0, KEYS)
        is_key = key_positions < num_keys
        key = _rows_of_head(keys, key_positions, is_key, head, heads, D)
        value = _rows_of_head(values, key_positions, is_key, head, heads, D)
        scores = tl.dot(query, tl.trans(key)) * scaling_log2
        may_attend = (key_positions[None, :] >= first[:, None]) & (key_positions[None, :] < last[:, None])
        scores = tl.where(may_attend, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        # Until a query has met its first key, its largest score is minus infinity, whose differences are NaN.
        finite_largest = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        weights = tl.exp2(scores - finite_largest[:, None])
        shrink = tl.exp2(largest - finite_largest)
        sum_of_weights = sum_of_weights * shrink + tl.sum(weights, axis=1)
        output = output * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
        largest = new_largest
    output = output / tl.where(sum_of_weights == 0, 1.0, sum_of_weights)[:, None]
    _store_rows_of_head(outputs, output, positions, is_query, head, heads, D)
    tl.store(log_sums + head * num_queries + positions, largest + tl.log2(sum_of_weights), mask=is_query)


@triton.jit
def _backward_queries(
    queries,
    keys,
    values,
    first_keys,
    last_keys,
    log_sums,
    dots,
    grad_outputs,
    grad_queries,
    num_queries,
    num_keys,
    heads,
    scaling,
    scaling_log2,
    D: tl.constexpr,  # noqa: N803
    QUERIES: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
):
    head = tl.program_id(1)
    positions = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    is_query = positions < num_queries
    first = tl.load(first_keys + positions, mask=is_query, other=_NO_POSITION)
    last = tl.load(last_keys + positions, mask=is_query, other=0)
    begin = tl.min(first, axis=0) // KEYS * KEYS
    end = tl.max(last, axis=0)
    query = _rows_of_head(queries, positions, is_query, head, heads, D)
    grad_output = _rows_of_head(grad_outputs, positions, is_query, head, heads, D)
    log_sum = tl.load(log_sums + head * num_queries + positions, mask=is_query, other=0.0)
    dot = tl.load(dots + head * num_queries + positions, mask=is_query, other=0.0)

    grad_query = tl.zeros((QUERIES, D), tl.float32)
    for start in range(begin, end, KEYS):
        key_positions = start + tl.arange(0, KEYS)
        is_key = key_positions < num_keys
        key = _rows_of_head(keys, key_positions, is_key, head, heads, D)
        value = _rows_of_head(values, key_positions, is_key, head, heads, D)
        scores = tl.dot(query, tl.trans(key)) * scaling_log2
        may_attend = (key_positions[None, :] >= first[:, None]) & (key_positions[None, :] < last[:, None])
        weights = tl.where(may_attend, tl.exp2(scores - log_sum[:, None]), 0.0)
        grad_weights = tl.dot(grad_output, tl.trans(value))
        grad_scores = weights * (grad_weights - dot[:, None])
        grad_query += tl.dot(grad_scores.to(key.dtype), key)
    _store_rows_of_head(grad_queries, grad_query * scaling, positions, is_query, head, heads, D)


@triton.jit
def _backward_keys(
    queries,
    keys,
    values,
    first_queries,
    last_queries,
    log_sums,
    dots,
    grad_outputs,
    grad_keys,
    grad_values,
    num_queries,
    num_keys,
    heads,
    scaling,
    scaling_log2,
    D: tl.constexpr,  # noqa: N803
    QUERIES: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
):
    head = tl.program_id(1)
    key_positions = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    is_key = key_positions < num_keys
    first = tl.load(first_queries + key_positions, mask=is_key, other=_NO_POSITION)
    last = tl.load(last_queries + key_positions, mask=is_key, other=0)
    begin = tl.min(first, axis=0) // QUERIES * QUERIES
    end = tl.max(last, axis=0)
    key = _rows_of_head(keys, key_positions, is_key, head, heads, D)
    value = _rows_of_head(values, key_positions, is_key, head, heads, D)

    grad_key = tl.zeros((KEYS, D), tl.float32)
    grad_value = tl.zeros((KEYS, D), tl.float32)
    for start in range(begin, end, QUERIES):
        positions = start + tl.arange(0, QUERIES)
        is_query = positions < num_queries
        query = _rows_of_head(queries, positions, is_query, head, heads, D)
        grad_output = _rows_of_head(grad_outputs, positions, is_query, head, heads, D)
        log_sum = tl.load(log_sums + head * num_queries + positions, mask=is_query, other=0.0)
        dot = tl.load(dots + head * num_queries + positions, mask=is_query, other=0.0)
        scores = tl.dot(key, tl.trans(query)) * scaling_log2
        may_attend = (positions[None, :] >= first[:, None]) & (positions[None, :] < last[:, None])
        weights = tl.where(may_attend, tl.exp2(scores - log_sum[None, :]), 0.0)
        grad_value += tl.dot(weights.to(grad_output.dtype), grad_output)
        grad_weights = tl.dot(value, tl.trans(grad_output))
        grad_scores = weights * (grad_weights - dot[None, :])
        grad_key += tl.dot(grad_scores.to(query.dtype), query)
    _store_rows_of_head(grad_keys, grad_key * scaling, key_positions, is_key, head, heads, D)
    _store_rows_of_head(grad_values, grad_value, key_positions, is_key, head, heads, D)


class _PackedAttention(torch.autograd.Function):
    """Attention in ranges of keys, and its gradients, from scores that are computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        ranges: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        scaling: float,
    ) -> torch.Tensor:
        num_queries, heads, head_dim = query.shape
        first_keys, last_keys, _, _ = ranges
        output = torch.empty_like(query)
        log_sums = query.new_empty((heads, num_queries), dtype=torch.float32)
        _forward[(triton.cdiv(num_queries, _QUERIES), heads)](
            query,
            key,
            value,
            first_keys,
            last_keys,
            output,
            log_sums,
            num_queries,
            len(key),
            heads,
            scaling * _LOG2_E,
            D=head_dim,
            QUERIES=_QUERIES,
            KEYS=_KEYS,
            num_warps=_WARPS,
        )
        ctx.save_for_backward(query, key, value, output, log_sums, *ranges)
        ctx.scaling = scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, log_sums, first_keys, last_keys, first_queries, last_queries = ctx.saved_tensors
        num_queries, heads, head_dim = query.shape
        grad = grad.contiguous()
        # The gradient of a softmax subtracts this from each gradient of a weight.
        dots = (grad.float() * output.float()).sum(dim=-1).T.contiguous()
        grad_query = torch.empty_like(query)
        grad_key = torch.empty_like(key)
        grad_value = torch.empty_like(value)
        numbers = (num_queries, len(key), heads, ctx.scaling, ctx.scaling * _LOG2_E)
        constants = {"D": head_dim, "QUERIES": _QUERIES, "KEYS": _KEYS, "num_warps": _WARPS}
        _backward_queries[(triton.cdiv(num_queries, _QUERIES), heads)](
            query, key, value, first_keys, last_keys, log_sums, dots, grad, grad_query, *numbers, **constants
        )
        _backward_keys[(triton.cdiv(len(key), _KEYS), heads)](
            query,
            key,
            value,
            first_queries,
            last_queries,
            log_sums,
            dots,
            grad,
            grad_key,
            grad_value,
            *numbers,
            **constants,
        )
        return grad_query, grad_key, grad_value, None, None


def ranges_of(sentences: PackedSentences) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `packed_in_triton` needs to know of the sentences; all attention layers of a step share it."""
    return (*sentences.keys_of_queries(), *sentences.queries_of_keys())


def packed_in_triton(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float,
) -> torch.Tensor:
    """Compute Eq. 1, `(tokens, heads, d)`, where d is a power of two from 16.

    Args:
        query, key, value: in 16 bits on GPUs; contiguous, or they are copied.
        ranges: of [`ranges_of`].
        scaling: 1 / sqrt(d_k).
    """
    return _PackedAttention.apply(query.contiguous(), key.contiguous(), value.contiguous(), ranges, scaling)
