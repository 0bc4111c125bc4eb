"""Compare training steps of this package with those of other implementations of the same model.

Modes: `steps` (default: throughput and peak memory of each implementation), `profile` (where a step spends its time),
`memory` (peak memory over many batches), `scaling` (throughput and memory by sentence length, batch size, vocabulary
and depth), `trainer` (overhead of stock Seq2SeqTrainer), `report` (tables and plots of the stored figures).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.support import training_report
from benchmarks.support.equivalence import check_same_model
from benchmarks.support.flops import peak_flops
from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.random_batches import equal_batch
from benchmarks.support.run_modes import Figures, run_modes
from benchmarks.support.timing import Clock
from benchmarks.support.trainer_overhead import Overhead, time_overhead
from benchmarks.support.training_corpus import corpus_batches, read_corpus
from benchmarks.support.training_implementations import (
    PRECISIONS,
    SAME_MODEL,
    Batch,
    Implementation,
    choose_implementations,
    matmul_precision,
    missing_dependency,
)
from benchmarks.support.training_profile import profile_steps
from benchmarks.support.training_steps import compare, leaving_out, peak_memory_of_steps, time_steps
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.memory_tuning import keep_freed_memory
from hf_vanilla_transformer.support.user_errors import InputError


TINY = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "vocab_size": 10_000}


@dataclass(frozen=True)
class Size:
    """A model, its batches, and how many of them to measure."""

    preset: str
    fields: dict[str, int]
    tokens_per_batch: int
    rounds: int
    batches_per_round: int

    def config(self, **overrides: int) -> VanillaTransformerConfig:
        return VanillaTransformerConfig.from_paper(self.preset, **{**self.fields, **overrides})


SIZES = {
    "base": Size("base", {"vocab_size": 10_000}, 2048, rounds=3, batches_per_round=1),
    "tiny": Size("base", TINY, 2048, rounds=5, batches_per_round=3),
    "tiny-8192": Size("base", TINY, 8192, rounds=3, batches_per_round=1),
    "base-25k": Size("base", {}, 25_000, rounds=5, batches_per_round=4),
    "big-25k": Size("big", {}, 25_000, rounds=5, batches_per_round=4),
    "smallest": Size("C N=2", {**TINY, "d_model": 16, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1}, 64, 2, 1),
}
CPU_SIZES = ["base", "tiny", "tiny-8192"]
GPU_SIZES = ["base-25k", "big-25k"]
# The values of each axis of the mode scaling; the size sets the other three.
AXES = {
    "length": [16, 32, 64, 128, 256, 512, 1024],
    "tokens": [512, 1024, 2048, 4096, 8192],
    "vocabulary": [10_000, 40_960],
    "depth": [2, 4, 6, 8],
}
USUAL_LENGTH = 16
MEMORY_STEPS = 3
COMPARED_TOKENS = 512


@dataclass
class BenchmarkArguments:
    """What to measure, and where to write the result."""

    modes: list[str] = field(default_factory=list, metadata={"help": "What to measure.", "positional": True})
    sizes: list[str] | None = field(
        default=None, metadata={"help": f"Of {', '.join(SIZES)}. The default depends on the mode and the machine."}
    )
    implementations: list[str] | None = field(
        default=None,
        metadata={"help": "For example ours-bf16, or ours for all its precisions. The default depends on the mode."},
    )
    baselines: list[str] = field(
        default_factory=lambda: ["marian-eager-bf16", "marian-sdpa-fp32"],
        metadata={"help": "Report the speedup over these implementations if they are measured."},
    )
    rounds: int | None = field(default=None, metadata={"help": "Rounds of measurements. The default is the size's."})
    repeats: int = field(
        default=2, metadata={"help": "Maximum repetitions of a measurement while the machine is slow."}
    )
    memory_batches: int = field(default=100, metadata={"help": "Number of batches of the mode memory."})
    updates: int = field(
        default=8,
        metadata={
            "help": "Updates per round of the mode trainer; from 50 on, ReleaseMemory is measured as well on CPUs."
        },
    )
    peak_tflops: float | None = field(
        default=None, metadata={"help": "Peak bfloat16 TFLOP/s of the device, for the utilization."}
    )
    output: str = field(
        default="benchmarks/results/training.json",
        metadata={
            "help": "JSON file of figures; a mode replaces its own figures in it. The tables go next to it, as .md."
        },
    )
    plot: str | None = field(default=None, metadata={"help": "Draw plots into this folder."})

    def __post_init__(self) -> None:
        unknown = [size for size in self.sizes or [] if size not in SIZES]
        if unknown:
            raise InputError(f'there is no size "{unknown[0]}"; choose among: {", ".join(SIZES)}.')
        if self.rounds is not None:
            check_number("rounds", self.rounds, 1)
        check_number("repeats", self.repeats, 0)
        check_number("memory_batches", self.memory_batches, 1)
        check_number("updates", self.updates, 1)


class Run:
    """The measurements of one mode: its arguments with defaults filled in, and shared state."""

    def __init__(
        self, args: BenchmarkArguments, default_implementations: list[str] | None, cpu_sizes: list[str]
    ) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.sizes = args.sizes or (GPU_SIZES if self.device.type == "cuda" else cpu_sizes)
        choose_implementations(args.baselines)
        self.implementations = []
        for implementation in choose_implementations(args.implementations or default_implementations):
            reason = missing_dependency(implementation)
            if reason is None:
                self.implementations.append(implementation)
            else:
                print(f"{implementation.name} is left out: {reason}")
        if not self.implementations:
            raise InputError("no implementation is left to measure; install what is missing or name others.")
        self.corpus = read_corpus()
        self.section: dict[str, Any] = {
            "machine": describe_conditions(self.device),
            "corpus": self.corpus.origin,
            "sizes": {},
        }

    def clock(self) -> Clock:
        return Clock(self.device, self.args.repeats)

    def peak_flops(self) -> float | None:
        """Peak FLOP/s of the device."""
        return peak_flops(self.device, self.args.peak_tflops)

    def rounds(self, size: Size) -> int:
        return self.args.rounds or size.rounds


def measure_steps(args: BenchmarkArguments) -> Iterator[Figures]:
    """Throughput and peak memory of each implementation at each size."""
    run = Run(args, None, CPU_SIZES)
    names = [implementation.name for implementation in run.implementations]
    run.section["references"] = [baseline for baseline in args.baselines if baseline in names]
    for name in run.sizes:
        size, config = SIZES[name], SIZES[name].config()
        rounds, each = run.rounds(size), size.batches_per_round
        batches = corpus_batches(run.corpus, size.tokens_per_batch, max(rounds * each, MEMORY_STEPS))
        models = [each.model for each in run.implementations if each.model in SAME_MODEL]
        small_batch = corpus_batches(run.corpus, min(size.tokens_per_batch, COMPARED_TOKENS), 1)[0]
        same = check_same_model(config, small_batch, list(dict.fromkeys(models)))
        clock = run.clock()
        with progress_bar(name, len(run.implementations) * (rounds + 2)) as progress:
            in_rounds = [batches[each * number : each * (number + 1)] for number in range(rounds)]
            measured = measure_implementations(run, config, in_rounds, batches[:MEMORY_STEPS], clock, progress)
        run.section["sizes"][name] = {
            "config": config.to_diff_dict(),
            "tokens_per_batch": size.tokens_per_batch,
            "rounds": rounds,
            "same_weights": same,
            "noise": clock.noise(),
            **measured,
        }
        yield run.section


def measure_implementations(
    run: Run,
    config: VanillaTransformerConfig,
    rounds: Sequence[Sequence[Batch]],
    memory_batches: Sequence[Batch],
    clock: Clock,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Figures of each implementation, and the reasons for those that ran out of memory."""
    left_out: dict[str, str] = {}
    found = time_steps(run.implementations, config, rounds, clock, progress, left_out)
    measured = [times.implementation for times in found]
    peaks = peaks_of(measured, config, memory_batches, run.device, progress, left_out)
    found = [times for times in found if times.implementation.name in peaks]
    figures = compare(found, peaks, run.section.get("references", []), run.peak_flops())
    return {"entries": figures, "left_out": left_out}


