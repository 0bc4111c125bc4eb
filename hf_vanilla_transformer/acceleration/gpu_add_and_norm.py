"""Residual sums and norms on GPUs by a Triton kernel, where they are large enough and Triton works.

Under autocast the plain operation launches five kernels: dropout, a cast, the sum, the norm, and a cast before the next
matmul. Triton's kernel computes all of it. On an H200 it makes a training step of big, with 25,000 tokens on each side,
1.16 times as fast: `python -m benchmarks.gpu_candidates --parts ladder_big`. A step of base became slower, because
the GPU waited for the CPU, to which a kernel of Triton costs more than the five of torch.
"""

import torch
from torch import nn

from ..model.fast_path_checks import is_unmodified
from ..model.linear_kernels import add_and_norm, cast_for_matmul
from ..model.operations import plain
from .gpu_conditions import are_on_one_nvidia_gpu, triton_works


# Elements of x from which the GPU is what a step waits for: between 25,000 tokens of base and of big.
LEAST_ELEMENTS = 2**24
# Triton's kernel draws random numbers for four elements at once.
_MULTIPLE_OF_D_MODEL = 4
# The attribute of a tensor that holds it in 16 bits, and its version at that time.
_NARROW_COPY = "_narrow_copy"


def add_and_norm_on_gpus(
    x: torch.Tensor, sublayer_x: torch.Tensor, layer_norm: nn.LayerNorm, rate: float, training: bool
) -> torch.Tensor:
    """Compute [`add_and_norm`] in training under autocast by Triton, and by its plain formula elsewhere.

    Args and results are those of the plain operation. The result remembers itself in 16 bits, for the next matmuls.
    """
    # Not whether gradients are enabled: reentrant checkpointing disables them in the first of two equal passes.
    if not training or not _suits_triton(x, sublayer_x, layer_norm) or not triton_works():
        return plain(add_and_norm)(x, sublayer_x, layer_norm, rate, training)
    from .triton_add_and_norm import add_and_norm_in_triton

    normalized, narrow = add_and_norm_in_triton(
        x, sublayer_x, layer_norm.weight, layer_norm.bias, layer_norm.eps, rate, sublayer_x.dtype
    )
    remember_narrow_copy(normalized, narrow)
    return normalized


def cast_for_matmul_once(x: torch.Tensor) -> torch.Tensor:
    """Compute [`cast_for_matmul`], without a kernel where x remembers itself in the dtype of autocast."""
    narrow = narrow_copy_of(x)
    if narrow is None:
        return plain(cast_for_matmul)(x)
    return narrow


def remember_narrow_copy(x: torch.Tensor, narrow: torch.Tensor) -> None:
    """Let `narrow_copy_of(x)` return a tensor, as long as x does not change."""
    setattr(x, _NARROW_COPY, (narrow, x._version))


def narrow_copy_of(x: torch.Tensor) -> torch.Tensor | None:
    """Return x in the dtype of autocast if it was remembered and is what a cast of x would give now."""
    remembered = getattr(x, _NARROW_COPY, None)
    if remembered is None:
        return None
    narrow, version = remembered
    has_changed = x._version != version
    # A checkpoint gives x a gradient that the copy from within it does not have.
    differs_in_gradient = narrow.requires_grad != x.requires_grad
    device = x.device.type
    is_dtype_of_autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == narrow.dtype
    if has_changed or differs_in_gradient or not is_dtype_of_autocast:
        return None
    return narrow


def _suits_triton(x: torch.Tensor, sublayer_x: torch.Tensor, layer_norm: nn.LayerNorm) -> bool:
    """Return whether these are large sums under autocast with bfloat16, on a GPU of NVIDIA, and an ordinary norm.

    Other dtypes have not been measured.
    """
    return (
        x.numel() >= LEAST_ELEMENTS
        and x.dtype == torch.float32
        and sublayer_x.dtype == torch.bfloat16
        and x.shape == sublayer_x.shape
        and x.shape[-1] % _MULTIPLE_OF_D_MODEL == 0
        and are_on_one_nvidia_gpu([x, sublayer_x])
        and _is_plain_norm(layer_norm, x.shape[-1])
    )


def _is_plain_norm(module: nn.Module, d_model: int) -> bool:
    """Return whether a module is exactly `nn.LayerNorm` over d_model, unmodified, with float32 weight and bias."""
    return (
        type(module) is nn.LayerNorm
        and module.normalized_shape == (d_model,)
        and module.bias is not None
        and module.weight.dtype == torch.float32
        and is_unmodified(module)
    )
