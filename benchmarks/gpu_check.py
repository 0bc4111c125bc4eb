"""Check this package on a GPU, and measure training and decoding there, in one command of at most eight minutes.

It needs torch, transformers, and a checkout as the current folder, no other package and no installation. It runs the
checks of tests/device/checks.py and measures the paper's base and big models against transformers' Marian. After each
part it writes gpu_check.json and gpu_check.md; it ends with 1 if a part failed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import generation
from benchmarks.support import generation_report, training_report
from benchmarks.support.flops import peak_flops
from benchmarks.support.generation_implementations import BASELINE
from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.random_batches import padded_batch
from benchmarks.support.report_parts import table
from benchmarks.support.timed_parts import FAILED, Outcome, Part, run_parts
from benchmarks.support.timing import Clock
from benchmarks.support.training_implementations import Batch, Implementation
from benchmarks.support.training_profile import profile_steps
from benchmarks.support.training_steps import compare, leaving_out, time_steps
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.user_errors import InputError
from tests.device import checks


MODELS = ("ours", "marian-sdpa")
# Of the longest sentence in a batch; each round has one batch of each.
LENGTHS = (16, 32, 64)
ROUNDS = 3
# Dense TF32 FLOP/s divided by those of bfloat16, on A100, H100 and H200.
TF32_SHARE = 0.5
SMALLEST = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2, "vocab_size": 100}


@dataclass
class GpuCheckArguments:
    """What to run, and where."""

    output: str = field(default="runs/gpu_check", metadata={"help": "Folder for gpu_check.json and gpu_check.md."})
    device: str = field(default="cuda", metadata={"help": "cuda, or cpu for a rehearsal without a GPU."})
    parts: list[str] | None = field(default=None, metadata={"help": "Names of parts to run. Default: all."})
    seconds: int = field(default=450, metadata={"help": "Time for all parts; those that do not fit are not run."})
    peak_tflops: float | None = field(
        default=None, metadata={"help": "Peak bfloat16 TFLOP/s of the GPU, for the utilization, if it is unknown."}
    )
    smallest: bool = field(default=False, metadata={"help": "Measure very small models, for a rehearsal."})

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds, 0)
        if self.device not in ("cuda", "cpu"):
            raise InputError(f"device is {self.device}; give cuda or cpu.")
        known = [part.name for part in PARTS]
        unknown = [name for name in self.parts or [] if name not in known]
        if unknown:
            raise InputError(f'there is no part "{unknown[0]}"; choose among: {", ".join(known)}.')


def run_check(check: Callable[[str], None], args: GpuCheckArguments) -> None:
    check(args.device)


def environment(args: GpuCheckArguments) -> Outcome:
    """Versions, devices and commit."""
    described = describe_conditions(torch.device(args.device))
    return {"environment": {**described, "cuda": torch.version.cuda, "driver": _driver()}}


def _driver() -> str | None:
    """The version of NVIDIA's driver, if its tool is there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def training_setup(size: str, args: GpuCheckArguments) -> tuple[VanillaTransformerConfig, int, list[list[Batch]]]:
    """A configuration, the tokens per batch, and the batches of each round."""
    config = VanillaTransformerConfig.from_paper(size, **(SMALLEST if args.smallest else {}))
    tokens = 128 if args.smallest else 25_000
    batches = [[padded_batch(each, tokens, config.vocab_size, seed) for each in LENGTHS] for seed in range(ROUNDS)]
    return config, tokens, batches


def training(size: str, precision: str, args: GpuCheckArguments) -> Outcome:
    """Throughput, utilization and peak memory of training steps, ours and Marian's."""
    device = torch.device(args.device)
    config, tokens, rounds = training_setup(size, args)
    implementations = [Implementation(model, precision) for model in MODELS]
    left_out: dict[str, str] = {}
    clock = Clock(device, repeats=1)
    found = time_steps(implementations, config, rounds, clock, lambda what: None, left_out)
    peaks: dict[str, list[Any]] = {}
    for each in implementations:
        with leaving_out(each.name, left_out):
            peaks[each.name] = [peak_megabytes(each, config, rounds[0], device)]
    peak = peak_flops(device, args.peak_tflops)
    if peak is not None and precision != "bf16":
        peak *= TF32_SHARE
    references = [implementations[1].name]
    entries = compare([times for times in found if times.implementation.name in peaks], peaks, references, peak)
    figures = {
        "config": config.to_diff_dict(),
        "tokens_per_batch": tokens,
        "rounds": ROUNDS,
        "noise": clock.noise(),
        "entries": entries,
        "left_out": left_out,
    }
    return {"training": {"steps": {**_section(device), "references": references, "sizes": {size: figures}}}}


