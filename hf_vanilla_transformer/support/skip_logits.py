"""Training without all logits in memory, where a Trainer needs nothing but the loss that the model computes."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn
from transformers import Trainer


def skip_unused_logits(trainer: Trainer) -> None:
    """Make a Trainer pass `skip_logits=True` to the model in training, unless its loss is customized.

    It is customized if a subclass or an instance has a `compute_loss` of its own; this function changes nothing then,
    because that method may read the logits. See [`with_skip_logits`] for the other conditions.
    """
    # The module of the function is compared, not the class: a program may have replaced `Trainer.compute_loss` itself,
    # and its function may read the logits. A second call changes nothing, because a partial has another module.
    is_stock = getattr(trainer.compute_loss, "__module__", None) == Trainer.__module__
    if is_stock:
        trainer.compute_loss = partial(_compute_loss, trainer, trainer.compute_loss)  # type: ignore[method-assign]


def with_skip_logits(
    trainer: Trainer, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool
) -> dict[str, Any]:
    """Return a batch with `skip_logits=True` if nothing but the model's own loss is read of its outputs.

    Logits are needed in evaluation, where the caller asks for the outputs, where the Trainer computes the loss
    (`compute_loss_func`, `label_smoothing_factor`), and for models without the argument.

    Args:
        trainer (`Trainer`): computes the loss.
        model (`nn.Module`): the model that it calls, which may be wrapped.
        inputs (`Mapping`): the arguments of the model; not changed.
        return_outputs (`bool`): whether the caller of `compute_loss` asks for the outputs.
    """
    batch = dict(inputs)
    computes_own_loss = trainer.compute_loss_func is not None or trainer.label_smoother is not None
    if not model.training or return_outputs or computes_own_loss or "labels" not in batch:
        return batch
    base_model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(base_model, "get_base_model"):
        # A model with adapters of PEFT, which passes the argument on.
        base_model = base_model.get_base_model()
    # The class, because accelerate replaces the `forward` of the object in 16-bit training.
    if "skip_logits" in inspect.signature(type(base_model).forward).parameters:
        batch["skip_logits"] = True
    return batch


def _compute_loss(
    trainer: Trainer,
    compute_loss: Callable[..., Any],
    model: nn.Module,
    inputs: Mapping[str, Any],
    return_outputs: bool = False,
    num_items_in_batch: Any = None,
) -> Any:
    batch = with_skip_logits(trainer, model, inputs, return_outputs)
    return compute_loss(model, batch, return_outputs, num_items_in_batch)
