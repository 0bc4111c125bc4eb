"""Positions computed fast, equal to the formula bit by bit: once for a batch on CPUs, from a table on accelerators."""

from collections.abc import Callable, Hashable

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .fast_path_checks import is_plain_cpu_tensor, is_plain_tensor


# Rows of the smallest table, and of the largest: in float32 it has 32 MB at the d_model of the paper's big model.
_SMALLEST_TABLE, _LARGEST_TABLE = 512, 8192
# Tables by formula, device, number of positions, and other arguments of the formula. They are no buffers of a model, so
# they are not saved, copied or cast with it. A table is never freed, because a CUDA graph may read it; smaller ones
# together have fewer rows than the largest.
_tables: dict[tuple[Hashable, ...], torch.Tensor] = {}


def computed_positions(
    formula: Callable[..., torch.Tensor], position_ids: torch.Tensor, bound: int | None, *args: Hashable
) -> torch.Tensor:
    """Compute formula(position_ids, *args), `(batch, length, d_model)`, bit by bit.

    On CPUs each position of the batch is computed once. On accelerators, where float64 is slow, positions are looked up
    in a table. The formula is computed if torch records the operations, if a position may be beyond the largest table,
    or if the bound is unknown.

    Args:
        formula (`Callable`): computes each position by itself, as [`sinusoidal_positions`] does.
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions.
        bound (`int`, *optional*): a number greater than every position. It is an argument because reading the largest
            position would wait for the device. None if it is unknown without reading a tensor.
        *args: other arguments of the formula.
    """
    if is_plain_cpu_tensor(position_ids):
        return _once_per_position(formula, position_ids, *args)
    if bound is None or bound > _LARGEST_TABLE:
        return formula(position_ids, *args)
    if not is_plain_tensor(position_ids) or _is_capturing(position_ids.device):
        return formula(position_ids, *args)
    return nn.functional.embedding(position_ids, _table(formula, position_ids.device, bound, *args))


def _once_per_position(
    formula: Callable[..., torch.Tensor], position_ids: torch.Tensor, *args: Hashable
) -> torch.Tensor:
    first, last = map(int, position_ids.aminmax())
    if last - first + 1 >= position_ids.numel():
        return formula(position_ids, *args)
    table = formula(torch.arange(first, last + 1, device="cpu")[None], *args)[0]
    return nn.functional.embedding(position_ids - first, table)


def _is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: what is computed then has no values before the graph is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _table(formula: Callable[..., torch.Tensor], device: torch.device, bound: int, *args: Hashable) -> torch.Tensor:
    """The smallest table with at least `bound` positions, `(positions, d_model)`."""
    size = _SMALLEST_TABLE
    while size < bound:
        size *= 2
    key = (formula, device, size, *args)
    if key not in _tables:
        # Independent of what surrounds the first call, such as inference mode or a mode that watches operations.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            _tables[key] = formula(torch.arange(size, device=device)[None], *args)[0]
    return _tables[key]
