"""What the time of a training step goes on: shares of the operations in it, as torch.profiler sees them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.support.entries import Batch, Entry
from benchmarks.support.measuring import synchronise
from hf_vanilla_transformer import VanillaTransformerConfig


PRODUCTS, REST = "products", "rest"
# What is in the names of operations, in small letters and without underscores; the first that fits counts.
PARTS = {
    PRODUCTS: r"linear|matmul|mm(backward\d*)?$",
    "loss": r"crossentropy|logsoftmax|nllloss",
    "attention": r"softmax|attention|attn",
    "dropout": r"dropout|bernoulli|random|::ge$",
    "layer norm": r"layernorm",
    "Adam": r"adam",
}


def part_of(names: Iterable[str]) -> str:
    """The part that an operation is of, by its name and those of the operations around it, the innermost first.

    Products, with all that is in them, are products wherever they are, those of attention too unless it is fused. Other
    operations are of the outermost one that is of a part: a softmax in the loss is of the loss. What no name tells is
    of the rest, such as the multiplications that torch's dropout makes on CPUs in the backward pass.
    """
    found = [part for name in names if (part := _part(name)) is not None]
    if PRODUCTS in found:
        return PRODUCTS
    return found[-1] if found else REST


@cache
def _part(name: str) -> str | None:
    plain = name.lower().replace("_", "")
    return next((part for part, words in PARTS.items() if re.search(words, plain)), None)


def parts(
    entry: Entry, config: VanillaTransformerConfig, batches: Sequence[Batch], device: torch.device
) -> dict[str, Any]:
    """Milliseconds of a step while it is watched, and the share of each of `PARTS`, and of the rest, in them.

    On a CPU it is all time, and that of Python is of the rest; on a GPU, the time that the GPU works.

    Args:
        batches: one a step; the first one is stepped through once before.
    """
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batches]
    training = entry.build(config, device)
    entry.step(training, batches[0])
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler:
        for batch in batches:
            with record_function("step"):
                entry.step(training, batch)
        synchronise(device)
    microseconds = dict.fromkeys((*PARTS, REST), 0.0)
    for event in profiler.events():
        microseconds[part_of(_names(event))] += _own_time(event, device)
    total = sum(microseconds.values())
    return {
        "name": entry.name,
        "arithmetic": entry.arithmetic,
        "milliseconds_a_step": total / len(batches) / 1e3,
        "shares": {part: own / total for part, own in microseconds.items()},
    }


def _names(event: Any) -> Iterator[str]:
    while event is not None:
        yield event.name
        event = event.cpu_parent


def _own_time(event: Any, device: torch.device) -> float:
    """Microseconds without those of the operations within; on a GPU, of the kernels that the operation starts."""
    if device.type == "cpu":
        return event.self_cpu_time_total
    return 0.0 if event.is_user_annotation else sum(kernel.duration for kernel in event.kernels)
