"""Fast linear layers for decoding steps on CPUs, whose weights are packed once into a layout that is fast to read.

`pack` replaces `nn.Linear` and `Int8Linear` layers in [`~.cpu_decoder.CPUDecoder`], which runs without gradients. A
decoding step multiplies few rows, so reading the weights takes most of its time. The libraries oneDNN and fbgemm read
weights faster in their own layouts, and several layers with the same input become one matmul. docs/benchmarks.md
("Without the package") reports the speedup of the whole decoder, and "Decoding" compares it with other implementations.

Each class computes the formula in the docstring of [`PackedLinear`]. tests/generation/test_step.py compares every class
with the layer, and checks that changed weights are packed again; tests/acceleration/test_int8_quantization.py tests
int8. Axes of tensors are named as in `modeling_vanilla_transformer.py`.
"""

import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .fast_path_checks import cpu_supports_matmul_in


# oneDNN packs weights for an expected number of rows of x. With 1 to 256 rows, other numbers were not faster.
_PACKED_FOR_ROWS = 16
# Two sizes for CPUs without AVX-512, in elements of the matrix. Up to the first, MKL is faster than oneDNN: a call of
# oneDNN takes 25 to 40 microseconds to start there, one of MKL 5. From the second on, multiplying a single row is worth
# splitting over threads. They were chosen by timing single matmuls; the measurements were not kept.
_LARGEST_FOR_MKL = 2**15
_SMALLEST_TO_SPLIT = 2**18
# The torch engines that support int8 matmuls with dynamically quantized input.
_INT8_ENGINES = ("x86", "fbgemm")


def read_float_weight(layer: nn.Linear) -> Tensor:
    """Return a layer's floating-point matrix W, `(out, in)`. For an `Int8Linear`, this is the dequantized matrix."""
    if _is_int8(layer):
        return layer.float_weight()  # type: ignore[operator]
    return layer.weight


def _is_int8(layer: nn.Linear) -> bool:
    """Return True if a layer is an `Int8Linear`.

    This module cannot import that class, because its `forward` calls `pack`.
    """
    return layer.weight.dtype == torch.int8


def _read_scales(layers: Sequence[nn.Linear]) -> list[Tensor]:
    """Return the row scales of each `Int8Linear` among the layers."""
    return [cast(Tensor, layer.weight_scale) for layer in layers if _is_int8(layer)]


class PackedLinear:
    """Several linear layers that are computed as one matmul: [x W_1^T + b_1, x W_2^T + b_2, ...].

    This class uses torch's default matmul; its subclasses are faster on some CPUs.

    Args:
        weight (`torch.Tensor` of shape `(out, in)`): the matrices of all layers, concatenated.
        bias (`torch.Tensor` of shape `(out,)`, *optional*): the biases of all layers, concatenated.
        layers (`nn.Linear`): the layers.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, layers: Sequence[nn.Linear]):
        if weight.is_floating_point():
            self._weight = weight
        else:
            self._weight = torch.cat([read_float_weight(layer) for layer in layers])
        self._bias = bias

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        """Return True if this class can compute these layers on this machine."""
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """Apply all layers to x, `(rows, in)`, and return their concatenated outputs, `(rows, out)`."""
        return nn.functional.linear(x, self._weight, self._bias)

    def relu(self, x: Tensor) -> Tensor:
        """Compute max(0, x W^T + b), the inner layer of Eq. 2."""
        return self(x).relu_()

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add the output to a residual connection: residual + x W^T + b, `(rows, out)` (section 3.1)."""
        return self(x).add_(residual)


