"""What a new shape costs in attention: cuDNN builds an execution plan for each, other kernels do not."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.support.gpu_timing import Budget, milliseconds_of
from benchmarks.support.timing import synchronize


BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "unfused": SDPBackend.MATH,
}


def by_backend(name: str) -> AbstractContextManager[object]:
    """Choose the kernels of attention by a name of `BACKENDS`; "default" leaves the choice to torch."""
    if name == "default":
        return nullcontext()
    return sdpa_kernel([BACKENDS[name]])


def padded_shapes(tokens: int, count: int) -> list[tuple[int, int]]:
    """Return numbers of rows and lengths, all different, with about so many tokens each."""
    lengths = [10 + 7 * number for number in range(count)]
    return [(max(tokens // length, 1), length) for length in lengths]


class PaddedAttention:
    """Attention of one shape with a padding mask, as the encoder computes it, forward and backward."""

    def __init__(self, rows: int, length: int, heads: int, head_dim: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(rows * length)
        shape = (3, rows, length, heads, head_dim)
        states = torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device)
        # Heads are the third dimension in memory, as after a linear layer.
        self.inputs = [tensor.transpose(1, 2).requires_grad_() for tensor in states]
        lengths = torch.randint((length + 1) // 2, length + 1, (rows, 1), generator=generator, device=device)
        is_token = torch.arange(length, device=device) < lengths
        self.mask = is_token[:, None, None, :].expand(rows, 1, length, length)

    def run(self) -> None:
        output = nn.functional.scaled_dot_product_attention(*self.inputs, attn_mask=self.mask)
        torch.autograd.grad(output, self.inputs, output)


@torch.no_grad()
def milliseconds_of_decoding_steps(
    name: str, rows: int, heads: int, head_dim: int, lengths: Sequence[int], device: torch.device
) -> list[float]:
    """Return the time of one attention in each decoding step: one query a row, and one key more each time."""
    keys = torch.randn(rows, heads, max(lengths), head_dim, dtype=torch.bfloat16, device=device)
    query = keys[:, :, :1]
    measured = []
    for length in lengths:
        keys_so_far = keys[:, :, :length]
        with by_backend(name):
            measured.append(
                milliseconds_of(
                    lambda keys=keys_so_far: nn.functional.scaled_dot_product_attention(query, keys, keys),
                    device,
                    rounds=1,
                )
            )
    return measured


def measure_plans(
    names: Sequence[str], shapes: Sequence[tuple[int, int]], heads: int, device: torch.device, budget: Budget
) -> Iterator[dict[str, Any]]:
    """Yield figures after each kind of kernels: the time of the first and of later calls of each shape.

    Args:
        names: of kinds of kernels, in the order in which to measure them.
        shapes: rows and lengths; the first one only loads the kernels.
        heads: of 64 channels.
        device: where to compute.
        budget: no kind begins after it is spent.
    """
    figures: dict[str, Any] = {"shapes": [list(shape) for shape in shapes[1:]], "backends": {}, "not_measured": []}
    for name in names:
        if budget.is_spent():
            figures["not_measured"].append(name)
            continue
        figures["backends"][name] = _measure_backend(name, shapes, heads, device, budget)
        yield figures
    yield figures


def _measure_backend(
    name: str, shapes: Sequence[tuple[int, int]], heads: int, device: torch.device, budget: Budget
) -> dict[str, Any]:
    first_calls: list[float] = []
    later_calls: list[float] = []
    head_dim = 64
    try:
        for number, (rows, length) in enumerate(shapes):
            if budget.is_spent():
                break
            attention = PaddedAttention(rows, length, heads, head_dim, device)
            with by_backend(name):
                first = milliseconds_of(attention.run, device, rounds=1)
                later = milliseconds_of(attention.run, device, rounds=3)
            if number > 0:
                first_calls.append(first)
                later_calls.append(later)
        lengths = range(2, 34)
        decoding = milliseconds_of_decoding_steps(name, 256, heads, head_dim, lengths, device)
        repeated = milliseconds_of_decoding_steps(name, 256, heads, head_dim, lengths, device)
    except RuntimeError as error:
        # Raises if the GPU accepts no work any more.
        synchronize(device)
        # torch says so where a kind of kernels does not support a mask, a dtype or a device.
        return {"error": str(error).partition("\n")[0]}
    costs = [first - later for first, later in zip(first_calls, later_calls, strict=True)]
    return {
        "first_call_milliseconds": first_calls,
        "later_call_milliseconds": later_calls,
        "milliseconds_per_new_shape": median(costs) if costs else None,
        "decoding_first_milliseconds": decoding,
        "decoding_later_milliseconds": repeated,
        # The first length also loads the kernels.
        "milliseconds_per_new_decoding_length": median(
            first - later for first, later in zip(decoding[1:], repeated[1:], strict=True)
        ),
    }
