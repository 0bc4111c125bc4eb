"""Linear layers computed fast where no gradient is wanted, from weights that lie as a processor reads them.

Each equals the one-line formula that its docstring states. Shapes have named axes, as in the model's file.
"""

import threading
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from .fast_path import cpu_supports_matmul_in, is_plain_cpu_tensor, onednn_supports_matmul_in


# For so many rows weights are packed; it was as fast as any other number at 1 row to 256.
_PACKED_FOR_ROWS = 16
# Without AVX-512: up to so many numbers of a matrix, oneDNN's longer start does not pay; from so many on, it pays to
# share the product of one row out among the threads.
_LARGEST_FOR_MKL, _SMALLEST_TO_SHARE = 2**15, 2**18
# Integers of weights reach from minus this to this.
_LARGEST = 127
# torch's engines with products of int8 matrices whose numbers become int8 on the way.
_INT8_ENGINES = ("x86", "fbgemm")


class Int8Linear(nn.Linear):
    """Section 3: x (s W)^T + b, where W holds integers from -127 to 127, and s has a number for each of its rows.

    On CPUs for which torch has such products, and without gradients, x is rounded too: to 256 numbers from min(x, 0) to
    max(x, 0), or to 128 where the processor lacks VNNI. So all sentences of a batch have a say in how each is rounded.

    Args:
        in_features, out_features (`int`): columns and rows of W.
        bias (`bool`): whether there is b.
        device, dtype: of s and b, and the device of W.
    """

    weight_scale: nn.Parameter

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        integers = torch.empty(out_features, in_features, device=device, dtype=torch.int8)
        numbers = torch.empty(2, out_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.weight_scale = nn.Parameter(numbers[0].clone(), requires_grad=False)
        self.register_parameter("bias", nn.Parameter(numbers[1].clone()) if bias else None)

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear) -> "Int8Linear":
        """The nearest one to a layer: the largest number of each row of its matrix becomes 127 or -127."""
        weight = layer.weight
        new = cls(layer.in_features, layer.out_features, layer.bias is not None, weight.device, weight.dtype)
        new.weight_scale.copy_(weight.abs().amax(dim=1) / _LARGEST)
        # A row of zeros stays one.
        scale = new.weight_scale.float().clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        new.weight.copy_((weight.float() / scale).round().clamp(-_LARGEST, _LARGEST))
        new.bias = layer.bias
        return new.train(layer.training)

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """The same without integers: x W'^T + b, where W' = s W."""
        weight = self.float_weight()
        sizes = self.in_features, self.out_features, self.bias is not None
        new = nn.utils.skip_init(nn.Linear, *sizes, device=weight.device, dtype=weight.dtype)
        new.weight.copy_(weight)
        new.bias = self.bias
        return new.train(self.training)

    def float_weight(self) -> torch.Tensor:
        """s W, `(out, in)`, in the dtype of s."""
        return self.weight * self.weight_scale[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(..., in)` to `(..., out)`."""
        if not torch.is_grad_enabled() and is_plain_cpu_tensor(x) and _Int8PackedLinear.suits([self]):
            return pack(self)(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.float_weight().to(x.dtype), bias)


def matrix_of(layer: nn.Linear) -> torch.Tensor:
    """W of a layer, `(out, in)`, in floating-point numbers."""
    return layer.float_weight() if isinstance(layer, Int8Linear) else layer.weight


class PackedLinear:
    """Section 3: [x W_1^T + b_1, x W_2^T + b_2, ...] of linear layers side by side, as one product.

    Args:
        weight (`torch.Tensor` of shape `(out, in)`), bias (`torch.Tensor` of shape `(out,)`, *optional*): of all.
        layers (`nn.Linear`): from which they come.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        self._weight = weight if weight.is_floating_point() else torch.cat([matrix_of(layer) for layer in layers])
        self._bias = bias

    @classmethod
    def suits(cls, layers: Sequence[nn.Linear]) -> bool:
        """Whether these layers can be computed so, here and now."""
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`(rows, in)` to `(rows, out)`, where out is the sum of the layers'."""
        return nn.functional.linear(x, self._weight, self._bias)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        """max(0, x W^T + b); in Eq. 2, the inner layer."""
        return self(x).relu_()

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T + b, `(rows, out)`: the sum of section 3.1 around a sub-layer that ends in W."""
        return self(x).add_(residual)


class _OneDNNLinear(PackedLinear):
    """By oneDNN on CPUs, from weights in its own order: with few rows, reading them is what takes the time."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS), bias, layers)

    @classmethod
    def suits(cls, layers: Sequence[nn.Linear]) -> bool:
        dtype = layers[0].weight.dtype
        return _has_onednn(layers) and dtype in (torch.float32, torch.bfloat16) and onednn_supports_matmul_in(dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "relu", [], "")

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


class _LinearByRows(PackedLinear):
    """One row is computed in one way, and several in another."""

    def __init__(self, of_one: PackedLinear, of_several: PackedLinear):
        self._of_one, self._of_several = of_one, of_several

    def _of(self, x: torch.Tensor) -> PackedLinear:
        return self._of_one if len(x) == 1 else self._of_several

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._of(x)(x)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return self._of(x).relu(x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._of(x).plus(x, residual)


class _Avx2Linear(_LinearByRows):
    """In float32 on CPUs with AVX2 alone: MKL starts sooner there than oneDNN, and reads a row's weights as fast."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        of_one = _SharedLinear if weight.numel() >= _SMALLEST_TO_SHARE else PackedLinear
        of_several = _OneDNNLinear if weight.numel() > _LARGEST_FOR_MKL else PackedLinear
        super().__init__(of_one(weight, bias, layers), of_several(weight, bias, layers))

    @classmethod
    def suits(cls, layers: Sequence[nn.Linear]) -> bool:
        return (
            torch.backends.cpu.get_cpu_capability() == "AVX2"
            and torch.backends.mkl.is_available()
            and layers[0].weight.dtype == torch.float32
            and _OneDNNLinear.suits(layers)
        )


class _SharedLinear(PackedLinear):
    """W is shared out among the threads, a product for each: MKL leaves one row of x to one of them.

    By its columns, from a transpose of W, where there are fewer of them than rows: so MKL reads it faster.
    """

    @cached_property
    def _columns(self) -> torch.Tensor:
        # Made when a single row first comes. Threads that come together make two, which does no harm.
        return self._weight.t().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        threads, (outputs, inputs) = torch.get_num_threads(), self._weight.shape
        if min(inputs, outputs) % threads:
            return super().__call__(x)
        return self._by_columns(x, threads) if inputs < outputs else self._by_rows(x, threads)

    def _by_rows(self, x: torch.Tensor, threads: int) -> torch.Tensor:
        shares = self._weight.view(threads, -1, x.shape[1]).transpose(1, 2)
        x = x.expand(threads, -1, -1)
        if self._bias is None:
            return torch.bmm(x, shares).view(1, -1)
        return torch.baddbmm(self._bias.view(threads, 1, -1), x, shares).view(1, -1)

    def _by_columns(self, x: torch.Tensor, threads: int) -> torch.Tensor:
        shares = self._columns.view(threads, -1, self._columns.shape[1])
        out = torch.bmm(x.reshape(threads, 1, -1), shares).sum(dim=0)
        return out if self._bias is None else out.add_(self._bias)


class _WideLinear(_LinearByRows):
    """From weights of 16 bits, on CPUs that have no products of such: in float32, and rounded once, at the end.

    But for one row, because torch's own product then takes as long as reading the weights, which are half as long.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[nn.Linear]):
        of_several = _InFloat32(weight.float(), None if bias is None else bias.float(), layers)
        super().__init__(PackedLinear(weight, bias, layers), of_several)

    @classmethod
    def suits(cls, layers: Sequence[nn.Linear]) -> bool:
        return _has_onednn(layers) and not cpu_supports_matmul_in(layers[0].weight.dtype)


class _InFloat32(_OneDNNLinear):
    """From what may be in another dtype, to the same, by a product in float32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x.float()).to(x.dtype)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return super().relu(x.float()).to(x.dtype)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return super().plus(x.float(), residual.float()).to(x.dtype)


def _has_onednn(layers: Sequence[nn.Linear]) -> bool:
    return (
        layers[0].weight.device.type == "cpu"
        and bool(torch.backends.mkldnn.enabled)
        and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    )


class _Int8PackedLinear(PackedLinear):
    """From int8 weights on CPUs, x rounded on the way as [`Int8Linear`] says."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, layers: Sequence[Any]):
        scale = torch.cat([layer.weight_scale for layer in layers]).double()
        with warnings.catch_warnings():
            # torch says that it may take tensors of this kind away some day; `suits` looks whether it has.
            warnings.simplefilter("ignore")
            whole = torch._make_per_channel_quantized_tensor(weight, scale, torch.zeros_like(scale).long(), 0)
        self._packed = torch.ops.quantized.linear_prepack(whole, None if bias is None else bias.float())
        # Without these instructions sums of two products may be too large for 16 bits; with 7 bits of x they are not.
        self._reduces_range = not torch.cpu._is_vnni_supported()

    @classmethod
    def suits(cls, layers: Sequence[nn.Linear]) -> bool:
        return (
            type(layers[0]) is Int8Linear
            and layers[0].weight.device.type == "cpu"
            and torch.backends.quantized.engine in _INT8_ENGINES
            and hasattr(torch, "_make_per_channel_quantized_tensor")
            and hasattr(torch.ops.quantized, "linear_dynamic")
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_relu_dynamic(x.float(), self._packed, self._reduces_range).to(x.dtype)


# The first that suits is taken.
_KINDS: tuple[type[PackedLinear], ...] = (_Int8PackedLinear, _WideLinear, _Avx2Linear, _OneDNNLinear, PackedLinear)
# Of the first of several layers, by their number: copies of what was packed, and what came of it.
_packed: WeakKeyDictionary[nn.Module, dict[int, tuple[list[torch.Tensor], PackedLinear]]] = WeakKeyDictionary()
# Threads that translate side by side would pack the same layers twice; and the filters of warnings are everybody's.
_packing = threading.RLock()


@torch.no_grad()
def pack(*layers: nn.Linear) -> PackedLinear:
    """Linear layers side by side, as one product, in the fastest way that there is for them.

    Weights are packed anew unless those packed before are the same, number by number: optimizers, and writes through
    `.data`, leave no other trace. So call this wherever weights may have changed.

    Args:
        layers (`nn.Linear` or `Int8Linear`): of one kind, of the same d_in, all with a bias or none.
    """
    with _packing:
        return _pack(layers)


def _pack(layers: Sequence[nn.Linear]) -> PackedLinear:
    kind = next(kind for kind in _KINDS if kind.suits(layers))
    weights = [layer.weight for layer in layers]
    others = [layer._parameters.get(name) for layer in layers for name in ("bias", "weight_scale")]
    tensors = [*weights, *(tensor for tensor in others if tensor is not None)]
    by_number = _packed.setdefault(layers[0], {})
    copies, packed = by_number.get(len(layers), ([], None))
    if type(packed) is kind and len(copies) == len(tensors) and all(map(_are_the_same, copies, tensors)):
        return packed
    weight = torch.cat(weights)
    # The kinds that keep this matrix as it is never write into it.
    copies = [*weight.split([len(each) for each in weights]), *(tensor.clone() for tensor in tensors[len(weights) :])]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    packed = kind(weight, torch.cat(tuple(biases)) if biases else None, layers)
    by_number[len(layers)] = copies, packed
    return packed


def forget_packed() -> None:
    """Forget all that was packed, so that the next use of a layer packs it, as the first one did."""
    _packed.clear()


def _are_the_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    # Integers of eight bytes are compared sooner, where there are many.
    if one.ndim > 1 and _is_made_of_eight_bytes(one) and _is_made_of_eight_bytes(other):
        one, other = one.view(torch.int64), other.view(torch.int64)
    return torch.equal(one, other)


def _is_made_of_eight_bytes(x: torch.Tensor) -> bool:
    of_each = 8 // x.element_size()
    return x.is_contiguous() and x.shape[-1] % of_each == 0 and x.storage_offset() % of_each == 0
