"""Save memory during training: do not keep all logits in memory if the Trainer needs only the loss.

A model that gets the argument `skip_logits=True` computes the loss without storing all logits at once.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Trainer


def skip_unused_logits(trainer: Trainer) -> None:
    """Make a Trainer pass `skip_logits=True` to the model during training, unless its loss is customized.

    If `compute_loss` was overridden in a subclass or in the instance, this function changes nothing, because the new
    method may read the logits. See [`with_skip_logits`] for the other conditions.
    """
    # The module in which the method is defined is compared instead of the class, because a program may have replaced
    # `Trainer.compute_loss` itself by a function that reads the logits. A second call of this function changes nothing,
    # because a partial belongs to a different module.
    is_stock = getattr(trainer.compute_loss, "__module__", None) == Trainer.__module__
    if is_stock:
        trainer.compute_loss = partial(_compute_loss, trainer, trainer.compute_loss)  # type: ignore[method-assign]


def with_skip_logits(
    trainer: Trainer, model: nn.Module, inputs: Mapping[str, object], return_outputs: bool
) -> dict[str, object]:
    """Return a copy of a batch, with `skip_logits=True` added if the loss is the only model output that is needed.

    The argument is not added in these cases:

    - The model is being evaluated, or the caller asks for its outputs.
    - The Trainer computes the loss from the logits (`compute_loss_func`, `label_smoothing_factor`).
    - The batch has no labels, or the model does not take the argument.

    Args:
        trainer (`Trainer`): the Trainer that computes the loss.
        model (`nn.Module`): the model that the Trainer calls, which may be wrapped.
        inputs (`Mapping`): the batch, i.e. the arguments of the model. It is not changed.
        return_outputs (`bool`): whether the caller of `compute_loss` asks for the outputs.
    """
    batch = dict(inputs)
    if not model.training or return_outputs or "labels" not in batch:
        return batch
    if trainer.compute_loss_func is not None or trainer.label_smoother is not None:
        return batch
    base_model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(base_model, "get_base_model"):
        # A model with PEFT adapters passes the argument on to the model that it wraps.
        base_model = base_model.get_base_model()
    # The signature is read from the class, because accelerate replaces the instance's `forward` in 16-bit training.
    if "skip_logits" in inspect.signature(type(base_model).forward).parameters:
        batch["skip_logits"] = True
    return batch


def _compute_loss(
    trainer: Trainer,
    compute_loss: Callable[..., Any],
    model: nn.Module,
    inputs: Mapping[str, object],
    return_outputs: bool = False,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> Any:
    """Call a Trainer's original `compute_loss` with a batch that may have `skip_logits=True` added.

    `skip_unused_logits` sets this function in place of the Trainer's `compute_loss`.
    """
    batch = with_skip_logits(trainer, model, inputs, return_outputs)
    return compute_loss(model, batch, return_outputs, num_items_in_batch)
