"""Change how models of this package compute, for a while, by replacing functions of the package."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch

from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling
from hf_vanilla_transformer.model.operations import plain


# The formulas of operations that the package replaces on GPUs, by names for people.
PLAIN_OPERATIONS = {
    "loss": plain(modeling.smoothed_cross_entropy_of_states),
    "add and norm": plain(modeling.add_and_norm),
}


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
        operation: such as `plain(...)` of it, its formula without its fast replacement.
    """
    return mock.patch.object(modeling, name, operation)


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


def changes_for(device: torch.device) -> list[Change]:
    """Return all changes, those of one subject next to each other, in the order in which they are tried.

    These are no candidates: they show what the package's own Triton kernels save, and what a compiler would.
    """
    compile_layers = partial(use_compiled_layers, compiler_backend(device))
    changes = [Change("layers, compiled", "layers", compile_layers, is_candidate=False)]
    for name, operation in PLAIN_OPERATIONS.items():
        use = partial(use_operation, operation.__name__, operation)
        changes.append(Change(f"{name} without Triton", name, use, is_candidate=False))
    return changes


@contextmanager
def using_nothing() -> Iterator[None]:
    """Change nothing, in the place of a change that cannot run here."""
    yield
