"""Linear layers, dropout and casts, computed fast, in the place of those in `model/operations.py`.

Device, dtype and size decide which computation is the fastest; there is no option. Shapes have named axes, as in the
model's file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .fast_path_checks import (
    float32_matmuls_are_precise,
    has_avx512,
    is_plain_cpu_tensor,
    is_plain_linear,
    is_traced,
    warn_of_slow_matmuls,
)


# Multiply-adds of the smallest matmul that is faster by oneDNN, whose calls take longer to start.
_SMALLEST_FOR_ONEDNN = 2**21
# Integer dtypes by the bytes of a floating-point element.
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def fast_drop(x: torch.Tensor, rate: float, training: bool = True) -> torch.Tensor:
    """Compute [`~.operations.drop`].

    On CPUs `keep` takes 16 random bits per element, which torch generates many times faster than Bernoulli samples. The
    rate is then rounded to a multiple of 2^-16, and x is divided by 1 minus the rounded rate. Rates of 0 and 1 are
    exact.

    Args:
        x (`torch.Tensor`, of any shape).
        rate (`float`): from 0 to 1.
        training (`bool`): whether to drop anything; if False, returns x.

    Returns:
        `torch.Tensor`, of the shape and dtype of x.
    """
    dropped = round(rate * 2**16)
    if not training:
        return x
    if not 0 < dropped < 2**16 or not is_plain_cpu_tensor(x) or x.element_size() not in _INTEGERS:
        return nn.functional.dropout(x, p=rate)
    return _Dropout.apply(x, _random_keep(x, dropped), 2**16 / (2**16 - dropped))


def _random_keep(x: torch.Tensor, dropped: int) -> torch.Tensor:
    """Integers of the shape and element size of x: 0 with probability `dropped` / 2^16, else 1."""
    count = x.numel()
    # Without bounds, random_() leaves the highest bit 0.
    bits = x.new_empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    integers = _INTEGERS[x.element_size()]
    out = bits if integers == torch.int16 else x.new_empty(count, dtype=integers)
    return torch.ge(bits, dropped - 2**15, out=out).view(x.shape)


class _Dropout(torch.autograd.Function):
    """x * keep * scale. The bits of x are multiplied by 0 or 1 as integers, because mixed dtypes are slow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x.view(keep.dtype) * keep).view(x.dtype).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return _Dropout.apply(grad, keep, ctx.scale), None, None


def fast_linear(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute [`~.operations.linear`], in float32 by oneDNN where that is faster than torch's default.

    Modified layers, and other modules in the place of a layer, are called.
    """
    # x first: on GPUs there is nothing to choose, and inspecting the layer takes longer than many matmuls.
    if not (is_plain_cpu_tensor(x) and is_plain_linear(layer)):
        return layer(x)
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    if is_faster_by_onednn(x, weight):
        return _Linear.apply(x, weight, layer.bias)
    warn_of_slow_matmuls(x.dtype)
    return layer(x)


def is_faster_by_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether x W^T is a large float32 matmul of plain tensors, which torch would leave to MKL."""
    return (
        x.dtype == weight.dtype == torch.float32
        and has_avx512()
        and x.numel() * weight.shape[0] >= _SMALLEST_FOR_ONEDNN
        and is_plain_cpu_tensor(x)
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and float32_matmuls_are_precise()
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b, `(..., out)`, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """x W^T + b, and its gradients, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # A second derivative needs operations that torch can differentiate.
        matmul = nn.functional.linear if torch.is_grad_enabled() else onednn_linear
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            matmul(grad, weight.T) if needs_x else None,
            matmul(rows.T, x.flatten(0, -2).T) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )


def cast_to_matmul_dtype(x: torch.Tensor) -> torch.Tensor:
    """Cast x to autocast's matmul dtype, so that several matmuls of x share one cast; x itself without autocast."""
    return x.to(dtype_for_matmul(x))


def dtype_for_matmul(x: torch.Tensor) -> torch.dtype:
    """Return the dtype in which autocast computes matmuls of x, or the dtype of x without autocast."""
    device = x.device.type
    # torch raises an error for autocast on "meta".
    if device == "meta" or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device)


def cast_once_for_layers_on_accelerators(x: torch.Tensor) -> torch.Tensor:
    """Cast the encoder's output as autocast does, once for all decoder layers, if it is on an accelerator.

    This saves a kernel for each layer, but adds up the gradients of the layers in the dtype of autocast. On CPUs a cast
    costs little, so each layer casts, and gradients are added up in float32.
    """
    return x if is_plain_cpu_tensor(x) else cast_to_matmul_dtype(x)


@contextmanager
def cast_weights_once_under_autocast(model: nn.Module) -> Iterator[None]:
    """Have autocast cast each weight once within this context, although the model's `forward` enters and leaves it.

    The Trainer enters autocast within `forward`, and torch drops its casts of weights where the outermost autocast
    ends: without this context, after each decoding step. Nothing is cast where the model computes without autocast.

    Args:
        model (`nn.Module`): with weights that do not change within the context.
    """
    # Offloaded and sharded weights are loaded anew for each forward pass, and all of their casts would stay in memory.
    weights_stay = all(type(weight) is nn.Parameter and weight.device.type != "meta" for weight in model.parameters())
    if is_traced() or not weights_stay:
        yield
        return
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
