"""Types for the context object `ctx`, in which a PyTorch autograd function stores values for its backward pass."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class AutogradContext(Protocol):
    """The context object that torch passes to `forward` and `backward` of an autograd function."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor | None, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors that the backward pass reads from `saved_tensors`."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare that these outputs have no gradient."""


class LossContext(AutogradContext, Protocol):
    """The context of a loss function whose forward pass already computes the gradients.

    `saved_tensors` holds the gradients of states, weight and bias, or None for inputs that need no gradient. `dtypes`
    holds the dtypes of the same three inputs, with None for a missing bias.
    """

    dtypes: tuple[torch.dtype | None, ...]


def detach_in_no_grad_mode(states: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Detach the inputs of a loss function if gradients are disabled; otherwise, return them unchanged.

    Even in `no_grad` mode, an autograd function sees that a parameter has `requires_grad` set, and would compute its
    gradient.
    """
    if torch.is_grad_enabled():
        return states, weight, bias
    detached_bias = None
    if bias is not None:
        detached_bias = bias.detach()
    return states.detach(), weight.detach(), detached_bias


def save_gradients(ctx: LossContext, gradients: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> None:
    """Save the gradients of states, weight and bias for the backward pass, with the dtypes of these inputs.

    `gradients` and `inputs` have three items each, in this order. A gradient is None if it is not needed, and the bias
    is None if there is none. [`scale_saved_gradients`] reads both in the backward pass.
    """
    ctx.save_for_backward(*gradients)
    dtypes: list[torch.dtype | None] = []
    for tensor in inputs:
        if tensor is None:
            dtypes.append(None)
        else:
            dtypes.append(tensor.dtype)
    ctx.dtypes = tuple(dtypes)


def scale_saved_gradients(ctx: LossContext, grad: Tensor) -> list[Tensor | None]:
    """Multiply the saved gradients by the gradient of the loss, and cast them to the dtypes of the inputs.

    The gradient of the loss, `grad`, is the scalar that autograd passes to the backward pass. It is 1 if the user calls
    `backward()` on the loss itself. A saved gradient of None stays None.

    The result has the gradients of states, weight and bias, in this order. `backward` must return one value for each
    argument of `forward`, so these must be the first three arguments of `forward`.
    """
    scaled: list[Tensor | None] = []
    for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
        if gradient is None:
            scaled.append(None)
        else:
            scaled.append((gradient * grad).to(dtype))
    return scaled
