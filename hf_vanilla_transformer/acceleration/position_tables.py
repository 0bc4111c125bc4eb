"""Sinusoids looked up in a table, equal to the formula bit by bit."""

from collections.abc import Hashable

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ..model.modeling_vanilla_transformer import sinusoidal_positions
from ..model.operations import plain
from .fast_path_checks import is_plain_cpu_tensor, is_plain_tensor


# Rows of the smallest table, and of the largest: in float32 it has 32 MB at the d_model of the paper's big model.
_SMALLEST_TABLE, _LARGEST_TABLE = 512, 8192
# Tables by device, number of positions, and the arguments of the formula. They are no buffers of a model, so they are
# not saved, copied or cast with it. A table is never freed, because a CUDA graph may read it; smaller ones together
# have fewer rows than the largest.
_tables: dict[tuple[Hashable, ...], torch.Tensor] = {}


def tabulated_positions(
    position_ids: torch.Tensor, d_model: int, exponent_divisor: int | None = None, bound: int | None = None
) -> torch.Tensor:
    """Compute [`~.modeling_vanilla_transformer.sinusoidal_positions`] from a table, because float64 takes long.

    The formula is computed if torch records the operations. Without a bound, or beyond the largest table, CPUs compute
    each position of the batch once; accelerators compute the formula, because reading the largest position would wait
    for the device.

    Args and results are those of the formula.
    """
    if not is_plain_tensor(position_ids) or _is_capturing(position_ids.device):
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    if bound is not None and bound <= _LARGEST_TABLE:
        table = _table(position_ids.device, bound, d_model, exponent_divisor)
        return nn.functional.embedding(position_ids, table)
    if is_plain_cpu_tensor(position_ids):
        return _once_per_position(position_ids, d_model, exponent_divisor)
    return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)


def _once_per_position(position_ids: torch.Tensor, d_model: int, exponent_divisor: int | None) -> torch.Tensor:
    """Compute the formula for the positions from the first to the last one of a batch, if they are fewer than these."""
    first, last = map(int, position_ids.aminmax())
    if last - first + 1 >= position_ids.numel():
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    distinct = torch.arange(first, last + 1, device="cpu")[None]
    table = plain(sinusoidal_positions)(distinct, d_model, exponent_divisor)[0]
    return nn.functional.embedding(position_ids - first, table)


def _is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: what is computed then has no values before the graph is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _table(device: torch.device, bound: int, d_model: int, exponent_divisor: int | None) -> torch.Tensor:
    """The smallest table with at least `bound` positions, `(positions, d_model)`."""
    size = _SMALLEST_TABLE
    while size < bound:
        size *= 2
    key = (device, size, d_model, exponent_divisor)
    if key not in _tables:
        # Independent of what surrounds the first call, such as inference mode or a mode that watches operations.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            position_ids = torch.arange(size, device=device)[None]
            table = plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)[0]
        # Another thread may have made the same table, which a CUDA graph may read already.
        _tables.setdefault(key, table)
    return _tables[key]
