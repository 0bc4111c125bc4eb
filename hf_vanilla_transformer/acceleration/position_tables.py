"""A table of sinusoidal positions (section 3.5), which equals the formula bit by bit.

`tabulated_positions` replaces the operation `sinusoidal_positions`, which computes sines and cosines in float64 for
every token of a batch. On a GPU the formula takes a dozen kernels and about 1 GB of memory traffic for 25,000 tokens at
each step; the look-up takes one kernel. On CPUs the positions take too little of a training step for a difference that
can be measured.

tests/acceleration/test_kernels.py (`TestTabulatedPositions`) compares the positions with the formula.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ..model.modeling_vanilla_transformer import sinusoidal_positions
from ..model.operations import plain
from .fast_path_checks import is_plain_cpu_tensor, is_plain_tensor


# Rows of the smallest table, which few sentences exceed, and of the largest: in float32 it has 32 MB at the d_model of
# the paper's big model, 1,024.
_SMALLEST_TABLE = 512
_LARGEST_TABLE = 8192


class _TableKey(NamedTuple):
    """The device of a table, its number of positions, and the arguments of the formula."""

    device: torch.device
    positions: int
    d_model: int
    exponent_divisor: int | None


# The tables of the process, each `(positions, d_model)`. They are no buffers of a model, so they are not saved, copied
# or cast with it. A table is never released, because a CUDA graph may read it. Sizes double, so all smaller tables
# together have fewer rows than the largest.
_tables: dict[_TableKey, Tensor] = {}


def tabulated_positions(
    position_ids: Tensor, d_model: int, exponent_divisor: int | None = None, bound: int | None = None
) -> Tensor:
    """Look up sinusoidal positions in a table instead of computing the formula.

    The table is used if `bound` is given and at most 8,192. Otherwise the largest position would have to be read from
    the tensor: CPUs do so and compute each position of the batch once, and accelerators compute the formula, because
    reading would wait for the device. The formula is also computed while torch records the operations.

    The arguments and results are those of the formula, [`~.modeling_vanilla_transformer.sinusoidal_positions`].
    """
    if not is_plain_tensor(position_ids) or _is_capturing(position_ids.device):
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    if bound is not None and bound <= _LARGEST_TABLE:
        table = _get_table(position_ids.device, bound, d_model, exponent_divisor)
        return nn.functional.embedding(position_ids, table)
    if is_plain_cpu_tensor(position_ids):
        return _compute_distinct_positions(position_ids, d_model, exponent_divisor)
    return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)


def _compute_distinct_positions(position_ids: Tensor, d_model: int, exponent_divisor: int | None) -> Tensor:
    """Compute each position of a batch only once, and look up the positions of its tokens.

    If the range from the first to the last position has as many positions as the batch has tokens, the formula is
    computed for the tokens. Returns `(batch, length, d_model)`.
    """
    first, last = map(int, position_ids.aminmax())
    if last - first + 1 >= position_ids.numel():
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    distinct_positions = torch.arange(first, last + 1, device="cpu")[None]
    table = plain(sinusoidal_positions)(distinct_positions, d_model, exponent_divisor)[0]
    return nn.functional.embedding(position_ids - first, table)


def _is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is captured.

    A table that is made meanwhile has no values before the graph is replayed.
    """
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _get_table(device: torch.device, bound: int, d_model: int, exponent_divisor: int | None) -> Tensor:
    """Return the smallest table with at least `bound` positions, `(positions, d_model)`; make it if it is missing."""
    positions = _SMALLEST_TABLE
    while positions < bound:
        positions *= 2
    key = _TableKey(device, positions, d_model, exponent_divisor)
    if key not in _tables:
        # Neither inference mode nor a mode that watches operations may affect a table that later calls read.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            position_ids = torch.arange(positions, device=device)[None]
            table = plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)[0]
        # setdefault, because another thread may have made the same table, which a CUDA graph may read already.
        _tables.setdefault(key, table)
    return _tables[key]
