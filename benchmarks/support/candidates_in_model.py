"""Change how models of this package compute, for a while, by replacing functions of the package."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from torch import nn

from benchmarks.support.candidate_kernels import MakeEnd, triton_end
from benchmarks.support.triton_support import missing_for_triton
from hf_vanilla_transformer.acceleration.chunked_loss import chunked_smoothed_cross_entropy
from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling


# The attribute of a tensor that holds it in 16 bits.
_NARROW_COPY = "copy_for_matmuls"


@dataclass(frozen=True)
class Change:
    """One replacement.

    Args:
        name: for people.
        subject: what is replaced; changes of the same subject exclude each other.
        apply: replaces it for a while.
        missing: why the change cannot be used on this machine.
        is_candidate: whether the change may move into the package.
    """

    name: str
    subject: str
    apply: Callable[[], AbstractContextManager[object]]
    missing: str | None = None
    is_candidate: bool = True


@contextmanager
def using(changes: Sequence[Change]) -> Iterator[None]:
    """Apply changes for a while."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change.apply())
        yield


@contextmanager
def cudnn_attention(enabled: bool) -> Iterator[None]:
    """Allow or forbid attention by cuDNN, which builds an execution plan for each new shape."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def use_operation(name: str, operation: Callable[..., object]) -> AbstractContextManager[object]:
    """Compute an operation of the model by another function.

    Args:
        name: of the operation in the model's file.
        operation: takes the arguments of the operation.
    """
    return mock.patch.object(modeling, name, operation)


@contextmanager
def use_ends(make_end: MakeEnd) -> Iterator[None]:
    """Compute the ends of sub-layers by one function, whose 16-bit result the next matmuls read.

    The 16-bit result travels as an attribute of the wide one, because the layers pass on a single tensor.
    """
    cast_for_matmul = modeling.cast_for_matmul
    linear = modeling.linear

    def narrow_copy(x: torch.Tensor) -> torch.Tensor:
        copy = getattr(x, _NARROW_COPY, None)
        return cast_for_matmul(x) if copy is None else copy

    def linear_of_narrow_copy(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(layer, narrow_copy(x))

    def add_and_norm(
        layer: modeling.VanillaTransformerLayer, x: torch.Tensor, sublayer_x: torch.Tensor, layer_norm: nn.LayerNorm
    ) -> torch.Tensor:
        rate = layer.dropout if layer.training else 0.0
        end = make_end(layer_norm.eps, rate, sublayer_x.dtype)
        normalized, narrow = end(x, sublayer_x, layer_norm.weight, layer_norm.bias)
        if narrow.dtype != normalized.dtype:
            setattr(normalized, _NARROW_COPY, narrow)
        return normalized

    with (
        mock.patch.object(modeling, "cast_for_matmul", narrow_copy),
        mock.patch.object(modeling, "linear", linear_of_narrow_copy),
        mock.patch.object(modeling.VanillaTransformerLayer, "add_and_norm", add_and_norm),
    ):
        yield


def compiler_backend(device: torch.device) -> str:
    """On CPUs a backend that traces and differentiates only, because to generate code for CPUs takes minutes."""
    return "inductor" if device.type == "cuda" else "aot_eager"


@contextmanager
def use_compiled_layers(backend: str) -> Iterator[None]:
    """Compile the layers of both stacks, once for all layers of a stack and batches of any size."""
    with ExitStack() as stack:
        for layer in (modeling.VanillaTransformerEncoderLayer, modeling.VanillaTransformerDecoderLayer):
            compiled = torch.compile(layer.forward, dynamic=True, backend=backend)
            stack.enter_context(mock.patch.object(layer, "forward", compiled))
        yield


def loss_without_triton(
    states: torch.Tensor, lm_head: nn.Linear, labels: torch.Tensor, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss in chunks, as the package does where Triton does not work."""
    return chunked_smoothed_cross_entropy(states, lm_head.weight, labels, label_smoothing, lm_head.bias)


def changes_for(device: torch.device) -> list[Change]:
    """Return all changes, those of one subject next to each other, in the order in which they are tried.

    Some are no candidates: they show what the package's own Triton kernel saves, and what a compiler would.
    """
    changes = [
        Change(
            "ends of sub-layers, Triton",
            "ends",
            partial(use_ends, triton_end),
            missing=missing_for_triton(device),
        )
    ]
    compile_layers = partial(use_compiled_layers, compiler_backend(device))
    # It fuses the ends, too.
    changes.append(Change("layers, compiled", "ends", compile_layers, is_candidate=False))
    use = partial(use_operation, "smoothed_cross_entropy_of_states", loss_without_triton)
    changes.append(Change("loss without Triton", "loss", use, is_candidate=False))
    return changes


@contextmanager
def using_nothing() -> Iterator[None]:
    """Change nothing, in the place of a change that cannot run here."""
    yield
