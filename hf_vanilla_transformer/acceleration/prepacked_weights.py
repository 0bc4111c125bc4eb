"""Linear layers without gradients, computed from prepacked weights, in floating point and in int8.

Each class equals the formula in its docstring. Shapes have named axes, as in the model's file.
"""

import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from .fast_path_checks import cpu_supports_matmul_in


# The number of rows that oneDNN packs weights for; others are no faster at 1 to 256 rows.
_PACKED_FOR_ROWS = 16
# Without AVX-512: the largest matrix, in elements, for which MKL is faster than oneDNN, whose calls take longer to
# start; and the smallest whose multiplication with one row is worth splitting over threads.
_LARGEST_FOR_MKL, _SMALLEST_TO_SPLIT = 2**15, 2**18
# torch's engines for int8 matmuls that quantize their input dynamically.
_INT8_ENGINES = ("x86", "fbgemm")


def matrix_of(layer: Any) -> torch.Tensor:
    """W of a layer, `(out, in)`, in floating point."""
    return layer.float_weight() if _is_int8(layer) else layer.weight


def _is_int8(layer: Any) -> bool:
    # By its weights: `Int8Linear` packs itself with this file, so this file cannot import it.
    return layer.weight.dtype == torch.int8


class PackedLinear:
    """Section 3: [x W_1^T + b_1, x W_2^T + b_2, ...] of several linear layers, as one matmul.

    Args:
        weight (`torch.Tensor` of shape `(out, in)`): of all layers, concatenated.
        bias (`torch.Tensor` of shape `(out,)`, *optional*): likewise.
        layers (`nn.Linear`): the layers.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        self._weight = weight if weight.is_floating_point() else torch.cat([matrix_of(layer) for layer in layers])
        self._bias = bias

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        """Whether this class can compute these layers on this machine."""
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`(rows, in)` to `(rows, out)`, where out is the sum of the layers' outputs."""
        return nn.functional.linear(x, self._weight, self._bias)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        """max(0, x W^T + b); in Eq. 2, the inner layer."""
        return self(x).relu_()

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T + b, `(rows, out)`: the sum of section 3.1 around a sub-layer that ends in W."""
        return self(x).add_(residual)


class _OneDNNLinear(PackedLinear):
    """By oneDNN on CPUs, from weights in its own layout: with few rows, reading the weights dominates the time."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS), bias, layers)

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        weight = layers[0].weight
        return (
            weight.device.type == "cpu"
            and weight.dtype in (torch.float32, torch.bfloat16)
            and cpu_supports_matmul_in(weight.dtype)
            and bool(torch.backends.mkldnn.enabled)
            and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "relu", [], "")

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


