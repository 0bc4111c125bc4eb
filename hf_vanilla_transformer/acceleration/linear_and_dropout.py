"""Faster implementations of linear layers, dropout and casts, which replace those in `model/operations.py`.

- `fast_linear` computes large float32 matmuls on CPUs with AVX-512 with oneDNN, where torch would use MKL. The speedup
  of a base-model training step is 1.14x.
- `fast_drop` draws dropout masks on CPUs from 16 random bits per element, which torch generates many times faster than
  Bernoulli samples. The speedup of the step is 1.08x in float32, and 1.02x under bfloat16 autocast.
- `cast_to_matmul_dtype`, `cast_once_for_layers_on_accelerators` and `cast_weights_once_under_autocast` perform casts
  that autocast needs once, instead of once per matmul, layer or decoding step. This saves kernel launches on GPUs.

The speedups were measured for 480 tokens in sentences of 30 tokens and a vocabulary of 10,000, on one thread of an AMD
EPYC with AVX-512. They are medians of seven alternating pairs of CPU times, with and without the fast operation.

The implementation is chosen by device, dtype and size; there is no option. tests/acceleration/test_kernels.py compares
them with the plain operations (`TestLinear`, `TestDropout`), and tests/acceleration/test_launches.py counts launches.
Axes of tensors are named as in `modeling_vanilla_transformer.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from .autograd_context import AutogradContext
from .fast_path_checks import (
    float32_matmuls_are_precise,
    has_avx512,
    is_plain_cpu_tensor,
    is_plain_linear,
    is_traced,
    warn_of_slow_matmuls,
)


# For matmuls with fewer multiply-adds, MKL is faster than oneDNN, whose calls have more overhead. The number was chosen
# by timing matmuls on one thread of an AMD EPYC with AVX-512; the measurements were not kept.
_SMALLEST_FOR_ONEDNN = 2**21
# Maps the size of a floating-point dtype in bytes to the integer dtype of the same size.
_INTEGER_DTYPE_BY_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def fast_drop(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Apply dropout, x * keep / (1 - rate) (section 5.4), with a fast random generator on CPUs.

    This replaces [`~.operations.drop`]. With random bits, the rate is rounded to a multiple of 2^-16, and x is divided
    by 1 minus the rounded rate. Rates of 0 and 1 are exact, and rates too small for 16 bits are left to torch.

    Args:
        x (`torch.Tensor`, of any shape): the tensor whose elements are dropped.
        rate (`float`): the probability of dropping an element, from 0 to 1.
        training (`bool`): whether to drop anything; if False, returns x.

    Returns:
        `torch.Tensor`, of the shape and dtype of x.
    """
    if not training:
        return x
    # An element is dropped if its 16 random bits have one of this many values, out of 2^16. For example, a rate of 0.1
    # gives 6,554 values.
    num_dropping_values = round(rate * 2**16)
    drops_some_elements = 0 < num_dropping_values < 2**16
    has_integer_dtype = x.element_size() in _INTEGER_DTYPE_BY_SIZE
    if drops_some_elements and has_integer_dtype and is_plain_cpu_tensor(x):
        keep = _draw_keep(x, num_dropping_values)
        # 1 / (1 - rounded rate), so that the expected value of each element stays the same.
        scale = 2**16 / (2**16 - num_dropping_values)
        return _Dropout.apply(x, keep, scale)
    return nn.functional.dropout(x, p=rate)


def _draw_keep(x: Tensor, num_dropping_values: int) -> Tensor:
    """Draw a dropout mask for x: integers that are 0 where an element is dropped, and 1 where it is kept.

    Each element is dropped independently with probability `num_dropping_values` / 2^16. The result has the shape of x.
    Its integer dtype has as many bytes per element as the dtype of x, for example int32 for float32.
    """
    random_numbers = _draw_int16(x)
    # The random numbers are from -2^15 to 2^15 - 1. The smallest `num_dropping_values` of them drop an element, and all
    # larger ones keep it. For example, if 6,554 numbers drop an element, these are -32,768 to -26,215, and
    # -32,768 + 6,554 = -26,214 is the smallest number that keeps it.
    smallest_int16 = -(2**15)
    smallest_keeping_number = smallest_int16 + num_dropping_values

    # Both comparisons write integers, 1 for True and 0 for False, instead of creating booleans.
    keep_dtype = _INTEGER_DTYPE_BY_SIZE[x.element_size()]
    if keep_dtype == torch.int16:
        # The result has the dtype of the random numbers, which are not needed any more, so it takes their memory. An
        # in-place comparison keeps the dtype of its tensor: `ge_` replaces each number with 1 or 0, in int16.
        return random_numbers.ge_(smallest_keeping_number)
    keep = torch.empty_like(random_numbers, dtype=keep_dtype)
    return torch.ge(random_numbers, smallest_keeping_number, out=keep)