def peaks_of(
    implementations: Sequence[Implementation],
    config: VanillaTransformerConfig,
    batches: Sequence[Batch],
    device: torch.device,
    progress: Callable[[str], None],
    left_out: dict[str, str],
) -> dict[str, list[float]]:
    """`peak_memory_of_steps` by name; `left_out` receives the reasons for implementations that fail."""
    peaks = {}
    for implementation in implementations:
        progress(f"{implementation.name}, memory")
        with leaving_out(implementation.name, left_out):
            peaks[implementation.name] = peak_memory_of_steps(implementation, config, batches, device)
    return peaks


def measure_profile(args: BenchmarkArguments) -> Iterator[Figures]:
    """Where a training step spends its time, ours and Marian's at the same precision."""
    run = Run(args, ["ours", "marian-eager"], CPU_SIZES)
    precisions = list(PRECISIONS)
    for name in run.sizes:
        size = SIZES[name]
        batches = corpus_batches(run.corpus, size.tokens_per_batch, run.rounds(size) * size.batches_per_round)
        figures = []
        left_out: dict[str, str] = {}
        with progress_bar(name, len(run.implementations)) as progress:
            for implementation in sorted(run.implementations, key=lambda each: precisions.index(each.precision)):
                progress(f"{implementation.name}, profile")
                with leaving_out(implementation.name, left_out):
                    figures.append(profile_steps(implementation, size.config(), batches, run.device))
        run.section["sizes"][name] = {
            "tokens_per_batch": size.tokens_per_batch,
            "steps": len(batches),
            "entries": figures,
            "left_out": left_out,
        }
        yield run.section


