"""Types for the object `ctx`, in which an autograd function keeps values for its backward pass."""

from typing import Protocol

import torch
from torch import Tensor


class AutogradContext(Protocol):
    """The object `ctx` that torch passes to `forward` and `backward` of an autograd function."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor | None, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors, which the backward pass reads from `saved_tensors`."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare that outputs have no gradient."""


class LossContext(AutogradContext, Protocol):
    """The context of a loss whose forward pass has computed the gradients already.

    `saved_tensors` holds the gradients of states, weight and bias, and None for those that nobody needs. `dtypes` has
    the dtypes of the same three inputs, and None for a missing bias.
    """

    dtypes: tuple[torch.dtype | None, ...]


def scale_saved_gradients(ctx: LossContext, grad: Tensor) -> list[Tensor | None]:
    """Multiply the saved gradients by the gradient of the loss, and cast them to the dtypes of the inputs."""
    scaled: list[Tensor | None] = []
    for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
        if gradient is None:
            scaled.append(None)
        else:
            scaled.append((gradient * grad).to(dtype))
    return scaled
