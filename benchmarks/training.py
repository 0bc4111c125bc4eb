"""Time one training step, of this package and of other implementations of the same model, in turns.

Modes: `steps` (the default; speed and peak memory of every entry), `parts` (what the time of a step of ours and of
Marian's goes on), `memory` (peak memory over many batches), `scaling` (speed and memory against length, batch,
vocabulary and depth), `trainer` (what stock Seq2SeqTrainer costs), `report` (tables, and plots, of what was measured
before).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from tqdm import tqdm

from benchmarks.support import report, same_model
from benchmarks.support.batches import corpus_batches, equal_batch, read_corpus
from benchmarks.support.entries import (
    ARITHMETIC,
    SAME_MODEL,
    Batch,
    Entry,
    choose_entries,
    matmul_precision,
    why_left_out,
)
from benchmarks.support.measuring import (
    Clock,
    Timing,
    describe_machine,
    keep_freed_memory,
    leaving_out,
    peak_flops,
    peak_memory,
    time_steps,
)
from benchmarks.support.modes import Figures, run_modes
from benchmarks.support.trainer_overhead import Overhead, time_overhead
from benchmarks.support.training_parts import parts
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.cli.parsing import parse


TINY = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "vocab_size": 10_000}


@dataclass(frozen=True)
class Size:
    """A model, its batches, and how much of it is measured."""

    row: str
    fields: dict[str, int]
    tokens_per_batch: int
    rounds: int
    batches_per_round: int

    def config(self, **overrides: int) -> VanillaTransformerConfig:
        return VanillaTransformerConfig.from_paper(self.row, **{**self.fields, **overrides})


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
# Sentences, batches, vocabularies and stacks that the growth of cost is measured at; the other three as the size says.
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
    """What to measure, and where to put the result."""

    sizes: list[str] | None = field(
        default=None, metadata={"help": f"Of {', '.join(SIZES)}. Default: what suits the mode and the machine."}
    )
    entries: list[str] | None = field(
        default=None, metadata={"help": "Such as ours-bf16, or ours for all of ours. Default: what suits the mode."}
    )
    references: list[str] = field(
        default_factory=lambda: ["marian-eager-bf16", "marian-sdpa-fp32"],
        metadata={"help": "Compare with these, round by round, where they are measured."},
    )
    rounds: int | None = field(default=None, metadata={"help": "Rounds of measurements. Default: the size's."})
    repeats: int = field(default=2, metadata={"help": "How often a measurement of a slow machine is made again."})
    memory_batches: int = field(default=100, metadata={"help": "Batches of the mode memory."})
    updates: int = field(
        default=8,
        metadata={
            "help": "Updates of the mode trainer, in each round; from 50 on, on CPUs, with giving memory back, too."
        },
    )
    peak_tflops: float | None = field(
        default=None, metadata={"help": "What the device computes at most in bfloat16, for the utilisation."}
    )
    output: str = field(
        default="benchmarks/results/training.json",
        metadata={"help": "JSON file; a mode replaces its own figures in it and leaves the others."},
    )
    plot: str | None = field(default=None, metadata={"help": "Draw into this folder, such as docs/images."})

    def __post_init__(self) -> None:
        unknown = [size for size in self.sizes or [] if size not in SIZES]
        if unknown:
            raise ValueError(f'there is no size "{unknown[0]}"; choose among: {", ".join(SIZES)}.')
        for name, least in (("rounds", 1), ("repeats", 0), ("memory_batches", 1), ("updates", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}.")


class Run:
    """One mode's measurements: the arguments with defaults filled in, and what all measurements share."""

    def __init__(self, args: BenchmarkArguments, default_entries: list[str] | None, cpu_sizes: list[str]) -> None:
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.sizes = args.sizes or (GPU_SIZES if self.device.type == "cuda" else cpu_sizes)
        choose_entries(args.references)
        self.entries = []
        for entry in choose_entries(args.entries or default_entries):
            reason = why_left_out(entry)
            if reason is None:
                self.entries.append(entry)
            else:
                print(f"{entry.name} is left out: {reason}")
        if not self.entries:
            raise ValueError("no entry is left to measure.")
        self.corpus = read_corpus()
        self.section: dict[str, Any] = {
            "machine": describe_machine(self.device),
            "corpus": self.corpus.origin,
            "sizes": {},
        }

    def clock(self) -> Clock:
        return Clock(self.device, self.args.repeats)

    def peak_flops(self) -> float | None:
        """Of the device, in a second at most."""
        return peak_flops(self.device, self.args.peak_tflops)

    def rounds(self, size: Size) -> int:
        return self.args.rounds or size.rounds


