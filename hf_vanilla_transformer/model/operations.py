"""The operations of the model that a faster implementation can replace, and the table of what replaces them.

A saved folder carries the operations with their plain formulas, as they stand here and, decorated with `replaceable`,
beside the other formulas of the paper. Importing the package replaces some of them: see
`acceleration/replacements.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import nn


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# By the plain operations.
_REPLACEMENTS: dict[Callable, Callable] = {}


def replaceable(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Declare that `replace` may put another implementation in the place of a function."""

    @wraps(operation)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        implementation = _REPLACEMENTS.get(operation, operation)
        return implementation(*args, **kwargs)

    return call


def replace(operation: Callable[Arguments, Result], implementation: Callable[Arguments, Result]) -> None:
    """Let calls of a replaceable operation run another implementation, in the whole process.

    Args:
        operation (`Callable`): declared by [`replaceable`].
        implementation (`Callable`): takes and returns what the operation does; it may call `plain(operation)` where it
            has nothing better.

    Raises:
        AttributeError: if the operation is not declared by [`replaceable`].
    """
    _REPLACEMENTS[plain(operation)] = implementation


def plain(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the formula of a replaceable operation, whatever replaces it."""
    return operation.__wrapped__  # type: ignore[attr-defined]


@replaceable
def linear(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Section 3: layer(x) = x W^T + b.

    Args:
        layer (`nn.Linear`): or the module in its place, such as an adapter of PEFT.
        x (`torch.Tensor` of shape `(..., in)`).

    Returns:
        `torch.Tensor`: `(..., out)`.
    """
    return layer(x)


@replaceable
def drop(x: torch.Tensor, rate: float, training: bool = True) -> torch.Tensor:
    """Section 5.4: x * keep / (1 - rate), where each element of `keep` is 0 with probability `rate`, and else 1.

    Args:
        x (`torch.Tensor`, of any shape).
        rate (`float`): P_drop, from 0 to 1.
        training (`bool`): whether to drop anything; if False, returns x.

    Returns:
        `torch.Tensor`, of the shape and dtype of x.
    """
    return nn.functional.dropout(x, p=rate, training=training)


@replaceable
def cast_for_matmul(x: torch.Tensor) -> torch.Tensor:
    """Cast x as autocast would cast it for each of the matmuls that follow. The plain operation leaves that to them."""
    return x


@replaceable
def cast_once_for_layers(x: torch.Tensor) -> torch.Tensor:
    """Cast x as autocast would in each of the layers that follow. The plain operation leaves that to them."""
    return x


@replaceable
def cast_weights_once(model: nn.Module) -> AbstractContextManager[None]:
    """Let autocast cast each weight once within this context, and not once for each decoding step.

    Args:
        model (`nn.Module`): with weights that do not change within the context.
    """
    return nullcontext()


@replaceable
def smoothed_cross_entropy_of_states(
    states: torch.Tensor, lm_head: nn.Module, labels: torch.Tensor, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 5.4: the loss from the decoder's output; a faster implementation never holds all logits in memory.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        lm_head (`nn.Linear`): the output projection, or the module in its place.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the sum over target tokens, a scalar in nats, at least in float32; and the
            sums of [`token_sums`] over the batch, `(3,)`.
    """
    logits = linear(lm_head, states)
    total = smoothed_cross_entropy(logits, labels, label_smoothing)
    return total, token_sums(logits, labels).sum(dim=0)


def smoothed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """Section 5.4: the sum over target tokens of the cross-entropy with label smoothing.

    The target distribution gives the label 1 - epsilon + epsilon / V, and every other token epsilon / V.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`).
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.

    Returns:
        `torch.Tensor`: a scalar in nats, at least in float32.
    """
    precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(
        precise_logits.flatten(0, -2),
        labels.to(logits.device).flatten(),
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def token_sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sums over the target tokens of each sentence, from which perplexity and token accuracy follow.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`).
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.

    Returns:
        `torch.Tensor` of shape `(batch, 3)`, at least in float32, without a gradient: the cross-entropy without label
            smoothing in nats, the number of tokens whose label has the highest logit, ties included, and the number of
            tokens.
    """
    labels = labels.to(logits.device)
    is_target = labels != -100
    precise_logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    label_indices = labels.masked_fill(~is_target, 0).unsqueeze(-1)
    of_label = precise_logits.gather(-1, label_indices).squeeze(-1)
    cross_entropy = (precise_logits.logsumexp(dim=-1) - of_label).masked_fill(~is_target, 0)
    is_highest = (of_label >= precise_logits.amax(dim=-1)) & is_target
    values = [cross_entropy, is_highest, is_target]
    return torch.stack([value.sum(dim=-1).to(cross_entropy.dtype) for value in values], dim=-1)
