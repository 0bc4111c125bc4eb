"""LayerNorm(x + Dropout(Sublayer(x))) in Triton: one kernel forward, and one backward, which draws the mask again.

The backward pass reads x and the sub-layer's output again instead of a stored mask and sum. Per element it moves 18
bytes under autocast, and the forward pass 12.

In the package, the 16-bit copy must be a child of the normalized sum in the graph of autograd. As a second result it
leaves hooks and gradients of hidden states without the share of the matmuls that read it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable


_WARPS = 4
# Programs of the backward pass for each multiprocessor. Each adds up the norm's gradients over its rows.
_PROGRAMS_PER_MULTIPROCESSOR = 8
_PROGRAMS_WITHOUT_GPU = 3
# Seeds of Philox are drawn below this number.
_SEEDS = 2**31 - 1
# Philox passes statistical tests from 7 rounds on; Triton's default is 10.
_RANDOM_ROUNDS: tl.constexpr = tl.constexpr(7)


# Triton's constants are in capitals.
@triton.jit
def _keep(seed, row, width, RATE: tl.constexpr, COLUMNS: tl.constexpr):  # noqa: N803
    """Return 1 for the elements of a row that dropout keeps, and 0 for the others.

    One call of the generator gives four numbers, for four neighbors.
    """
    quads: tl.constexpr = COLUMNS // 4
    offsets = row * (width // 4) + tl.arange(0, quads)
    first, second, third, fourth = tl.rand4x(seed, offsets, n_rounds=_RANDOM_ROUNDS)
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.where(tl.reshape(pairs, (COLUMNS,)) >= RATE, 1.0, 0.0)


@triton.jit
def _residual_sum(
    x,
    sublayer_x,
    seed,
    row,
    width,
    columns,
    is_inside,
    RATE: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """Return x + Dropout(Sublayer(x)) of a row, and dropout's factors."""
    begin = row.to(tl.int64) * width
    residual = tl.load(x + begin + columns, mask=is_inside, other=0.0).to(tl.float32)
    output = tl.load(sublayer_x + begin + columns, mask=is_inside, other=0.0).to(tl.float32)
    factors = tl.full((COLUMNS,), 1.0, tl.float32)
    if RATE >= 1:
        factors = tl.zeros((COLUMNS,), tl.float32)
    elif RATE > 0:
        factors = _keep(seed, row, width, RATE, COLUMNS) / (1.0 - RATE)
    # Rounded to the dtype of the sub-layer's output, as torch's dropout does.
    dropped = (output * factors).to(sublayer_x.dtype.element_ty).to(tl.float32)
    return residual + dropped, factors


@triton.jit(do_not_specialize=["seed"])
def _forward(
    x,
    sublayer_x,
    weight,
    bias,
    normalized,
    narrow,
    means,
    inverse_deviations,
    seed,
    width,
    eps,
    RATE: tl.constexpr,  # noqa: N803
    WRITES_NARROW: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    is_inside = columns < width
    residual_sum, _ = _residual_sum(x, sublayer_x, seed, row, width, columns, is_inside, RATE, COLUMNS)
    mean = tl.sum(residual_sum, axis=0) / width
    deviation = tl.where(is_inside, residual_sum - mean, 0.0)
    inverse_deviation = 1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=0) / width + eps)
    scale = tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=is_inside, other=0.0).to(tl.float32)
    result = deviation * inverse_deviation * scale + shift
    begin = row.to(tl.int64) * width
    tl.store(normalized + begin + columns, result.to(normalized.dtype.element_ty), mask=is_inside)
    if WRITES_NARROW:
        tl.store(narrow + begin + columns, result.to(narrow.dtype.element_ty), mask=is_inside)
    tl.store(means + row, mean)
    tl.store(inverse_deviations + row, inverse_deviation)