def measure_steps(args: BenchmarkArguments) -> Iterator[Figures]:
    """Speed and peak memory of every entry at every size."""
    run = Run(args, None, CPU_SIZES)
    names = [entry.name for entry in run.entries]
    run.section["references"] = [reference for reference in args.references if reference in names]
    for name in run.sizes:
        size, config = SIZES[name], SIZES[name].config()
        rounds, each = run.rounds(size), size.batches_per_round
        batches = corpus_batches(run.corpus, size.tokens_per_batch, max(rounds * each, MEMORY_STEPS))
        implementations = [entry.implementation for entry in run.entries if entry.implementation in SAME_MODEL]
        few = corpus_batches(run.corpus, min(size.tokens_per_batch, COMPARED_TOKENS), 1)[0]
        same = same_model.compare(config, few, list(dict.fromkeys(implementations)))
        clock = run.clock()
        with progress_bar(name, len(run.entries) * (rounds + 2)) as progress:
            in_rounds = [batches[each * number : each * (number + 1)] for number in range(rounds)]
            measured = measure_entries(run, config, in_rounds, batches[:MEMORY_STEPS], clock, progress)
        run.section["sizes"][name] = {
            "config": config.to_diff_dict(),
            "tokens_per_batch": size.tokens_per_batch,
            "rounds": rounds,
            "same_weights": same,
            "noise": clock.noise(),
            **measured,
        }
        yield run.section


