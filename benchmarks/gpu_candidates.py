"""Decide on a GPU which candidates make training faster, in one command of at most nine minutes.

It needs torch, transformers and a checkout as the current folder, and for the runs of the Trainer datasets and
accelerate. Parts run in the order of their importance, each within a budget of seconds; what does not fit is left out,
and the tables name it. Every candidate is checked on the device before it is timed. After each measurement it writes
gpu_candidates.json and gpu_candidates.md; it ends with 1 if a part failed.
"""

import gc
import json
import os
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_check
from benchmarks.support import (
    attention_plans,
    candidate_kernels,
    candidates_report,
)
from benchmarks.support.candidates_in_model import changes_for, cudnn_attention
from benchmarks.support.flops import peak_flops
from benchmarks.support.gpu_timing import Budget
from benchmarks.support.timed_parts import FAILED, RUNNING, Outcome, Part, run_parts
from benchmarks.support.training_ladder import Ladder
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.user_errors import InputError


# Seconds after its budget in which a part may finish what it has begun, such as a compilation.
GRACE = 40
# Of an update, as in the paper; and the number of batches into which the recipe of base splits it.
TOKENS, SPLIT = 25_000, 8
SMALLEST_TOKENS = 128
# Pairs of random tokens for the Trainer, and those of a rehearsal.
PAIRS, SMALLEST_PAIRS = 200_000, 400
NEEDED_BY_TRAINER = ("datasets", "accelerate", "pyarrow")


@dataclass
class GpuCandidatesArguments:
    """What to measure, and where."""

    output: str = field(
        default="runs/gpu_candidates", metadata={"help": "Folder for gpu_candidates.json and gpu_candidates.md."}
    )
    device: str = field(default="cuda", metadata={"help": "cuda, or cpu for a rehearsal without a GPU."})
    parts: list[str] | None = field(default=None, metadata={"help": "Names of parts to run. Default: all."})
    seconds: int = field(default=510, metadata={"help": "Time for all parts; what does not fit is left out."})
    peak_tflops: float | None = field(
        default=None, metadata={"help": "Peak bfloat16 TFLOP/s of the GPU, for the utilization, if it is unknown."}
    )
    smallest: bool = field(default=False, metadata={"help": "Measure very small models, for a rehearsal."})

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0)
        if self.device not in ("cuda", "cpu"):
            raise InputError(f"device is {self.device}; give cuda or cpu.")
        names = [part.name for part in PARTS]
        for name in self.parts or []:
            if name not in names:
                raise InputError(f'there is no part "{name}"; choose among: {", ".join(names)}.')


