"""A check that implementations compute the same model: loss and gradient with the same weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.support.training_implementations import MODELS, SAME_MODEL, Batch
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.support.user_errors import InputError


TOLERANCE = 1e-5


def check_same_model(
    config: VanillaTransformerConfig, batch: Batch, models: Sequence[str] = SAME_MODEL
) -> dict[str, Any]:
    """Compare smoothed loss and gradient norm of models with our weights, without dropout.

    Ours is computed in float32, as it is timed; the others in float64, where only a different model makes a
    difference: in float32 the rounding of their label smoothing alone moves the gradient norm by more than 1e-5.

    Returns:
        A dictionary: `loss` and `gradient_norm` by model, and the `tolerance`, relative to ours.

    Raises:
        ValueError: if a model differs from ours by more than the tolerance.
    """
    config = VanillaTransformerConfig.from_dict({**config.to_dict(), "dropout": 0.0})
    torch.manual_seed(0)
    ours = MODELS["ours"](config)
    losses, norms = {}, {}
    for name in ("ours", *(name for name in models if name in SAME_MODEL and name != "ours")):
        model = ours
        if name != "ours":
            model = MODELS[name](config)
            model.copy_weights(ours.model)
            model.double()
        losses[name], norms[name] = _loss_and_norm(model.train(), batch)
        for quantity, values in (("loss", losses), ("gradient norm", norms)):
            if abs(values[name] / values["ours"] - 1) > TOLERANCE:
                raise InputError(
                    f"with the same weights the {quantity} of {name} is {values[name]:.7f} and ours is "
                    f"{values['ours']:.7f}; they are different models, so their times do not compare."
                )
    return {"loss": losses, "gradient_norm": norms, "tolerance": TOLERANCE}


def _loss_and_norm(model: nn.Module, batch: Batch) -> tuple[float, float]:
    loss = model(**batch)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), float(norm)
