"""The sinusoids of section 3.5 from a table on the device, instead of in float64 for every token of every batch."""

from collections.abc import Callable, Hashable

import torch
from torch import nn


_SMALLEST_TABLE = 256
_tables: dict[tuple[Hashable, ...], torch.Tensor] = {}


def positions_from_table(
    formula: Callable[..., torch.Tensor], position_ids: torch.Tensor, bound: int, *args: Hashable
) -> torch.Tensor:
    """Compute formula(position_ids, *args), `(batch, length, d_model)`, bit by bit, by looking positions up.

    A table for each device, formula and arguments doubles when it is too small.

    Args:
        formula (`Callable`): computes each position by itself, as `sinusoidal_positions` does.
        position_ids (`torch.LongTensor` of shape `(batch, length)`): from 0.
        bound (`int`): a number greater than every position. It is an argument because reading the largest position
            would make the CPU wait for the GPU.
        *args: other arguments of the formula.
    """
    key = (position_ids.device, formula, *args)
    table = _tables.get(key)
    if table is None or len(table) < bound:
        size = _SMALLEST_TABLE
        while size < bound:
            size *= 2
        with torch.no_grad():
            table = formula(torch.arange(size, device=position_ids.device)[None], *args)[0]
        _tables[key] = table
    return nn.functional.embedding(position_ids, table)