def plans(budget: Budget, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Measure what a new shape costs in each kind of attention kernels."""
    device = torch.device(args.device)
    names = ["cuDNN", "memory-efficient"] if args.device == "cuda" else ["default", "unfused"]
    if args.smallest:
        shapes = attention_plans.padded_shapes(SMALLEST_TOKENS, count=3)
    else:
        # The first one only loads the kernels.
        shapes = attention_plans.padded_shapes(TOKENS, count=9)
    heads = _config("base", args).num_heads
    for figures in attention_plans.measure_plans(names, shapes, heads, device, budget):
        yield {"plans": figures}


def trainer(budget: Budget, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Measure updates of the Trainer that `train` uses."""
    for package in NEEDED_BY_TRAINER:
        if find_spec(package) is None:
            raise unittest.SkipTest(f"no {package}")
    # They import these packages.
    from benchmarks.support.random_corpus import random_corpus
    from benchmarks.support.trainer_runs import RunLimits, TrainerRuns, compare_ways, ways_for

    config = _config("base", args)
    if args.smallest:
        corpus = random_corpus(SMALLEST_PAIRS, config.vocab_size)
        limits = RunLimits(warm_up=1, updates=2, seconds=2)
        ways = ways_for(1024, 4)
    else:
        corpus = random_corpus(PAIRS, config.vocab_size)
        limits = RunLimits(warm_up=5, updates=60, seconds=10)
        ways = ways_for(TOKENS, SPLIT)
    runs = TrainerRuns(config, corpus, limits, torch.device(args.device))
    for figures in compare_ways(runs, ways, budget):
        yield {"trainer": figures}


def loss(budget: Budget, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Check and time the loss alone."""
    config = _config("base", args)
    sizes = candidate_kernels.Sizes(_tokens(args), config.d_model, config.vocab_size)
    for figures in candidate_kernels.measure_losses(sizes, torch.device(args.device), budget):
        yield {"loss": figures}


def ends(budget: Budget, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Check and time the ends of sub-layers alone."""
    all_sizes = []
    for name in ("base", "big"):
        config = _config(name, args)
        all_sizes.append(candidate_kernels.Sizes(_tokens(args), config.d_model, config.vocab_size))
    if args.smallest:
        del all_sizes[1]
    for figures in candidate_kernels.measure_ends(all_sizes, torch.device(args.device), budget):
        yield {"ends": figures}


def ladder(name: str, budget: Budget, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Check and time training steps, candidate by candidate, and Marian's on the same batches."""
    device = torch.device(args.device)
    # The batches of gpu_check, so that figures can be compared.
    config, _, rounds = gpu_check.training_setup(name, args)
    # `train` leaves attention by cuDNN out, because of its plans.
    with cudnn_attention(enabled=False):
        steps = Ladder(config, rounds, device, peak_flops(device, args.peak_tflops))
        for figures in steps.climb(changes_for(device), budget):
            yield {"ladder": figures}
    if not budget.is_spent():
        figures["marian"] = steps.measure_marian()
        yield {"ladder": figures}


def decoding(budget: Budget, args: GpuCandidatesArguments) -> Outcome:
    """Measure the decoding of gpu_check."""
    names = ["ours-fp32", "ours-bf16", "marian-fp32", "marian-bf16"]
    return gpu_check.decoding(names, [(1, 1), (64, 4)], args)


def _config(name: str, args: GpuCandidatesArguments) -> VanillaTransformerConfig:
    fields = gpu_check.SMALLEST if args.smallest else {}
    return VanillaTransformerConfig.from_paper(name, **fields)


def _tokens(args: GpuCandidatesArguments) -> int:
    return SMALLEST_TOKENS if args.smallest else TOKENS


Measure = Callable[[Budget, GpuCandidatesArguments], Iterator[Outcome] | Outcome]


def run_within(measure: Measure, seconds: int, args: GpuCandidatesArguments) -> Iterator[Outcome]:
    """Run a measurement that ends by itself after a number of seconds, with the GPU's memory free before it."""
    torch._dynamo.reset()
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    figures = measure(Budget(seconds), args)
    if isinstance(figures, Iterator):
        yield from figures
    else:
        yield figures


def _part(name: str, measure: Measure, seconds: int) -> Part:
    return Part(name, partial(run_within, measure, seconds), seconds + GRACE)


# What decides most is first, in case time runs out.
PARTS = [
    Part("environment", gpu_check.environment, 60),
    _part("plans", plans, 45),
    _part("trainer", trainer, 100),
    _part("ladder_base", partial(ladder, "base"), 110),
    _part("loss", loss, 45),
    _part("ends", ends, 40),
    _part("ladder_big", partial(ladder, "big"), 100),
    _part("decoding", decoding, 60),
]


@program
def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    args = parse(GpuCandidatesArguments, __doc__, arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but torch finds no GPU here; give --device cpu --smallest to rehearse.")
    Path(args.output).mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if args.parts is None or part.name in args.parts]
    return run(parts, args)


def run(parts: Sequence[Part], args: GpuCandidatesArguments) -> int:
    """Run parts, and write all outcomes after each measurement; returns the exit code."""
    # For the child processes: everything is on the disk, and progress bars would hide what they print.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    outcomes: dict[str, Outcome] = {}
    previous = ""
    for outcome in run_parts(parts, args):
        outcomes[outcome["name"]] = outcome
        _write(list(outcomes.values()), args)
        last_line = outcome.get("error", "").strip().rpartition("\n")[2]
        if outcome["result"] == RUNNING:
            last_line = candidates_report.latest(outcome)
        if last_line != previous or outcome["result"] != RUNNING:
            print(f"{outcome['name']:<12} {outcome['seconds']:6.1f} s  {outcome['result']:<8} {last_line}", flush=True)
        previous = last_line
    print("\n" + "\n\n".join(candidates_report.tables(list(outcomes.values()))))
    has_failed = any(outcome["result"] == FAILED for outcome in outcomes.values())
    return 1 if has_failed else 0


def _write(outcomes: Sequence[Outcome], args: GpuCandidatesArguments) -> None:
    path = Path(args.output) / "gpu_candidates.json"
    figures: dict[str, Any] = {"arguments": asdict(args), "parts": outcomes}
    write_text(path, json.dumps(figures, indent=2) + "\n")
    write_text(path.with_suffix(".md"), "\n\n".join(candidates_report.tables(outcomes)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