class _Avx2Linear(PackedLinear):
    """In float32 on CPUs without AVX-512, where MKL has less overhead per call than oneDNN and equal bandwidth."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        one_row = _SplitLinear if weight.numel() >= _SMALLEST_TO_SPLIT else PackedLinear
        several_rows = _OneDNNLinear if weight.numel() > _LARGEST_FOR_MKL else PackedLinear
        self._one_row, self._several_rows = one_row(weight, bias, layers), several_rows(weight, bias, layers)

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        return (
            torch.backends.cpu.get_cpu_capability() == "AVX2"
            and torch.backends.mkl.is_available()
            and layers[0].weight.dtype == torch.float32
            and _OneDNNLinear.can_compute(layers)
        )

    def _for(self, x: torch.Tensor) -> PackedLinear:
        return self._one_row if len(x) == 1 else self._several_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._for(x)(x)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return self._for(x).relu(x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._for(x).plus(x, residual)


class _SplitLinear(PackedLinear):
    """One matmul per thread, each with a part of W, because MKL computes a single row of x in one thread.

    W is split by columns, from its transpose, where it has fewer columns than rows: MKL reads that faster.
    """

    @cached_property
    def _columns(self) -> torch.Tensor:
        # Made at the first single row. Concurrent threads may make it twice, which is harmless.
        return self._weight.t().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        threads, (outputs, inputs) = torch.get_num_threads(), self._weight.shape
        if min(inputs, outputs) % threads:
            return super().__call__(x)
        return self._by_columns(x, threads) if inputs < outputs else self._by_rows(x, threads)

    def _by_rows(self, x: torch.Tensor, threads: int) -> torch.Tensor:
        parts = self._weight.view(threads, -1, x.shape[1]).transpose(1, 2)
        x = x.expand(threads, -1, -1)
        if self._bias is None:
            return torch.bmm(x, parts).view(1, -1)
        return torch.baddbmm(self._bias.view(threads, 1, -1), x, parts).view(1, -1)

    def _by_columns(self, x: torch.Tensor, threads: int) -> torch.Tensor:
        parts = self._columns.view(threads, -1, self._columns.shape[1])
        out = torch.bmm(x.reshape(threads, 1, -1), parts).sum(dim=0)
        return out if self._bias is None else out.add_(self._bias)


class Int8PackedLinear(PackedLinear):
    """From int8 weights on CPUs; x is quantized dynamically, as [`Int8Linear`] states."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[Any]):
        scale = torch.cat([layer.weight_scale for layer in layers]).double()
        with warnings.catch_warnings():
            # torch has deprecated quantized tensors; `can_compute` checks that they still exist.
            warnings.simplefilter("ignore")
            whole = torch._make_per_channel_quantized_tensor(weight, scale, torch.zeros_like(scale).long(), 0)
        self._packed = torch.ops.quantized.linear_prepack(whole, None if bias is None else bias.float())
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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_relu_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)


# The first class that suits computes the layers.
_CLASSES: tuple[type[PackedLinear], ...] = (Int8PackedLinear, _Avx2Linear, _OneDNNLinear, PackedLinear)
# By the first layer and the number of layers: copies of the weights that were packed, and the packed weights.
_packed: WeakKeyDictionary[nn.Module, dict[int, tuple[list[torch.Tensor], PackedLinear]]] = WeakKeyDictionary()
# Concurrent threads would pack the same layers twice, and share the filters of warnings.
_packing = threading.RLock()


@torch.no_grad()
def pack(*layers: nn.Linear) -> PackedLinear:
    """Several linear layers as one matmul, computed in the fastest way on this machine.

    Weights are packed again unless they equal those packed before, element by element: optimizers and writes through
    `.data` leave no other trace. So call this wherever weights may have changed.

    Args:
        layers (`nn.Linear` or `Int8Linear`): of one class, with equal `in_features`, all with a bias or none.

    Returns:
        [`PackedLinear`].
    """
    kind = next(kind for kind in _CLASSES if kind.can_compute(layers))
    weights = [layer.weight for layer in layers]
    biases: list[Any] = [layer.bias for layer in layers if layer.bias is not None]
    others: list[Any] = [*biases, *(layer.weight_scale for layer in layers if _is_int8(layer))]
    with _packing:
        packed_by_count = _packed.setdefault(layers[0], {})
        copies, packed = packed_by_count.get(len(layers), ([], None))
        tensors = [*weights, *others]
        if type(packed) is kind and len(copies) == len(tensors) and all(map(_are_equal, copies, tensors)):
            return packed
        weight = torch.cat(weights)
        # The classes that keep this matrix never write into it.
        copies = [*weight.split([len(each) for each in weights]), *(tensor.clone() for tensor in others)]
        packed = kind(weight, torch.cat(biases) if biases else None, layers)
        packed_by_count[len(layers)] = copies, packed
        return packed


def forget_packed() -> None:
    """Drop all packed weights, so that the next use of a layer packs it again."""
    _packed.clear()


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    # torch compares large matrices faster as 64-bit integers.
    if one.ndim > 1 and _fits_int64(one) and _fits_int64(other):
        one, other = one.view(torch.int64), other.view(torch.int64)
    return torch.equal(one, other)


def _fits_int64(x: torch.Tensor) -> bool:
    elements = 8 // x.element_size()
    return x.is_contiguous() and x.shape[-1] % elements == 0 and x.storage_offset() % elements == 0