def measure_entries(
    run: Run,
    config: VanillaTransformerConfig,
    rounds: Sequence[Sequence[Batch]],
    memory_batches: Sequence[Batch],
    clock: Clock,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Figures of each entry, and instead of those of entries that ran out of memory, the reasons."""
    left_out: dict[str, str] = {}
    timings = time_steps(run.entries, config, rounds, clock, progress, left_out)
    peaks = peaks_of([timing.entry for timing in timings], config, memory_batches, run.device, progress, left_out)
    timings = [timing for timing in timings if timing.entry.name in peaks]
    figures = compare_with(timings, peaks, run.section.get("references", []), run.peak_flops())
    return {"entries": figures, "left_out": left_out}


def peaks_of(
    entries: Sequence[Entry],
    config: VanillaTransformerConfig,
    batches: Sequence[Batch],
    device: torch.device,
    progress: Callable[[str], None],
    left_out: dict[str, str],
) -> dict[str, list[float]]:
    """`peak_memory` of each entry, by name; of the others, `left_out` gets the reasons."""
    peaks = {}
    for entry in entries:
        progress(f"{entry.name}, memory")
        with leaving_out(entry.name, left_out):
            peaks[entry.name] = peak_memory(entry, config, batches, device)
    return peaks


def compare_with(
    timings: Sequence[Timing], peaks: dict[str, list[float]], references: Sequence[str], peak: float | None
) -> list[dict[str, Any]]:
    """Figures of each entry: tokens a second, times as fast as the references in each round, memory, utilisation.

    Args:
        peaks: the most memory that each has had after some steps, in units of 1,000,000 bytes, by name.
        peak: FLOP/s of the device at most, if that is known.
    """
    by_name = {timing.entry.name: timing for timing in timings}
    figures = []
    for timing in timings:
        speed_ups = {name: timing.speed_up(by_name[name]) for name in references if name in by_name}
        work = timing.flops_per_second()
        figures.append(
            {
                "name": timing.entry.name,
                "arithmetic": timing.entry.arithmetic,
                "tokens_per_second": timing.tokens_per_second(),
                "times": {name: {"median": median(ratios), "rounds": ratios} for name, ratios in speed_ups.items()},
                "peak_megabytes": peaks[timing.entry.name][-1],
                "tflops_per_second": work / 1e12,
                "utilisation": None if peak is None else work / peak,
                "first_loss": timing.first_loss,
                "seconds": timing.seconds,
                "tokens": timing.tokens,
            }
        )
    return figures


def measure_parts(args: BenchmarkArguments) -> Iterator[Figures]:
    """What the time of a step goes on, of ours, and of Marian in the same arithmetic beside it."""
    run = Run(args, ["ours", "marian-eager"], CPU_SIZES)
    for name in run.sizes:
        size = SIZES[name]
        batches = corpus_batches(run.corpus, size.tokens_per_batch, run.rounds(size) * size.batches_per_round)
        figures = []
        left_out: dict[str, str] = {}
        with progress_bar(name, len(run.entries)) as progress:
            for entry in sorted(run.entries, key=lambda entry: list(ARITHMETIC).index(entry.arithmetic)):
                progress(f"{entry.name}, parts")
                with leaving_out(entry.name, left_out):
                    figures.append(parts(entry, size.config(), batches, run.device))
        run.section["sizes"][name] = {
            "tokens_per_batch": size.tokens_per_batch,
            "steps": len(batches),
            "entries": figures,
            "left_out": left_out,
        }
        yield run.section


def measure_memory(args: BenchmarkArguments) -> Iterator[Figures]:
    """Peak memory of each entry over many batches, which differ in shape."""
    run = Run(args, ["ours-fp32", "ours-bf16", "marian-sdpa-fp32", "marian-eager-bf16"], ["tiny-8192"])
    for name in run.sizes:
        size = SIZES[name]
        batches = corpus_batches(run.corpus, size.tokens_per_batch, args.memory_batches)
        left_out: dict[str, str] = {}
        with progress_bar(name, len(run.entries)) as progress:
            peaks = peaks_of(run.entries, size.config(), batches, run.device, progress, left_out)
        run.section["sizes"][name] = {"tokens_per_batch": size.tokens_per_batch, "peaks": peaks, "left_out": left_out}
        yield run.section


def measure_scaling(args: BenchmarkArguments) -> Iterator[Figures]:
    """How speed and memory change with the length of sentences, the batch, the vocabulary and the depth."""
    marian = "marian-sdpa-bf16" if torch.cuda.is_available() else "marian-eager-bf16"
    run = Run(args, ["ours-bf16", marian], ["base"])
    for name in run.sizes:
        size, clock = SIZES[name], run.clock()
        axes: dict[str, list[dict[str, Any]]] = {}
        steps = sum(map(len, AXES.values())) * len(run.entries) * (run.rounds(size) + 2)
        with progress_bar(name, steps) as progress:
            for axis, values in AXES.items():
                axes[axis] = [measure_point(run, size, axis, value, clock, progress) for value in values]
                run.section["sizes"][name] = {"axes": axes, "noise": clock.noise()}
                yield run.section


def measure_point(
    run: Run, size: Size, axis: str, value: int, clock: Clock, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Figures of the entries where one of the four quantities has a value of its own."""
    config = size.config()
    if axis == "vocabulary":
        config = size.config(vocab_size=value)
    if axis == "depth":
        config = size.config(encoder_layers=value, decoder_layers=value)
    length = value if axis == "length" else USUAL_LENGTH
    tokens = value if axis == "tokens" else size.tokens_per_batch
    batch = equal_batch(length, tokens, config.vocab_size)
    in_rounds = [[batch]] * run.rounds(size)
    return {"value": value, **measure_entries(run, config, in_rounds, [batch] * 2, clock, progress)}


def measure_trainer(args: BenchmarkArguments) -> Iterator[Figures]:
    """By which share stock Seq2SeqTrainer is slower than bare steps."""
    names = args.entries or ["ours-fp32", "ours-bf16"]
    # Before the corpus is read.
    if any(entry.implementation != "ours" for entry in choose_entries(names)):
        raise ValueError("the mode trainer measures ours; choose among: ours-fp32, ours-fp32-medium, ours-bf16.")
    run = Run(args, names, ["base", "tiny"])
    for name in run.sizes:
        size, clock, results = SIZES[name], run.clock(), {}
        overheads = {
            entry.arithmetic: Overhead(
                size.config(),
                run.corpus,
                size.tokens_per_batch,
                args.updates,
                ARITHMETIC[entry.arithmetic][1],
                run.device,
            )
            for entry in run.entries
        }
        measurements = run.rounds(size) * sum(len(each.ways) for each in overheads.values())
        with progress_bar(name, measurements) as progress:
            for arithmetic, overhead in overheads.items():
                with matmul_precision(ARITHMETIC[arithmetic][0]):
                    results[arithmetic] = time_overhead(overhead, run.rounds(size), clock, progress)
        run.section["sizes"][name] = {
            "tokens_per_batch": size.tokens_per_batch,
            "noise": clock.noise(),
            "arithmetic": results,
        }
        yield run.section


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar over measurements, to be called with the name of the next one."""
    with tqdm(total=total, desc=title) as bar:

        def advance(what: str) -> None:
            bar.set_postfix_str(what, refresh=False)
            bar.update()

        yield advance


MEASURE = {
    "steps": measure_steps,
    "parts": measure_parts,
    "memory": measure_memory,
    "scaling": measure_scaling,
    "trainer": measure_trainer,
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure as the command line says; returns all figures of the output file."""
    args, modes = parse([BenchmarkArguments], __doc__, arguments, positional="modes")
    measure = {mode: partial(of_mode, args) for mode, of_mode in MEASURE.items()}
    return run_modes(modes, measure, args.output, args.plot, report.tables, report.plot)


if __name__ == "__main__":
    keep_freed_memory()
    main()
