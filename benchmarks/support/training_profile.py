"""Where a training step spends its time: shares of kinds of operations, from torch.profiler."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.support.timing import synchronize
from benchmarks.support.training_implementations import Batch, Implementation
from hf_vanilla_transformer import VanillaTransformerConfig


MATMULS, REST = "matmuls", "rest"
# Patterns for the names of operations in lower case without underscores; the first match counts.
PARTS = {
    MATMULS: r"linear|matmul|mm(backward\d*)?$",
    "loss": r"crossentropy|logsoftmax|nllloss",
    "attention": r"softmax|attention|attn",
    "dropout": r"dropout|bernoulli|random|::ge$",
    "layer norm": r"layernorm",
    "Adam": r"adam",
}


def part_of(names: Iterable[str]) -> str:
    """The part that an operation belongs to, from its name and those of its callers, the innermost first.

    An operation inside a matmul is a matmul, including those of unfused attention. Any other operation belongs to its
    outermost caller that has a part: a softmax inside the loss is loss. Operations without a match are the rest, such
    as the multiplications in the backward pass of torch's dropout on CPUs.
    """
    found = [part for name in names if (part := _part(name)) is not None]
    if MATMULS in found:
        return MATMULS
    return found[-1] if found else REST


@cache
def _part(name: str) -> str | None:
    plain = name.lower().replace("_", "")
    return next((part for part, pattern in PARTS.items() if re.search(pattern, plain)), None)


def profile_steps(
    implementation: Implementation, config: VanillaTransformerConfig, batches: Sequence[Batch], device: torch.device
) -> dict[str, Any]:
    """Milliseconds per profiled step, and the share of each of `PARTS` and of the rest.

    On a CPU the total is wall time, and Python counts as the rest; on a GPU it is the time of its kernels.

    Args:
        batches: one per step; the first is also used for a warm-up step.
    """
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
    training = implementation.build(config, device)
    implementation.step(training, batches[0])
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler:
        for batch in batches:
            with record_function("step"):
                implementation.step(training, batch)
        synchronize(device)
    microseconds = dict.fromkeys((*PARTS, REST), 0.0)
    for event in profiler.events():
        microseconds[part_of(_names(event))] += _own_time(event, device)
    total = sum(microseconds.values())
    return {
        "name": implementation.name,
        "arithmetic": implementation.precision,
        "milliseconds_a_step": total / len(batches) / 1e3,
        "shares": {part: own / total for part, own in microseconds.items()},
    }


def _names(event: Any) -> Iterator[str]:
    while event is not None:
        yield event.name
        event = event.cpu_parent


def _own_time(event: Any, device: torch.device) -> float:
    """Microseconds without nested operations; on a GPU, those of the kernels that the operation launches."""
    if device.type == "cpu":
        return event.self_cpu_time_total
    return 0.0 if event.is_user_annotation else sum(kernel.duration for kernel in event.kernels)
