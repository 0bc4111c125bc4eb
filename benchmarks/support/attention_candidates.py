"""Attention alone, forward and backward: padded sentences with torch's kernels, and packed ones with candidates."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.candidates.packed_attention import (
    PackedSentences,
    packed_by_efficient,
    packed_by_flash,
    packed_by_formula,
)
from benchmarks.candidates.triton_support import missing_for_triton
from benchmarks.support.attention_plans import by_backend
from benchmarks.support.gpu_timing import Budget, launches_of, milliseconds_of, relative_error
from benchmarks.support.timing import synchronize


KINDS = ("self", "causal", "cross")
# Relative roots of mean squares, in bfloat16.
ALLOWED_ERROR = 0.02
CHECKED_SENTENCES = 16
# Lengths of the sentences in a batch, as shares of the longest.
SHORTEST = 0.8


@dataclass(frozen=True)
class Sizes:
    """Tokens of a batch on each side with its padding, heads, and channels of a head."""

    tokens: int
    heads: int
    head_dim: int


class Problem:
    """Queries, keys and values of one kind of attention, padded and packed, and what the result should be.

    Args:
        kind: "self" in the encoder, "causal" in the decoder, or "cross" between them.
        longest: tokens of the longest sentence.
        sizes: of the batch.
        device: where to compute.
    """

    def __init__(self, kind: str, longest: int, sizes: Sizes, device: torch.device) -> None:
        self.kind, self.device = kind, device
        generator = torch.Generator().manual_seed(longest)
        rows = max(sizes.tokens // longest, 1)
        shortest = max(int(SHORTEST * longest), 1)
        query_lengths = torch.randint(shortest, longest + 1, (rows,), generator=generator)
        key_lengths = query_lengths
        if kind == "cross":
            key_lengths = torch.randint(shortest, longest + 1, (rows,), generator=generator)
        shape = (4, rows, longest, sizes.heads, sizes.head_dim)
        of_device = torch.Generator(device).manual_seed(longest)
        padded = torch.randn(shape, generator=of_device, dtype=torch.bfloat16, device=device)
        self.is_query = (torch.arange(longest) < query_lengths[:, None]).to(device)
        self.is_key = (torch.arange(longest) < key_lengths[:, None]).to(device)
        self.padded = list(padded[:3])
        self.padded_grad = padded[3] * self.is_query[:, :, None, None]
        self.packed = [padded[0][self.is_query], padded[1][self.is_key], padded[2][self.is_key]]
        self.packed_grad = padded[3][self.is_query]
        self.scaling = sizes.head_dim**-0.5
        self.sentences = PackedSentences.from_lengths(
            query_lengths.to(device), key_lengths.to(device), is_causal=kind == "causal"
        )
        self.query_lengths, self.key_lengths = query_lengths.tolist(), key_lengths.tolist()
        self.exact = self._exact()

    def _exact(self) -> list[torch.Tensor]:
        """Return the output and the gradients of the first sentences in float64, packed."""
        parts: list[list[torch.Tensor]] = [[], [], [], []]
        for row in range(min(CHECKED_SENTENCES, len(self.query_lengths))):
            lengths = (self.query_lengths[row], self.key_lengths[row], self.key_lengths[row])
            leaves = []
            for tensor, length in zip(self.padded, lengths, strict=True):
                leaves.append(tensor[row, :length].double().transpose(0, 1).requires_grad_())
            query, key, value = leaves
            scores = query @ key.transpose(1, 2) * self.scaling
            if self.kind == "causal":
                is_later = torch.ones(scores.shape[1:], dtype=torch.bool, device=self.device).triu(1)
                scores = scores.masked_fill(is_later, float("-inf"))
            output = scores.softmax(dim=-1) @ value
            grad = self.padded_grad[row, : lengths[0]].double().transpose(0, 1)
            for part, tensor in zip(parts, (output.detach(), *torch.autograd.grad(output, leaves, grad)), strict=True):
                part.append(tensor.transpose(0, 1))
        return [torch.cat(part) for part in parts]

    def error(self, packed_results: Sequence[torch.Tensor]) -> float:
        """Return the largest relative error of the output and the gradients of the first sentences."""
        errors = []
        for result, exact in zip(packed_results, self.exact, strict=True):
            errors.append(relative_error(result[: len(exact)], exact))
        return max(errors)


# It is compiled for each kind and length, up to torch's limit of eight times, so that it is measured for two lengths.
FLEX = "packed, flex"
LENGTHS_OF_FLEX = (32, 64)
# Computes the output and the gradients by queries, keys and values, packed.
Run = Callable[[], list[torch.Tensor]]


def padded_run(problem: Problem, backend: str) -> tuple[Callable[[], Any], Run]:
    """Return a function to time, and one that returns results, for torch's attention of padded sentences."""
    leaves = [tensor.transpose(1, 2).requires_grad_() for tensor in problem.padded]
    grad = problem.padded_grad.transpose(1, 2)
    mask = None
    if problem.kind != "causal":
        longest = problem.is_query.shape[1]
        mask = problem.is_key[:, None, None, :].expand(-1, 1, longest, -1)

    def run() -> tuple[torch.Tensor, ...]:
        with by_backend(backend):
            output = nn.functional.scaled_dot_product_attention(
                *leaves, attn_mask=mask, is_causal=problem.kind == "causal", scale=problem.scaling
            )
            return output, *torch.autograd.grad(output, leaves, grad)

    def results() -> list[torch.Tensor]:
        masks = (problem.is_query, problem.is_query, problem.is_key, problem.is_key)
        return [tensor.detach().transpose(1, 2)[mask] for tensor, mask in zip(run(), masks, strict=True)]

    return run, results