class _OneDNNLinear(PackedLinear):
    """Linear layers that oneDNN computes on CPUs, with weights in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, layers: Sequence[nn.Linear]):
        packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        super().__init__(packed_weight, bias, layers)

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        weight = layers[0].weight
        return (
            weight.device.type == "cpu"
            and weight.dtype in (torch.float32, torch.bfloat16)
            and cpu_supports_matmul_in(weight.dtype)
            and bool(torch.backends.mkldnn.enabled)
            # Private operators of torch, which a later release may remove.
            and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        )

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def relu(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "relu", [], "")

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


class _Avx2Linear(PackedLinear):
    """Float32 linear layers for CPUs without AVX-512, computed with MKL or oneDNN, whichever is faster.

    On these CPUs, MKL has less overhead per call than oneDNN, and is equally fast for a single row of x.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, layers: Sequence[nn.Linear]):
        is_worth_splitting = weight.numel() >= _SMALLEST_TO_SPLIT
        single_row_class = _SplitLinear if is_worth_splitting else PackedLinear
        self._for_single_row = single_row_class(weight, bias, layers)
        is_faster_by_mkl = weight.numel() <= _LARGEST_FOR_MKL
        several_rows_class = PackedLinear if is_faster_by_mkl else _OneDNNLinear
        self._for_several_rows = several_rows_class(weight, bias, layers)

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        return (
            torch.backends.cpu.get_cpu_capability() == "AVX2"
            and torch.backends.mkl.is_available()
            and layers[0].weight.dtype == torch.float32
            and _OneDNNLinear.can_compute(layers)
        )

    def _choose(self, x: Tensor) -> PackedLinear:
        return self._for_single_row if len(x) == 1 else self._for_several_rows

    def __call__(self, x: Tensor) -> Tensor:
        return self._choose(x)(x)

    def relu(self, x: Tensor) -> Tensor:
        return self._choose(x).relu(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._choose(x).plus(x, residual)


class _SplitLinear(PackedLinear):
    """Linear layers for a single row of x, which split W so that each thread multiplies a part of it.

    MKL would compute a single row in one thread. A matrix with fewer columns than rows is split by columns, from its
    transpose, which MKL reads faster; any other matrix is split by rows.
    """

    @cached_property
    def _transpose(self) -> Tensor:
        # The transpose is created for the first single row. Concurrent threads may create it twice, which is harmless.
        return self._weight.t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        outputs, inputs = self._weight.shape
        if min(inputs, outputs) % threads:
            # The parts would differ in size, which one batched matmul cannot compute.
            return super().__call__(x)
        if inputs < outputs:
            return self._split_by_columns(x, threads)
        return self._split_by_rows(x, threads)

    def _split_by_rows(self, x: Tensor, threads: int) -> Tensor:
        """Compute the output, `(1, out)`, for one row, `(1, in)`, where each thread computes a part of the output."""
        # (threads, in, out / threads)
        parts = self._weight.view(threads, -1, x.shape[1]).transpose(1, 2)
        x_of_threads = x.expand(threads, -1, -1)
        if self._bias is None:
            return torch.bmm(x_of_threads, parts).view(1, -1)
        return torch.baddbmm(self._bias.view(threads, 1, -1), x_of_threads, parts).view(1, -1)

    def _split_by_columns(self, x: Tensor, threads: int) -> Tensor:
        """Compute the output, `(1, out)`, for one row, `(1, in)`, as the sum of one partial product per thread."""
        # (threads, in / threads, out)
        parts = self._transpose.view(threads, -1, self._transpose.shape[1])
        output = torch.bmm(x.reshape(threads, 1, -1), parts).sum(dim=0)
        if self._bias is None:
            return output
        return output.add_(self._bias)


class Int8PackedLinear(PackedLinear):
    """Linear layers with int8 weights for CPUs, which also quantize their input at each call; see [`Int8Linear`]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, layers: Sequence[nn.Linear]):
        scale = torch.cat(_read_scales(layers)).double()
        zero_points = torch.zeros_like(scale).long()
        with warnings.catch_warnings():
            # torch has deprecated quantized tensors; `can_compute` checks that they still exist.
            warnings.simplefilter("ignore")
            quantized_weight = torch._make_per_channel_quantized_tensor(weight, scale, zero_points, 0)
        float_bias = None if bias is None else bias.float()
        self._packed = torch.ops.quantized.linear_prepack(quantized_weight, float_bias)
        # Without VNNI, pairs of int8 products are added in 16 bits, which 8 bits of x could overflow and 7 cannot.
        self._reduces_range = not torch.cpu._is_vnni_supported()

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        return (
            _is_int8(layers[0])
            and layers[0].weight.device.type == "cpu"
            and torch.backends.quantized.engine in _INT8_ENGINES
            and hasattr(torch, "_make_per_channel_quantized_tensor")
            and hasattr(torch.ops.quantized, "linear_dynamic")
        )

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)

    def relu(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_relu_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)


class _PackedWeights(NamedTuple):
    """Packed layers, with copies of the original weights, biases and scales, which show whether these have changed."""

    copies: list[Tensor]
    packed: PackedLinear


# The first class that can compute the layers is used.
_CLASSES: tuple[type[PackedLinear], ...] = (Int8PackedLinear, _Avx2Linear, _OneDNNLinear, PackedLinear)
# Packed weights, stored by the first layer and the number of layers. They are released together with the first layer.
_packed: WeakKeyDictionary[nn.Module, dict[int, _PackedWeights]] = WeakKeyDictionary()
# Without the lock, concurrent threads would pack the same layers twice, and would change shared warning filters.
_packing = threading.RLock()


@torch.no_grad()
def pack(*layers: nn.Linear) -> PackedLinear:
    """Combine linear layers with the same input into one matmul with packed weights, or reuse packed weights.

    The fastest class that this machine supports is used. Call this function again wherever weights may have changed. It
    compares the weights, element by element, with copies of the weights that were packed before, because optimizers and
    writes through `.data` leave no other trace. If anything differs, it packs the weights again.

    Args:
        layers (`nn.Linear` or `Int8Linear`): layers of one class with equal `in_features`. Either all of them have a
            bias, or none.

    Returns:
        [`PackedLinear`].
    """
    packed_class = next(candidate for candidate in _CLASSES if candidate.can_compute(layers))
    weights = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    scales = _read_scales(layers)
    tensors = [*weights, *biases, *scales]
    with _packing:
        packed_by_count = _packed.setdefault(layers[0], {})
        earlier = packed_by_count.get(len(layers))
        if earlier is not None and type(earlier.packed) is packed_class and _are_equal(earlier.copies, tensors):
            return earlier.packed

        weight = torch.cat(weights)
        bias = torch.cat(biases) if biases else None
        # Views of the concatenated matrix serve as copies: the classes that keep it never write into it.
        weight_copies = weight.split([layer.weight.shape[0] for layer in layers])
        other_copies = [tensor.clone() for tensor in [*biases, *scales]]
        packed = packed_class(weight, bias, layers)
        packed_by_count[len(layers)] = _PackedWeights([*weight_copies, *other_copies], packed)
        return packed


def forget_packed() -> None:
    """Release the memory of all packed weights. The next use of a layer packs its weights again."""
    _packed.clear()


def _are_equal(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """Return True if both sequences have the same length, and each copy equals the tensor at the same index."""
    return len(copies) == len(tensors) and all(map(_is_equal, copies, tensors))


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors have the same dtype, shape and elements."""
    if first.dtype != second.dtype:
        return False
    # torch compares large matrices faster as 64-bit integers.
    if first.ndim > 1 and _fits_int64(first) and _fits_int64(second):
        return torch.equal(first.view(torch.int64), second.view(torch.int64))
    return torch.equal(first, second)


def _fits_int64(x: Tensor) -> bool:
    """Return True if the memory of x can be viewed as 64-bit integers."""
    elements = 8 // x.element_size()
    return x.is_contiguous() and x.shape[-1] % elements == 0 and x.storage_offset() % elements == 0
