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
    """Return the floating-point matrix of a layer, `(out, in)`. For an `Int8Linear`, it is the dequantized matrix."""
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
        self._bias = bias
        self._weight = weight
        if not weight.is_floating_point():
            # Int8 weights are dequantized, because torch's default matmul needs a floating-point matrix.
            float_weights = [read_float_weight(layer) for layer in layers]
            self._weight = torch.cat(float_weights)

    @classmethod
    def can_compute(cls, layers: Sequence[nn.Linear]) -> bool:
        """Return True if this class can compute these layers on this machine."""
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """Apply all layers to x, `(rows, in)`, and return their concatenated outputs, `(rows, out)`."""
        return nn.functional.linear(x, self._weight, self._bias)

    def relu(self, x: Tensor) -> Tensor:
        """Compute max(0, x W^T + b), the inner layer of Eq. 2."""
        # The output is a new tensor, so it may be changed in place, here and in `plus`.
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
        # All layers are alike, so the first one represents them.
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

    # The operator can fuse a second operation into the matmul: "relu", the addition of a tensor ("add"), or "none". The
    # arguments `[]` and `""` are parameters of the second operation, which these operations do not have.
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
        """Create the two objects that compute the layers: one for a single row of x, and one for several rows.

        Which classes are fastest depends on the size of the matrix, in elements:

        - A single row is computed by MKL, with the matrix split over threads from `_SMALLEST_TO_SPLIT` elements on.
        - Several rows are computed by MKL up to `_LARGEST_FOR_MKL` elements, and by oneDNN above.
        """
        # The base class's `__init__` is not called, because only these two objects hold weights. Each method of this
        # class calls one of them.
        num_elements = weight.numel()
        self._for_single_row: PackedLinear
        if num_elements >= _SMALLEST_TO_SPLIT:
            # The matrix is so large that dividing it among threads saves time.
            self._for_single_row = _SplitLinear(weight, bias, layers)
        else:
            # This class uses MKL.
            self._for_single_row = PackedLinear(weight, bias, layers)

        self._for_several_rows: PackedLinear
        if num_elements <= _LARGEST_FOR_MKL:
            # The matrix is so small that MKL is faster than oneDNN, whose calls have more overhead.
            self._for_several_rows = PackedLinear(weight, bias, layers)
        else:
            self._for_several_rows = _OneDNNLinear(weight, bias, layers)

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
    """Linear layers for a single row of x. The matrix W is split, so that each thread multiplies a part of it.

    MKL would compute a single row in one thread. A matrix with fewer columns than rows is split by columns, from its
    transpose, which MKL reads faster; any other matrix is split by rows.
    """

    @cached_property
    def _transposed_weight(self) -> Tensor:
        # The transpose is created for the first single row. Concurrent threads may create it twice, which is harmless.
        return self._weight.t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x W^T + b, `(1, out)`, for one row x, `(1, in)`, with an equal part of W for each thread."""
        num_threads = torch.get_num_threads()
        # W has the shape (out, in), with a row for each output and a column for each input. For example, a matrix
        # (2048, 512) is split by its 512 columns, and a matrix (512, 2048) is split by its 512 rows.
        num_outputs, num_inputs = self._weight.shape
        has_fewer_columns = num_inputs < num_outputs
        if has_fewer_columns and num_inputs % num_threads == 0:
            return self._multiply_by_column_parts(x, num_threads)
        if not has_fewer_columns and num_outputs % num_threads == 0:
            return self._multiply_by_row_parts(x, num_threads)
        # The parts would differ in size, which one batched matmul cannot compute. The base class does not split W.
        return super().__call__(x)

    def _multiply_by_row_parts(self, x: Tensor, num_threads: int) -> Tensor:
        """Compute x W^T + b for one row x, `(1, in)`, as one batched matmul with the rows of W split into parts.

        Each thread computes a part of the output. Returns all of the output, `(1, out)`.
        """
        num_inputs = x.shape[1]
        # (threads, out / threads, in)
        weight_parts = self._weight.view(num_threads, -1, num_inputs)
        # All threads read the same row x, (threads, 1, in). expand() does not copy it.
        x_of_threads = x.expand(num_threads, -1, -1)
        # baddbmm(a, b, c) computes a + b c for each thread. The output parts are (threads, 1, out / threads).
        if self._bias is None:
            output_parts = torch.bmm(x_of_threads, weight_parts.transpose(1, 2))
        else:
            bias_parts = self._bias.view(num_threads, 1, -1)
            output_parts = torch.baddbmm(bias_parts, x_of_threads, weight_parts.transpose(1, 2))
        return output_parts.view(1, -1)

    def _multiply_by_column_parts(self, x: Tensor, num_threads: int) -> Tensor:
        """Compute x W^T + b for one row x, `(1, in)`, as one batched matmul with the columns of W split into parts.

        Each thread multiplies a part of x by a part of W. The output, `(1, out)`, is the sum of the results.
        """
        num_inputs, num_outputs = self._transposed_weight.shape
        # (threads, in / threads, out)
        weight_parts = self._transposed_weight.view(num_threads, num_inputs // num_threads, num_outputs)
        # (threads, 1, in / threads)
        x_parts = x.reshape(num_threads, 1, -1)
        products = torch.bmm(x_parts, weight_parts)  # (threads, 1, out)
        output = products.sum(dim=0)  # (1, out)
        if self._bias is not None:
            output.add_(self._bias)
        return output


class Int8PackedLinear(PackedLinear):
    """Linear layers with int8 weights for CPUs. They also quantize their input at each call; see [`Int8Linear`]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, layers: Sequence[nn.Linear]):
        """Pack the integers of several `Int8Linear` layers together with their scales and biases.

        Only [`pack`] may create objects of this class, because it fulfills two conditions that are not checked here. It
        holds `_packing_lock`; without it, two threads could leave the warning filters of the process changed. And
        `can_compute` has returned True; otherwise, torch may lack the functions that are called here.

        Args:
            weight (`torch.Tensor` of shape `(out, in)`): the int8 matrices of all layers, concatenated.
            bias (`torch.Tensor` of shape `(out,)`, *optional*): the biases of all layers, concatenated.
            layers (`Int8Linear`): the layers, from which the scales are read.
        """
        # The base class's `__init__` is not called, because it would dequantize the weight. It sets `_weight` and
        # `_bias`, which no method of this class reads: `__call__` and `relu` are overridden, and the inherited `plus`
        # only uses `__call__`.
        row_scales = torch.cat(_read_scales(layers)).double()  # (out,)
        quantized_weight = _make_quantized_matrix(weight, row_scales)
        bias_in_float32 = None
        if bias is not None:
            bias_in_float32 = bias.float()
        # The weight and the bias in the layout of fbgemm, as one object that only torch's int8 matmuls can read.
        self._packed_weight_and_bias = torch.ops.quantized.linear_prepack(quantized_weight, bias_in_float32)
        # Whether x is quantized to 7 bits instead of 8. Without VNNI, the CPU adds pairs of int8 products in 16 bits,
        # which can overflow with 8 bits of x, but not with 7.
        self._uses_7_bits = not torch.cpu._is_vnni_supported()

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
        output = torch.ops.quantized.linear_dynamic(x.float(), self._packed_weight_and_bias, self._uses_7_bits)
        return output.to(x.dtype)

    def relu(self, x: Tensor) -> Tensor:
        output = torch.ops.quantized.linear_relu_dynamic(x.float(), self._packed_weight_and_bias, self._uses_7_bits)
        return output.to(x.dtype)