@triton.jit(do_not_specialize=["seed", "rows"])
def _backward(
    x,
    sublayer_x,
    weight,
    means,
    inverse_deviations,
    grad_normalized,
    grad_narrow,
    grad_x,
    grad_sublayer_x,
    grad_weights,
    grad_biases,
    seed,
    rows,
    width,
    RATE: tl.constexpr,  # noqa: N803
    HAS_NORMALIZED: tl.constexpr,  # noqa: N803
    HAS_NARROW: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    is_inside = columns < width
    scale = tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((COLUMNS,), tl.float32)
    grad_bias = tl.zeros((COLUMNS,), tl.float32)
    for first_row in range(0, rows, tl.num_programs(0)):
        row = first_row + program
        if row < rows:
            begin = row.to(tl.int64) * width
            residual_sum, factors = _residual_sum(x, sublayer_x, seed, row, width, columns, is_inside, RATE, COLUMNS)
            mean = tl.load(means + row)
            inverse_deviation = tl.load(inverse_deviations + row)
            standardized = tl.where(is_inside, (residual_sum - mean) * inverse_deviation, 0.0)
            grad = tl.zeros((COLUMNS,), tl.float32)
            if HAS_NORMALIZED:
                grad += tl.load(grad_normalized + begin + columns, mask=is_inside, other=0.0).to(tl.float32)
            if HAS_NARROW:
                grad += tl.load(grad_narrow + begin + columns, mask=is_inside, other=0.0).to(tl.float32)
            grad_weight += grad * standardized
            grad_bias += grad
            scaled = grad * scale
            mean_of_scaled = tl.sum(scaled, axis=0) / width
            mean_of_products = tl.sum(scaled * standardized, axis=0) / width
            grad_sum = (scaled - mean_of_scaled - standardized * mean_of_products) * inverse_deviation
            tl.store(grad_x + begin + columns, grad_sum.to(grad_x.dtype.element_ty), mask=is_inside)
            grad_output = (grad_sum * factors).to(grad_sublayer_x.dtype.element_ty)
            tl.store(grad_sublayer_x + begin + columns, grad_output, mask=is_inside)
    tl.store(grad_weights + program * width + columns, grad_weight, mask=is_inside)
    tl.store(grad_biases + program * width + columns, grad_bias, mask=is_inside)


class _AddAndNorm(torch.autograd.Function):
    """LayerNorm(x + Dropout(Sublayer(x))) of rows, `(rows, d_model)`, in the dtype of x and in a second one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        sublayer_x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        rate: float,
        narrow_dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, width = x.shape
        seed = _draw_seed(x.device)
        normalized = torch.empty_like(x)
        writes_narrow = narrow_dtype != x.dtype
        narrow = x.new_empty(x.shape, dtype=narrow_dtype) if writes_narrow else None
        means, inverse_deviations = x.new_empty((2, rows), dtype=torch.float32)
        # Triton launches on the current GPU, which may be another one than that of x.
        with torch.cuda.device_of(x):
            _forward[(rows,)](
                x,
                sublayer_x,
                weight,
                bias,
                normalized,
                normalized if narrow is None else narrow,
                means,
                inverse_deviations,
                seed,
                width,
                eps,
                RATE=rate,
                WRITES_NARROW=writes_narrow,
                COLUMNS=triton.next_power_of_2(width),
                num_warps=_WARPS,
            )
        ctx.save_for_backward(x, sublayer_x, weight, means, inverse_deviations)
        ctx.seed, ctx.rate, ctx.bias_dtype = seed, rate, bias.dtype
        # Otherwise torch would fill and read zeros for a result that nothing uses.
        ctx.set_materialize_grads(False)
        return normalized, narrow

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_normalized: torch.Tensor | None, grad_narrow: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        x, sublayer_x, weight, means, inverse_deviations = ctx.saved_tensors
        rows, width = x.shape
        if grad_normalized is not None:
            grad_normalized = grad_normalized.contiguous()
        if grad_narrow is not None:
            grad_narrow = grad_narrow.contiguous()
        grad_x = torch.empty_like(x)
        grad_sublayer_x = torch.empty_like(sublayer_x)
        programs = min(rows, _programs(x.device))
        grads_of_programs = x.new_empty((2, programs, width), dtype=torch.float32)
        grad_weights, grad_biases = grads_of_programs
        with torch.cuda.device_of(x):
            _backward[(programs,)](
                x,
                sublayer_x,
                weight,
                means,
                inverse_deviations,
                x if grad_normalized is None else grad_normalized,
                x if grad_narrow is None else grad_narrow,
                grad_x,
                grad_sublayer_x,
                grad_weights,
                grad_biases,
                ctx.seed,
                rows,
                width,
                RATE=ctx.rate,
                HAS_NORMALIZED=grad_normalized is not None,
                HAS_NARROW=grad_narrow is not None,
                COLUMNS=triton.next_power_of_2(width),
                num_warps=_WARPS,
            )
        # In one launch.
        grad_weight, grad_bias = grads_of_programs.sum(dim=1)
        return grad_x, grad_sublayer_x, grad_weight.to(weight.dtype), grad_bias.to(ctx.bias_dtype), None, None, None


def _draw_seed(device: torch.device) -> int:
    """Return a seed that differs between calls and, like torch's dropout, between seeds of the device's generator.

    The number is drawn from the CPU's generator, because reading one from the GPU would wait for it. Gradient
    checkpointing restores the state of that generator, too. The seed of the device's generator is added to it, because
    processes that train together differ in it alone.
    """
    seed_of_device = torch.initial_seed()
    if device.type == "cuda":
        seed_of_device = torch.cuda.default_generators[device.index].initial_seed()
    return (int(torch.randint(_SEEDS, ())) + seed_of_device) % _SEEDS


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return _PROGRAMS_WITHOUT_GPU
    return _PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def add_and_norm_in_triton(
    x: torch.Tensor,
    sublayer_x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    rate: float,
    narrow_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute LayerNorm(x + Dropout(Sublayer(x))), and its cast for the next matmuls.

    The gradient cannot be differentiated again.

    Args:
        x (`torch.Tensor` of shape `(..., d_model)`): the sub-layer's input, in float32 or 16 bits; d_model is a
            multiple of 4.
        sublayer_x (`torch.Tensor` of shape `(..., d_model)`): its output, in float32 or 16 bits.
        weight, bias (`torch.Tensor` of shape `(d_model,)`): of the norm.
        eps (`float`): of the norm.
        rate (`float`): dropout rate.
        narrow_dtype (`torch.dtype`): of the second result.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the normalized sum in the dtype of x, and in `narrow_dtype`.
    """
    rows = x.flatten(0, -2).contiguous()
    sublayer_rows = sublayer_x.flatten(0, -2).contiguous()
    normalized, narrow = _AddAndNorm.apply(rows, sublayer_rows, weight, bias, eps, rate, narrow_dtype)
    normalized = normalized.view_as(x)
    if narrow is None:
        return normalized, normalized
    return normalized, narrow.view_as(x)