def measure_memory(args: BenchmarkArguments) -> Iterator[Figures]:
    """Peak memory of each implementation over many batches of different shapes."""
    run = Run(args, ["ours-fp32", "ours-bf16", "marian-sdpa-fp32", "marian-eager-bf16"], ["tiny-8192"])
    for name in run.sizes:
        size = SIZES[name]
        batches = corpus_batches(run.corpus, size.tokens_per_batch, args.memory_batches)
        left_out: dict[str, str] = {}
        with progress_bar(name, len(run.implementations)) as progress:
            peaks = peaks_of(run.implementations, size.config(), batches, run.device, progress, left_out)
        run.section["sizes"][name] = {"tokens_per_batch": size.tokens_per_batch, "peaks": peaks, "left_out": left_out}
        yield run.section


def measure_scaling(args: BenchmarkArguments) -> Iterator[Figures]:
    """Throughput and memory by sentence length, batch size, vocabulary and depth."""
    marian = "marian-sdpa-bf16" if torch.cuda.is_available() else "marian-eager-bf16"
    run = Run(args, ["ours-bf16", marian], ["base"])
    for name in run.sizes:
        size, clock = SIZES[name], run.clock()
        axes: dict[str, list[dict[str, Any]]] = {}
        steps = sum(map(len, AXES.values())) * len(run.implementations) * (run.rounds(size) + 2)
        with progress_bar(name, steps) as progress:
            for axis, values in AXES.items():
                axes[axis] = [measure_point(run, size, axis, value, clock, progress) for value in values]
                run.section["sizes"][name] = {"axes": axes, "noise": clock.noise()}
                yield run.section


def measure_point(
    run: Run, size: Size, axis: str, value: int, clock: Clock, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Figures of the implementations at one value of one axis."""
    config = size.config()
    if axis == "vocabulary":
        config = size.config(vocab_size=value)
    if axis == "depth":
        config = size.config(encoder_layers=value, decoder_layers=value)
    length = value if axis == "length" else USUAL_LENGTH
    tokens = value if axis == "tokens" else size.tokens_per_batch
    batch = equal_batch(length, tokens, config.vocab_size)
    in_rounds = [[batch]] * run.rounds(size)
    return {"value": value, **measure_implementations(run, config, in_rounds, [batch] * 2, clock, progress)}


def measure_trainer(args: BenchmarkArguments) -> Iterator[Figures]:
    """The overhead of stock Seq2SeqTrainer over a bare loop."""
    names = args.implementations or ["ours-fp32", "ours-bf16"]
    # Before the corpus is read, which takes a while.
    if any(implementation.model != "ours" for implementation in choose_implementations(names)):
        raise InputError("the mode trainer measures ours; choose among: ours-fp32, ours-fp32-medium, ours-bf16.")
    run = Run(args, names, ["base", "tiny"])
    for name in run.sizes:
        size, clock, results = SIZES[name], run.clock(), {}
        overheads = {
            implementation.precision: Overhead(
                size.config(),
                run.corpus,
                size.tokens_per_batch,
                args.updates,
                PRECISIONS[implementation.precision][1],
                run.device,
            )
            for implementation in run.implementations
        }
        measurements = run.rounds(size) * sum(len(each.ways) for each in overheads.values())
        with progress_bar(name, measurements) as progress:
            for precision, overhead in overheads.items():
                with matmul_precision(PRECISIONS[precision][0]):
                    results[precision] = time_overhead(overhead, run.rounds(size), clock, progress)
        run.section["sizes"][name] = {
            "tokens_per_batch": size.tokens_per_batch,
            "noise": clock.noise(),
            "arithmetic": results,
        }
        yield run.section


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar over measurements; call it with the name of the next one."""
    with tqdm(total=total, desc=title) as bar:

        def advance(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        yield advance


MEASURE = {
    "steps": measure_steps,
    "profile": measure_profile,
    "memory": measure_memory,
    "scaling": measure_scaling,
    "trainer": measure_trainer,
}


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns all figures in the output file."""
    args = parse(BenchmarkArguments, __doc__, arguments)
    measure = {mode: partial(measure_mode, args) for mode, measure_mode in MEASURE.items()}
    tables, plot = training_report.tables, training_report.plot
    return run_modes("training", args.modes, measure, args.output, args.plot, tables, plot)


if __name__ == "__main__":
    keep_freed_memory()
    main()
