"""Look up sinusoidal positional encodings (section 3.5) in a table, which is faster than computing them.

`tabulated_positions` replaces the operation `sinusoidal_positions`, which computes sines and cosines in float64 for
every token of a batch. The table holds exactly the same values. On a GPU, the formula needs a dozen kernels and about
1 GB of memory traffic for 25,000 tokens at each step, while the look-up needs one kernel. On CPUs, positions take such
a small part of a training step that no difference can be measured.

tests/acceleration/test_kernels.py (`TestTabulatedPositions`) compares the positions with the formula.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from ..model.modeling_vanilla_transformer import sinusoidal_positions
from ..model.operations import plain
from .fast_path_checks import is_plain_cpu_tensor, is_plain_tensor


# The numbers of rows of the smallest and the largest table. Few sentences are longer than the smallest table. The
# largest takes 32 MB in float32 if d_model is 1,024, as in the paper's big model.
_SMALLEST_TABLE = 512
_LARGEST_TABLE = 8192


class _TableKey(NamedTuple):
    """The key under which a table is stored: its device, its number of positions, and the formula's arguments."""

    device: torch.device
    positions: int
    d_model: int
    exponent_divisor: int | None


# The tables of this process, each `(positions, d_model)`. They are not buffers of a model, so they are not saved,
# copied or cast with it. A table is never released, because a CUDA graph may read it. Sizes double, so all smaller
# tables together have fewer rows than the largest.
_tables: dict[_TableKey, Tensor] = {}


def tabulated_positions(
    position_ids: Tensor, d_model: int, exponent_divisor: int | None = None, bound: int | None = None
) -> Tensor:
    """Return sinusoidal positional encodings, looked up in a table where possible.

    The table is used if `bound` is passed and is at most 8,192. Otherwise, CPUs read the range of positions from the
    tensor, and compute each position only once. Accelerators compute the formula for every token, because reading the
    tensor would wait for the device. The formula is also used while torch compiles, traces or captures the operations.

    Args:
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions, counted from 0.
        d_model (`int`): the width of the encoding.
        exponent_divisor (`int`, *optional*): the divisor of 2i in the formula, by default d_model.
        bound (`int`, *optional*): a number greater than every position, if it is known without reading a tensor.

    Returns:
        `torch.FloatTensor` of shape `(batch, length, d_model)`, the same as the result of the formula,
            [`~.modeling_vanilla_transformer.sinusoidal_positions`].
    """
    if not is_plain_tensor(position_ids) or _is_capturing(position_ids.device):
        # torch is compiling, tracing or capturing, and must not record a table or positions of this call.
        # `plain(sinusoidal_positions)` is the formula. A call of `sinusoidal_positions` itself would call this function
        # again, because the model's operation of that name is replaced by it.
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    if bound is not None and bound <= _LARGEST_TABLE:
        # All positions are smaller than `bound`, so the table has a row for each of them.
        table = _get_table(position_ids.device, bound, d_model, exponent_divisor)
        return nn.functional.embedding(position_ids, table)
    if is_plain_cpu_tensor(position_ids):
        return _compute_distinct_positions(position_ids, d_model, exponent_divisor)
    # On an accelerator, finding out which positions are distinct would wait for the device.
    return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)


def _compute_distinct_positions(position_ids: Tensor, d_model: int, exponent_divisor: int | None) -> Tensor:
    """Compute the encoding of each position in a batch only once, and look up the encodings of the tokens.

    This pays only if there are fewer positions, from the first to the last one, than tokens. Otherwise, the encodings
    are computed for the tokens directly. Returns a tensor of shape `(batch, length, d_model)`.
    """
    first_tensor, last_tensor = position_ids.aminmax()
    first = int(first_tensor)
    last = int(last_tensor)
    num_distinct_positions = last - first + 1
    if num_distinct_positions >= position_ids.numel():
        return plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)
    distinct_positions = torch.arange(first, last + 1, device="cpu")[None]  # (1, positions)
    table = plain(sinusoidal_positions)(distinct_positions, d_model, exponent_divisor)[0]  # (positions, d_model)
    rows_of_table = position_ids - first  # (batch, length)
    return nn.functional.embedding(rows_of_table, table)


def _is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is being captured.

    A table that is created during the capture has no values until the graph is replayed.
    """
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _get_table(device: torch.device, bound: int, d_model: int, exponent_divisor: int | None) -> Tensor:
    """Return the smallest table with at least `bound` rows, `(positions, d_model)`, and create it if it is missing."""
    # The table has 512, 1,024, 2,048, 4,096 or 8,192 rows.
    num_positions = _SMALLEST_TABLE
    while num_positions < bound:
        num_positions *= 2
    key = _TableKey(device, num_positions, d_model, exponent_divisor)
    if key not in _tables:
        # Later calls read the table, so neither inference mode nor a dispatch mode may affect it.
        with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
            position_ids = torch.arange(num_positions, device=device)[None]  # (1, positions)
            table = plain(sinusoidal_positions)(position_ids, d_model, exponent_divisor)[0]
        # setdefault keeps a table that another thread has created meanwhile, because a CUDA graph may already read it.
        _tables.setdefault(key, table)
    return _tables[key]