def packed_run(problem: Problem, attend: Callable[..., torch.Tensor], layout: Any) -> tuple[Callable[[], Any], Run]:
    """Return the same for attention of packed sentences.

    Args:
        attend: takes queries, keys, values, the layout and the scaling.
        layout: what the function needs to know of the sentences.
    """
    leaves = [tensor.detach().requires_grad_() for tensor in problem.packed]

    def run() -> tuple[torch.Tensor, ...]:
        output = attend(*leaves, layout, problem.scaling)
        return output, *torch.autograd.grad(output, leaves, problem.packed_grad)

    def results() -> list[torch.Tensor]:
        return [tensor.detach() for tensor in run()]

    return run, results


def _flex_run(problem: Problem) -> tuple[Callable[[], Any], Run]:
    from benchmarks.candidates.flex_packed_attention import block_mask_of, packed_by_flex

    return packed_run(problem, packed_by_flex, block_mask_of(problem.sentences))


def _triton_run(problem: Problem) -> tuple[Callable[[], Any], Run]:
    from benchmarks.candidates.triton_packed_attention import packed_in_triton, ranges_of

    return packed_run(problem, packed_in_triton, ranges_of(problem.sentences))


def candidates_for(device: torch.device) -> dict[str, Callable[[Problem], tuple[Callable[[], Any], Run]]]:
    """Return the ways to compute attention on a device, by name; flex attention last, because it is compiled."""
    if device.type != "cuda":
        # Not Triton, whose interpreter cannot multiply matrices in bfloat16.
        return {
            "padded, default": lambda problem: padded_run(problem, "default"),
            "packed, formula": lambda problem: packed_run(problem, packed_by_formula, problem.sentences),
        }
    ways = {
        "padded, cuDNN": lambda problem: padded_run(problem, "cuDNN"),
        "padded, memory-efficient": lambda problem: padded_run(problem, "memory-efficient"),
        "padded, flash": lambda problem: padded_run(problem, "flash"),
        "packed, flash": lambda problem: packed_run(problem, packed_by_flash, problem.sentences),
        "packed, memory-efficient": lambda problem: packed_run(problem, packed_by_efficient, problem.sentences),
    }
    if missing_for_triton(device) is None:
        ways["packed, Triton"] = _triton_run
    ways[FLEX] = _flex_run
    return ways


def measure_attention(
    sizes: Sizes, lengths: Sequence[int], device: torch.device, budget: Budget
) -> Iterator[dict[str, Any]]:
    """Yield figures after each way: its errors and times for each kind of attention and each length."""
    entries: list[dict[str, Any]] = []
    not_measured: list[str] = []
    figures = {
        "tokens": sizes.tokens,
        "heads": sizes.heads,
        "head_dim": sizes.head_dim,
        "allowed_error": ALLOWED_ERROR,
        "entries": entries,
        "not_measured": not_measured,
    }
    problems: list[tuple[int, Problem]] = []
    for longest in lengths:
        for kind in KINDS:
            problems.append((longest, Problem(kind, longest, sizes, device)))
    for name, make_run in candidates_for(device).items():
        for longest, problem in problems:
            if name == FLEX and longest not in LENGTHS_OF_FLEX:
                continue
            if budget.is_spent():
                not_measured.append(f"{name}, {problem.kind}, {longest}")
                continue
            entry = {"name": name, "kind": problem.kind, "longest": longest}
            entries.append({**entry, **_figures_of(make_run, problem)})
        yield figures
    yield figures


def _figures_of(make_run: Callable[[Problem], tuple[Callable[[], Any], Run]], problem: Problem) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        run, results = make_run(problem)
        error = problem.error(results())
    except Exception as reason:
        # Some kernels do not support a mask or a device, and the others can still be measured, unless the GPU accepts
        # no work any more.
        synchronize(problem.device)
        return {"passes": False, "error": f"{type(reason).__name__}: {reason}".partition("\n")[0]}
    seconds_to_start = time.perf_counter() - start
    calls = 10 if problem.device.type == "cuda" else 1
    launches = launches_of(run, problem.device)
    return {
        "passes": error <= ALLOWED_ERROR,
        "relative_error": error,
        "kernel_milliseconds": launches.milliseconds,
        "launches": launches.count,
        "milliseconds": milliseconds_of(run, problem.device, calls),
        "seconds_to_start": seconds_to_start,
    }