def peak_megabytes(
    implementation: Implementation, config: VanillaTransformerConfig, batches: Sequence[Batch], device: torch.device
) -> float | None:
    """Peak memory of the tensors of training steps on a GPU, in MB (1,000,000 bytes)."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    training = implementation.build(config, device)
    for batch in batches:
        implementation.step(training, {name: tensor.to(device) for name, tensor in batch.items()})
    return torch.cuda.max_memory_allocated() / 1e6


def profile(size: str, precision: str, args: GpuCheckArguments) -> Outcome:
    """Where training steps spend their time."""
    device = torch.device(args.device)
    config, tokens, (batches, *_) = training_setup(size, args)
    entries = [profile_steps(Implementation(model, precision), config, batches, device) for model in MODELS]
    figures = {"tokens_per_batch": tokens, "steps": len(batches), "entries": entries}
    return {"training": {"profile": {**_section(device), "sizes": {size: figures}}}}


def _section(device: torch.device) -> dict[str, Any]:
    return {"machine": describe_conditions(device), "corpus": "random tokens"}


def decoding(names: list[str], cells: list[tuple[int, int]], args: GpuCheckArguments) -> Outcome:
    """Latency of generate(), ours and Marian's, for batch sizes and beams."""
    rounds, cells = (1, cells[:1]) if args.smallest else (5, cells)
    settings = generation.BenchmarkArguments(rounds=rounds, repeats=1, smallest=args.smallest)
    jobs = {f"{batch} x {beams}": generation.make_job(batch, beams) for batch, beams in cells}
    *_, section = generation.measure(settings, names, jobs, device=torch.device(args.device))
    return {"decoding": {"cells": section}}


def _checks(functions: Sequence[Callable[[str], None]], limit: int) -> list[Part]:
    return [Part(check.__name__, partial(run_check, check), limit) for check in functions]


# The cheapest and most important first, in case time runs out.
PARTS = [
    Part("environment", environment, 60),
    *_checks(checks.CHECKS + checks.GPU_CHECKS, 60),
    Part("training_base_bf16", partial(training, "base", "bf16"), 90),
    Part(
        "decoding",
        partial(decoding, ["ours-fp32", "ours-bf16", "marian-fp32", "marian-bf16"], [(1, 1), (64, 4)]),
        120,
    ),
    Part("training_big_bf16", partial(training, "big", "bf16"), 90),
    Part("training_base_tf32", partial(training, "base", "fp32-medium"), 90),
    *_checks([checks.compiled_training_step, checks.compiled_decoding], 120),
    Part("decoding_compiled", partial(decoding, ["ours-bf16", "ours-bf16-static", "marian-fp32"], [(1, 1)]), 120),
    Part("decoding_marian_compiled", partial(decoding, ["marian-bf16-static", "marian-fp32"], [(1, 1)]), 120),
    Part("profile_base_bf16", partial(profile, "base", "bf16"), 60),
    *_checks([checks.flex_attention], 150),
]


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """All outcomes as Markdown."""
    yield "# benchmarks.gpu_check"
    for outcome in outcomes:
        if "environment" in outcome:
            yield ", ".join(f"{name} {value}" for name, value in outcome["environment"].items() if value is not None)
    rows = [
        [each["name"], each["result"], f"{each['seconds']:.1f}", f"{each.get('peak_megabytes', 0):.0f}"]
        for each in outcomes
    ]
    yield table(["part", "result", "seconds", "peak MB"], rows)
    for outcome in outcomes:
        if outcome["result"] == FAILED:
            yield f"## {outcome['name']} failed\n\n```\n{outcome['error'].strip()}\n```"
        if "training" in outcome:
            yield from _titled(outcome, training_report.tables(outcome["training"]))
        if "decoding" in outcome:
            yield from _titled(outcome, generation_report.tables(outcome["decoding"], BASELINE))
            yield _throughput(outcome["decoding"]["cells"]["jobs"])


def _titled(outcome: Outcome, texts: Iterator[str]) -> Iterator[str]:
    """The tables of another command, whose first line is the name of a mode, under the name of the part."""
    first, *others = texts
    yield f"## {outcome['name']}\n{first.partition(chr(10))[2]}"
    yield from others


def _throughput(jobs: dict[str, dict[str, Any]]) -> str:
    rows = []
    for title, entries in jobs.items():
        new_tokens = {name: each["sentences"] * generation.NEW_TOKENS for name, each in entries.items()}
        rates = [f"{new_tokens[name] / median(each['seconds']):.0f}" for name, each in entries.items()]
        rows.append([title, *rates])
    return f"Throughput in generated tokens/s:\n\n{table(['', *entries], rows)}"


@program
def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    args = parse(GpuCheckArguments, __doc__, arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but torch finds no GPU here; give --device cpu --smallest to rehearse.")
    Path(args.output).mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if args.parts is None or part.name in args.parts]
    return run(parts, args)


def run(parts: Sequence[Part], args: GpuCheckArguments) -> int:
    """Run parts, and write all outcomes after each; returns the exit code."""
    # For the child processes: everything is on the disk, and progress bars would hide what they print.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    outcomes: list[Outcome] = []
    for outcome in run_parts(parts, args):
        outcomes.append(outcome)
        last_line = outcome.get("error", "").strip().rpartition("\n")[2]
        print(f"{outcome['name']:<38} {outcome['seconds']:6.1f} s  {outcome['result']} {last_line}", flush=True)
        path = Path(args.output) / "gpu_check.json"
        write_text(path, json.dumps({"arguments": asdict(args), "parts": outcomes}, indent=2) + "\n")
        write_text(path.with_suffix(".md"), "\n\n".join(tables(outcomes)) + "\n")
    return 1 if any(outcome["result"] == FAILED for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