def _draw_int16(x: Tensor) -> Tensor:
    """Draw a uniformly distributed integer between -2^15 and 2^15 - 1 for each element of x.

    The result is an int16 tensor of the shape of x. Each 64-bit integer that torch draws gives four of these integers,
    so torch has to draw only a quarter as many numbers.
    """
    num_elements = x.numel()
    # Rounded up, so some of the last 16-bit integers may not be needed.
    num_64_bit_integers = (num_elements + 3) // 4
    # With the lower bound -2^63 and no upper bound (None), random_() draws all 64 bits.
    random_64_bits = x.new_empty(num_64_bit_integers, dtype=torch.int64).random_(-(2**63), None)
    # `view` with a smaller dtype reinterprets the memory, so the result has four times as many elements.
    random_16_bits = random_64_bits.view(torch.int16)
    return random_16_bits[:num_elements].view(x.shape)


class _DropoutContext(AutogradContext, Protocol):
    scale: float


class _Dropout(torch.autograd.Function):
    """An autograd function for dropout, which multiplies x by a mask of integers 0 and 1, and by a scale.

    The bits of x are multiplied as integers, because multiplying tensors of different dtypes is slow. Multiplying the
    bits by 1 leaves the number as it is, and multiplying them by 0 gives the bits of 0.0, even for infinity and NaN.
    """

    @staticmethod
    def forward(ctx: _DropoutContext, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        """Compute x * keep * scale. `keep` is a mask from [`_draw_keep`], of the shape of x."""
        ctx.save_for_backward(keep)
        ctx.scale = scale
        # `view` with a dtype of the same size reinterprets the memory and converts nothing. `mul_` changes only the
        # memory of `kept_bits`, which is new.
        kept_bits = x.view(keep.dtype) * keep
        return kept_bits.view(x.dtype).mul_(scale)

    @staticmethod
    def backward(ctx: _DropoutContext, grad: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        # The gradient is dropped and scaled like x. Applying the function again allows second derivatives.
        return _Dropout.apply(grad, keep, ctx.scale), None, None


def fast_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer, x W^T + b, with oneDNN if that is faster than torch's default.

    This replaces [`~.operations.linear`]. A modified layer, or a module that has replaced a layer, is simply called.

    Args:
        layer (`nn.Linear`): the layer, or a module that has replaced it.
        x (`torch.Tensor` of shape `(..., in)`): the inputs.

    Returns:
        `torch.Tensor` of shape `(..., out)`.
    """
    # x is checked first, because on GPUs there is no choice, and checking the layer takes longer than many matmuls.
    if not (is_plain_cpu_tensor(x) and is_plain_linear(layer)):
        return layer(x)
    weight: Tensor = layer.weight  # type: ignore[assignment]
    if is_faster_by_onednn(x, weight):
        return _Linear.apply(x, weight, layer.bias)
    warn_of_slow_matmuls(x.dtype)
    return layer(x)


def is_faster_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN computes x W^T faster than torch's default, and in the same precision.

    oneDNN needs half the time of MKL on an AMD CPU with AVX-512 (docs/architecture.md, "Speed"). Without AVX-512, MKL
    is faster. If the user has allowed a lower precision, or autocast computes in 16 bits, torch uses oneDNN by itself.
    """
    # The number of multiply-adds is rows * in * out, where x is (rows, in) and the weight is (out, in).
    return (
        x.dtype == weight.dtype == torch.float32
        and has_avx512()
        and x.numel() * weight.shape[0] >= _SMALLEST_FOR_ONEDNN
        and is_plain_cpu_tensor(x)
        and bool(torch.backends.mkldnn.enabled)
        # A private operator of torch, which a later release may remove.
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and float32_matmuls_are_precise()
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x W^T + b, `(..., out)`, with oneDNN. The result has no gradient."""
    # The last three arguments can fuse an operation such as ReLU into the matmul. Here, nothing is fused.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """The linear map x W^T + b as an autograd function whose output and gradients are computed with oneDNN."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        # The gradient of x needs the weight, and the gradient of the weight needs x.
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of x, weight and bias, where they are needed, from the gradient `(..., out)`.

        With x as rows X, `(rows, in)`, the weight W, `(out, in)`, and the gradient G, `(rows, out)`, of X W^T + b, they
        are G W, G^T X, and the sum of the rows of G. A gradient that is not needed is None.
        """
        # `forward` has saved x, (..., in), and the weight, (out, in), each only if a gradient needs it, else None.
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        # Both functions compute a @ b.T from their arguments (a, b). So to compute a @ b, b.T is passed, which is
        # transposed back. A second derivative needs the function that torch can differentiate.
        needs_second_derivative = torch.is_grad_enabled()
        multiply_by_transpose = nn.functional.linear if needs_second_derivative else onednn_linear

        grad_rows = grad.flatten(0, -2)  # (rows, out)
        grad_x = None
        grad_weight = None
        grad_bias = None
        # If `needs_x`, `forward` has saved the weight, and if `needs_weight`, it has saved x. So where the comparisons
        # with None below are reached, they are True. They are there for type checkers, which cannot know this.
        if needs_x and weight is not None:
            # This is G W, i.e. grad @ weight, (..., in).
            grad_x = multiply_by_transpose(grad, weight.T)
        if needs_weight and x is not None:
            x_rows = x.flatten(0, -2)  # (rows, in)
            # This is G^T X, i.e. grad_rows.T @ x_rows, (out, in).
            grad_weight = multiply_by_transpose(grad_rows.T, x_rows.T)
        if needs_bias:
            grad_bias = grad_rows.sum(dim=0)  # (out,)
        return grad_x, grad_weight, grad_bias


def cast_to_matmul_dtype(x: Tensor) -> Tensor:
    """Cast x to autocast's dtype, so that several matmuls that read x share one cast. Without autocast, return x."""
    return x.to(dtype_for_matmul(x))


def dtype_for_matmul(x: Tensor) -> torch.dtype:
    """Return the dtype in which a matmul with x is computed: autocast's dtype, or the dtype of x without autocast."""
    device = x.device.type
    # torch raises an error for autocast on "meta", and autocast does not cast float64.
    if device == "meta" or not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return x.dtype
    return torch.get_autocast_dtype(device)


def cast_once_for_layers_on_accelerators(x: Tensor) -> Tensor:
    """Cast the encoder's output to autocast's dtype once for all decoder layers, if it is on an accelerator.

    This saves a kernel launch per layer, but the gradients of the layers are added up in autocast's dtype. On CPUs a
    cast costs little, so each layer casts its own input, and gradients are added up in float32.
    """
    return x if is_plain_cpu_tensor(x) else cast_to_matmul_dtype(x)


@contextmanager
def cast_weights_once_under_autocast(model: nn.Module) -> Iterator[None]:
    """Let autocast cast each weight only once for the duration of the block.

    The Trainer enters autocast within `forward`, and torch discards its casts of weights when the outermost autocast
    context ends. Without this context manager, all weights would be cast again at each decoding step. If the model
    computes without autocast, nothing is cast.

    Args:
        model (`nn.Module`): a model whose weights do not change within the block.
    """
    if is_traced() or not _holds_its_weights(model):
        # Autocast keeps its default behaviour.
        yield
        return
    # torch counts how many autocast contexts are open, and discards its casts when the count falls to 0. Counting this
    # block as one of them keeps the casts until it ends.
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def _holds_its_weights(model: nn.Module) -> bool:
    """Return True if a model's weights stay in memory between forward passes.

    Offloaded and sharded weights are loaded again for each forward pass. If autocast kept their casts, the casts of all
    passes would stay in memory.
    """
    for weight in model.parameters():
        # Sharded weights belong to a subclass. Offloaded weights have no memory between forward passes.
        is_sharded = type(weight) is not nn.Parameter
        is_offloaded = weight.device.type == "meta"
        if is_sharded or is_offloaded:
            return False
    return True
