"""Operations of the model that faster implementations can replace, and the registry of these implementations.

The functions with the decorator `replaceable`, here and elsewhere in `model/`, are plain formulas. Saved folders
contain these formulas, and use them where the package is not installed. Importing the package replaces some of them
with faster implementations; see `acceleration/replacements.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Maps plain operations to the implementations that replace them.
_REPLACEMENTS: dict[Callable, Callable] = {}


def replaceable(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function so that [`replace`] can substitute a different implementation."""

    @wraps(operation)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        implementation = _REPLACEMENTS.get(operation, operation)
        return implementation(*args, **kwargs)

    return call


def replace(operation: Callable[Arguments, Result], implementation: Callable[Arguments, Result]) -> None:
    """Use a different implementation for all further calls of a replaceable operation in this process.

    Args:
        implementation (`Callable`): a function with the same arguments and results. It may call `plain(operation)` for
            inputs that it does not support.

    Raises:
        AttributeError: if the operation is not decorated with [`replaceable`].
    """
    _REPLACEMENTS[plain(operation)] = implementation


def plain(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the plain formula of a replaceable operation, even if the operation is replaced."""
    # `functools.wraps` stores the decorated function in this attribute.
    return operation.__wrapped__  # type: ignore[attr-defined]


@replaceable
def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer: x W^T + b (section 3).

    x has the shape `(..., in)`, and the result `(..., out)`. `layer` may be a module that has replaced the `nn.Linear`,
    such as a PEFT adapter.
    """
    return layer(x)


@replaceable
def drop(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Apply dropout: x * keep / (1 - rate) (section 5.4).

    Each element of `keep` is 0 with probability `rate` (P_drop), and 1 otherwise. Without `training`, x is returned.
    """
    return nn.functional.dropout(x, p=rate, training=training)


@replaceable
def cast_for_matmul(x: Tensor) -> Tensor:
    """Cast x to autocast's dtype once, before several matmuls that read it.

    The plain operation returns x unchanged, so autocast casts it in every matmul.
    """
    return x


@replaceable
def cast_once_for_layers(x: Tensor) -> Tensor:
    """Cast x to autocast's dtype once, before all layers of a stack read it.

    The plain operation returns x unchanged, so autocast casts it in every layer.
    """
    return x


@replaceable
def cast_weights_once(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context manager that lets autocast cast each weight once, instead of once per decoding step.

    The weights of `model` must not change while the context is active. The plain operation's context does nothing.
    """
    return nullcontext()


@replaceable
def smoothed_cross_entropy_of_states(
    states: Tensor, lm_head: nn.Module, labels: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed loss from the decoder's output (section 5.4).

    This plain formula computes all logits first. Replacements avoid holding the logits of the whole batch in memory.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        lm_head (`nn.Linear`): the output projection, or a module that has replaced it.
        labels (`torch.LongTensor` of shape `(batch, target)`): token ids; -100 where there is no target.

    Returns:
        The sum of the loss over all target tokens, a scalar in nats, at least in float32; and the [`token_sums`], added
        up over the batch, of shape `(3,)`.
    """
    logits = linear(lm_head, states)
    loss_sum = smoothed_cross_entropy(logits, labels, label_smoothing)
    return loss_sum, token_sums(logits, labels).sum(dim=0)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Compute the cross-entropy with label smoothing, summed over all target tokens (section 5.4).

    The target distribution gives the label the probability 1 - epsilon + epsilon / V, and every other token
    epsilon / V, where V is the size of the vocabulary.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`): the scores of the next token.
        labels (`torch.LongTensor` of shape `(batch, target)`): token ids; -100 where there is no target.
        label_smoothing (`float`): epsilon.

    Returns:
        A scalar in nats, at least in float32.
    """
    precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # By default, cross_entropy() ignores positions with the label -100.
    return nn.functional.cross_entropy(
        precise_logits.flatten(0, -2),
        labels.to(logits.device).flatten(),
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def token_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute three sums over the target tokens of each sentence, for perplexity and token accuracy.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`): the scores of the next token.
        labels (`torch.LongTensor` of shape `(batch, target)`): token ids; -100 where there is no target.

    Returns:
        The cross-entropy without label smoothing in nats, the number of tokens whose label has the highest logit (ties
        included), and the number of tokens: `(batch, 3)`, at least in float32, without a gradient.
    """
    labels = labels.to(logits.device)
    is_target = labels != -100
    precise_logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    # gather() accepts no negative index, so positions without a target take the logit of token 0; `is_target` excludes
    # them from all sums. `label_indices` has the shape (batch, target, 1), and `label_logits` (batch, target).
    label_indices = labels.masked_fill(~is_target, 0).unsqueeze(-1)
    label_logits = precise_logits.gather(-1, label_indices).squeeze(-1)

    # -log softmax(logits)[label], (batch, target)
    cross_entropy = precise_logits.logsumexp(dim=-1) - label_logits
    cross_entropy = cross_entropy.masked_fill(~is_target, 0)
    is_highest = label_logits >= precise_logits.amax(dim=-1)
    is_correct = is_highest & is_target

    # Each sum has the shape (batch,). Callers read the sums by position, so their order must stay.
    sums = [cross_entropy.sum(dim=-1)]
    for counted in (is_correct, is_target):
        sums.append(counted.sum(dim=-1).to(cross_entropy.dtype))
    return torch.stack(sums, dim=-1)
