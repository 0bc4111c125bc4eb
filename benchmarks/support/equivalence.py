"""That the entries that are called the same model are: loss and gradient with our weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.support.entries import IMPLEMENTATIONS, SAME_MODEL, Batch
from hf_vanilla_transformer import VanillaTransformerConfig


TOLERANCE = 1e-5


def compare(
    config: VanillaTransformerConfig, batch: Batch, implementations: Sequence[str] = SAME_MODEL
) -> dict[str, Any]:
    """Smoothed loss and norm of the gradient of each implementation with our weights, in float32, without dropout.

    Returns:
        A dictionary: `loss` and `gradient_norm` by implementation, and the `tolerance`, relative to ours.

    Raises:
        ValueError: if one of them differs from ours by more than the tolerance.
    """
    config = VanillaTransformerConfig.from_dict({**config.to_dict(), "dropout": 0.0})
    torch.manual_seed(0)
    ours = IMPLEMENTATIONS["ours"](config)
    losses, norms = {}, {}
    for name in ("ours", *(name for name in implementations if name in SAME_MODEL and name != "ours")):
        model = ours if name == "ours" else IMPLEMENTATIONS[name](config)
        if model is not ours:
            model.copy_weights(ours.model)
        losses[name], norms[name] = _loss_and_norm(model.train(), batch)
        for what, values in (("loss", losses), ("gradient's norm", norms)):
            if abs(values[name] / values["ours"] - 1) > TOLERANCE:
                raise ValueError(
                    f"with the same weights the {what} of {name} is {values[name]:.7f}, ours {values['ours']:.7f}; "
                    "they are not the same model, so do not compare them."
                )
    return {"loss": losses, "gradient_norm": norms, "tolerance": TOLERANCE}


def _loss_and_norm(model: nn.Module, batch: Batch) -> tuple[float, float]:
    loss = model(**batch)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), float(norm)
