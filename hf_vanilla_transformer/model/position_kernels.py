"""Positions computed fast: each once for a batch, equal to the formula bit by bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .fast_path_checks import is_plain_cpu_tensor


def once_per_position(formula: Callable[..., torch.Tensor], position_ids: torch.Tensor, *args: Any) -> torch.Tensor:
    """formula(position_ids, *args), `(batch, length, d_model)`, bit by bit; on CPUs each position is computed once.

    Args:
        formula (`Callable`): computes each position by itself, as [`sinusoidal_positions`] does.
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions.
        *args: other arguments of the formula.
    """
    if not is_plain_cpu_tensor(position_ids):
        return formula(position_ids, *args)
    first, last = map(int, position_ids.aminmax())
    if last - first + 1 >= position_ids.numel():
        return formula(position_ids, *args)
    table = formula(torch.arange(first, last + 1, device="cpu")[None], *args)[0]
    return nn.functional.embedding(position_ids - first, table)
