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
    compute_loss = trainer.compute_loss
    # A method that was overridden or replaced comes from a different module than `Trainer`. So does the partial that is
    # set below, so calling this function again changes nothing.
    is_original = getattr(compute_loss, "__module__", None) == Trainer.__module__
    if not is_original:
        return
    trainer.compute_loss = partial(_compute_loss, trainer, compute_loss)  # type: ignore[method-assign]


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
    needs_outputs = return_outputs or not model.training
    if needs_outputs or "labels" not in batch:
        return batch
    trainer_reads_logits = trainer.compute_loss_func is not None or trainer.label_smoother is not None
    if trainer_reads_logits:
        return batch
    if _takes_skip_logits(trainer):
        batch["skip_logits"] = True
    return batch


def _takes_skip_logits(trainer: Trainer) -> bool:
    """Return True if a Trainer's model has the argument `skip_logits`."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "get_base_model"):
        # A model with PEFT adapters passes the argument on to the model that it wraps.
        model = model.get_base_model()
    # The signature is read from the class, because accelerate replaces the instance's `forward` in 16-bit training.
    signature = inspect.signature(type(model).forward)
    return "skip_logits" in signature.parameters


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