def _make_quantized_matrix(integers: Tensor, row_scales: Tensor) -> Tensor:
    """Make a quantized matrix of torch, `(out, in)`, from int8 `integers`, `(out, in)`, and `row_scales`, `(out,)`.

    This changes the warning filters of the whole process for a moment. The caller must hold `_packing_lock`, so that
    two threads do not do it at the same time.
    """
    # torch's quantized matrix has a zero point for each row, the integer that stands for 0.0. Here, it is always 0.
    zero_points = torch.zeros_like(row_scales).long()  # (out,)
    with warnings.catch_warnings():
        # torch has deprecated quantized tensors, and warns of it.
        warnings.simplefilter("ignore")
        return torch._make_per_channel_quantized_tensor(integers, row_scales, zero_points, axis=0)


class _LayerTensors(NamedTuple):
    """The tensors of several linear layers, in the order of the layers.

    Args:
        weights: the matrices.
        biases: the biases; empty if the layers have none.
        scales: the row scales; empty unless the layers are int8.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    scales: list[Tensor]


class _PackedWeights(NamedTuple):
    """Packed layers, with copies of the layers' tensors at the time of packing.

    The copies show whether the layers have changed since then.
    """

    copies: _LayerTensors
    packed: PackedLinear


# The first of these classes that can compute the layers is used, or else `PackedLinear`.
_FAST_CLASSES: tuple[type[PackedLinear], ...] = (Int8PackedLinear, _Avx2Linear, _OneDNNLinear)
# Packed weights, stored by the first layer and the number of layers. They are released together with the first layer.
_packed_weights: WeakKeyDictionary[nn.Module, dict[int, _PackedWeights]] = WeakKeyDictionary()
# Without the lock, concurrent threads would pack the same layers twice, and would change shared warning filters.
_packing_lock = threading.RLock()


@torch.no_grad()
def pack(*layers: nn.Linear) -> PackedLinear:
    """Combine linear layers with the same input into one matmul, with weights in a layout that is fast to read.

    The fastest class that this machine supports is used. Packed weights are stored, and a later call for the same
    layers reuses them. Call this function again wherever weights may have changed. It compares the weights, element by
    element, with copies of the weights that were packed before, because optimizers and writes through `.data` leave no
    other trace. If anything differs, it packs the weights again.

    Args:
        layers (`nn.Linear` or `Int8Linear`): layers of one class with equal `in_features`. Either all of them have a
            bias, or none.

    Returns:
        [`PackedLinear`].
    """
    packed_class = _choose_class(layers)
    tensors = _LayerTensors(
        weights=[layer.weight for layer in layers],
        biases=[layer.bias for layer in layers if layer.bias is not None],
        scales=_read_scales(layers),
    )
    # The look-up and the packing must be under one lock. Otherwise, two threads could both find nothing, and pack.
    with _packing_lock:
        # The packed weights are found by the first layer, and then by the number of layers, because the first layer may
        # be packed alone, and also together with others. For example, pack(q) and pack(q, k, v) are stored as
        # {q: {1: ..., 3: ...}}. The other layers are not part of the key, because they are almost always the same. If
        # they are not, the comparison finds their different tensors, and the layers are packed again. `setdefault`
        # stores an empty dict for a new first layer.
        packed_by_number = _packed_weights.setdefault(layers[0], {})
        earlier = packed_by_number.get(len(layers))
        if earlier is not None and type(earlier.packed) is packed_class and _are_equal(earlier.copies, tensors):
            return earlier.packed

        new = _copy_and_pack(packed_class, layers, tensors)
        packed_by_number[len(layers)] = new
        return new.packed


def _choose_class(layers: Sequence[nn.Linear]) -> type[PackedLinear]:
    """Return the fastest class that can compute these layers on this machine."""
    for fast_class in _FAST_CLASSES:
        if fast_class.can_compute(layers):
            return fast_class
    return PackedLinear


def _copy_and_pack(
    packed_class: type[PackedLinear], layers: Sequence[nn.Linear], tensors: _LayerTensors
) -> _PackedWeights:
    """Pack layers as an object of the given class, and copy their tensors. Later calls of [`pack`] read the copies."""
    # torch.cat copies the matrices into new memory, even if there is only one.
    weight = torch.cat(tensors.weights)  # (out of all layers, in)
    bias = torch.cat(tensors.biases) if tensors.biases else None

    # The matrices take most of the memory, so they are not copied a second time: views of the concatenated matrix serve
    # as copies. `PackedLinear` and its subclasses may keep `weight`, but must never write into it, because that would
    # change the copies, and each call of `pack` would find a difference and pack again. The layers themselves may
    # change, because `weight` shares no memory with them. Biases and scales are small, so they are cloned.
    rows_of_layers = [len(layer_weight) for layer_weight in tensors.weights]
    copies = _LayerTensors(
        weights=list(weight.split(rows_of_layers)),
        biases=[layer_bias.clone() for layer_bias in tensors.biases],
        scales=[scale.clone() for scale in tensors.scales],
    )
    return _PackedWeights(copies, packed_class(weight, bias, layers))


def forget_packed() -> None:
    """Release the memory of all packed weights. The next use of a layer packs its weights again."""
    _packed_weights.clear()


def _are_equal(copies: _LayerTensors, tensors: _LayerTensors) -> bool:
    """Return True if the layers have the same tensors as the copies, with the same dtypes, shapes and elements."""
    # Each of the two tuples has three lists of tensors: the weights, the biases and the scales of the layers.
    for tensor_copies, layer_tensors in zip(copies, tensors, strict=True):
        if len(tensor_copies) != len(layer_tensors):
            return False
        if not all(map(_is_equal, tensor_copies, layer_tensors)):
            return False
    return True


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return True if two tensors have the same dtype, shape and elements."""
    if first.dtype != second.dtype:
        return False
    # torch compares large matrices faster as 64-bit integers. Comparing bits is at least as strict, except that a NaN
    # then equals itself.
    is_matrix = first.ndim > 1
    if is_matrix and _fits_int64(first) and _fits_int64(second):
        return torch.equal(first.view(torch.int64), second.view(torch.int64))
    return torch.equal(first, second)


def _fits_int64(x: Tensor) -> bool:
    """Return True if the memory of x can be viewed as 64-bit integers."""
    # A 64-bit integer has 8 bytes, so it holds for example two float32 or eight int8 elements.
    elements_per_integer = 8 // x.element_size()
    has_whole_rows = x.shape[-1] % elements_per_integer == 0
    is_aligned = x.storage_offset() % elements_per_integer == 0
    return x.is_contiguous() and has_whole_rows and is_aligned
