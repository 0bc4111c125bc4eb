"""Compare generate() of this package with other implementations that have the same weights.

Modes: `cells` (default: batch sizes and beams, the base model, exactly 32 new tokens), `profile` (the parts of a call
of ours, on the CPU), `scaling` (latency by source length, output length, beams and batch size), `long` (one sentence of
up to 4,000 tokens, by ours), `sentences` (text to text with a trained model and a file), `stopping` (the values of
`early_stopping` with a trained model of ours: rows, seconds, BLEU), `report` (tables and plots of the stored figures).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from benchmarks.peers.ctranslate2_processes import CTranslate2Processes
from benchmarks.support import generation_report
from benchmarks.support.count_decoder_rows import counting_rows
from benchmarks.support.generation_implementations import (
    BASELINE,
    IMPLEMENTATIONS,
    IN_CTRANSLATE2,
    InCTranslate2,
    InTransformers,
    Job,
    default_implementations,
    generate_kwargs_of,
    seconds_of,
    with_weights_of,
    without_missing,
)
from benchmarks.support.generation_profile import parts
from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.run_modes import Figures, run_modes
from benchmarks.support.timing import Clock, in_turns
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    load_engine,
    translate,
)
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.model.generation_settings import PAPER_ALPHA, PAPER_MAX_LENGTH_OFFSET
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.memory_tuning import keep_freed_memory
from hf_vanilla_transformer.support.user_errors import InputError


CELLS = [(1, 1), (1, 4), (16, 1), (16, 4), (64, 1), (64, 4)]
PROFILED_CELLS = [(1, 1), (1, 4), (64, 1), (64, 4)]
SOURCE_TOKENS, NEW_TOKENS, VOCABULARY = 15, 32, 10_000
FIRST_TOKEN_ID = 3
# The mode scaling changes one of these at a time.
USUAL = {"source": 16, "new": 32, "beams": 4, "batch": 8}
AXES = {
    "source": [16, 64, 256, 1024],
    "new": [16, 64, 256],
    "beams": [1, 2, 4, 8, 16],
    "batch": [1, 4, 16, 64],
}
# Source and target tokens of the mode long, and its beams.
LONG, LONG_BEAMS = [250, 500, 1_000, 2_000, 4_000], [1, 4]
# Bytes to read and width of a matmul to measure the machine's limits: large enough to hide the launch.
PROBED = {"cpu": (400_000_000, 2048), "cuda": (4_000_000_000, 8192)}
# Values of early_stopping for the mode sentences: each system's own, and True, which all have.
STOPPING_RULES = {"ours": ("never", True), "marian": (False, True), "ctranslate2": (True,)}
# Of the mode stopping.
ALPHAS, OUR_RULES = (0.6, 1.5), ("never", False, True)


@dataclass
class BenchmarkArguments:
    """What to measure, and where to write the result."""

    modes: list[str] = field(default_factory=list, metadata={"help": "What to measure.", "positional": True})
    implementations: list[str] | None = field(
        default=None,
        metadata={"help": f"Of {', '.join(IMPLEMENTATIONS)}. The default depends on the mode and the machine."},
    )
    rounds: int = field(default=7, metadata={"help": "Rounds of measurements."})
    repeats: int = field(
        default=2, metadata={"help": "Maximum repetitions of a measurement while the machine is slow."}
    )
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A trained model, for the modes sentences and stopping."}
    )
    file: str | None = field(
        default=None, metadata={"help": "Sentences to translate, one per line, for the modes sentences and stopping."}
    )
    references: str | None = field(
        default=None, metadata={"help": "Their translations, one per line, for the mode stopping."}
    )
    smallest: bool = field(default=False, metadata={"help": "Use a very small model and few cells, for a trial run."})
    output: str = field(
        default="benchmarks/results/generation.json",
        metadata={
            "help": "JSON file of figures; a mode replaces its own figures in it. The tables go next to it, as .md."
        },
    )
    plot: str | None = field(default=None, metadata={"help": "Draw plots into this folder."})

    def __post_init__(self) -> None:
        unknown = [name for name in self.implementations or [] if name not in IMPLEMENTATIONS]
        if unknown:
            raise InputError(f'there is no implementation "{unknown[0]}"; choose among: {", ".join(IMPLEMENTATIONS)}.')
        check_number("rounds", self.rounds, 1)
        check_number("repeats", self.repeats, 0)


def base_model(args: BenchmarkArguments) -> VanillaTransformerForConditionalGeneration:
    """The paper's base with a vocabulary of 10,000 and random weights."""
    torch.manual_seed(0)
    small = (
        {"d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1} if args.smallest else {}
    )
    config = VanillaTransformerConfig.from_paper("base", vocab_size=VOCABULARY, **small)
    return VanillaTransformerForConditionalGeneration(config).eval()


def time_job(
    implementations: dict[str, Any], job: Job, args: BenchmarkArguments, clock: Clock
) -> dict[str, dict[str, Any]]:
    """Latency per decoding step, seconds of each round, and translations equal to the baseline's, by name."""
    known = {name: implementation.prepare(job) for name, implementation in implementations.items()}
    tokens = {name: implementation.run(job)[1] for name, implementation in implementations.items()}
    runs = {name: partial(seconds_of, implementation, job) for name, implementation in implementations.items()}
    seconds = in_turns(runs, args.rounds, clock)
    theirs = [each[0] for each in seconds[BASELINE]]
    figures = {}
    for name, of_rounds in seconds.items():
        own, *with_packing = map(list, zip(*of_rounds, strict=True))
        figures[name] = {
            "milliseconds_a_step": median(own) / job.new_tokens * 1e3,
            "times": _ratios(theirs, own),
            "same": _count_same(tokens[name], tokens[BASELINE]),
            "sentences": len(job.sources),
            "seconds": own,
            **({"seconds_with_packing": with_packing[0]} if with_packing else {}),
            **known[name],
        }
    return figures


def _ratios(theirs: list[float], own: list[float]) -> list[float]:
    return [one / other for one, other in zip(theirs, own, strict=True)]


def _count_same(own: list[Any], theirs: list[Any]) -> int:
    return sum(one == other for one, other in zip(own, theirs, strict=True))


def make_job(batch: int, beams: int, source: int = SOURCE_TOKENS, new: int = NEW_TOKENS) -> Job:
    """A job with random sources."""
    generator = torch.Generator().manual_seed(0)
    return Job(torch.randint(FIRST_TOKEN_ID, VOCABULARY, (batch, source), generator=generator), beams, new)


def device_here() -> torch.device:
    """The GPU, or the CPU without one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def measure(
    args: BenchmarkArguments,
    default: Sequence[str],
    jobs: dict[str, Job],
    packing: bool = False,
    device: torch.device | None = None,
) -> Iterator[Figures]:
    """Figures of each implementation in each job; with `packing`, also of calls that pack the weights, on CPUs."""
    device = device or device_here()
    names, clock = without_missing(args.implementations or default), Clock(device, args.repeats)
    names += [] if BASELINE in names else [BASELINE]
    section: dict[str, Any] = {"machine": describe_conditions(device), "corpus": "random tokens", "jobs": {}}
    model = base_model(args)
    section["limits"] = limits(model, clock)
    packing = packing and device.type == "cpu"
    with with_weights_of(model, names, device) as models:
        implementations = {
            name: InCTranslate2(model.config, each)
            if isinstance(each, CTranslate2Processes)
            else InTransformers(each, packing and name.startswith("ours"), **generate_kwargs_of(name))
            for name, each in models.items()
        }
        for title, job in tqdm(jobs.items(), desc="generate()"):
            section["jobs"][title] = time_job(implementations, job, args, clock)
            section["noise"] = clock.noise()
            yield section


def limits(model: Any, clock: Clock) -> dict[str, float]:
    """The machine's memory bandwidth and matmul rates, and the weights that a decoding step reads."""
    device = clock.device
    probed_bytes, width = PROBED[device.type]
    numbers = torch.ones(probed_bytes // 4, device=device)
    ways_to_read = (numbers.sum, numbers.amax, lambda: numbers @ numbers)
    square = torch.randn(width, width, device=device)
    half = square.bfloat16()
    # Only CPUs have it, and not every build of torch.
    onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if device.type == "cpu" else None
    fp32 = partial(onednn, square, square, None, "none", [], "") if onednn else lambda: square @ square
    operations = 2 * width**3
    config = model.config
    layers = [module for module in model.model.decoder.modules() if isinstance(module, torch.nn.Linear)]
    read = sum(layer.weight.numel() for layer in layers) - 2 * config.decoder_layers * config.d_model**2
    return {
        "bytes_read_a_second": probed_bytes / min(_fastest(work, clock) for work in ways_to_read),
        "fp32_operations_a_second": operations / _fastest(fp32, clock),
        "bf16_operations_a_second": operations / _fastest(lambda: half @ half, clock),
        # Without the cross-attention's key and value projections, which are computed once per source.
        "weights_of_a_step": read + config.vocab_size * config.d_model,
    }


def _fastest(work: Callable[[], Any], clock: Clock) -> float:
    fastest = clock.time(work)
    # Some matmuls take seconds on CPUs without instructions for them; those are not repeated.
    repeats = 4 if fastest < 1 else 0
    return min([fastest, *(clock.time(work) for _ in range(repeats))])


def measure_cells(args: BenchmarkArguments) -> Iterator[Figures]:
    """Latency by batch size and beams."""
    cells = CELLS[:2] if args.smallest else CELLS
    default = default_implementations(device_here(), static_cache=True)
    jobs = {f"{batch} x {beams}": make_job(batch, beams) for batch, beams in cells}
    return measure(args, default, jobs, packing=True)


@torch.no_grad()
def measure_profile(args: BenchmarkArguments) -> Iterator[Figures]:
    """Milliseconds of a call of ours and of its parts, on the CPU."""
    cpu = torch.device("cpu")
    names = args.implementations or [name for name in default_implementations(cpu) if name.startswith("ours")]
    if not all(name.startswith("ours") and not generate_kwargs_of(name) for name in names):
        raise InputError(
            f"--implementations is {' '.join(names)}; the mode profile measures ours without a static cache, so leave "
            "the others out."
        )
    clock = Clock(cpu, args.repeats)
    section: dict[str, Any] = {"machine": describe_conditions(cpu), "corpus": "random tokens", "jobs": {}}
    cells = PROFILED_CELLS[:2] if args.smallest else PROFILED_CELLS
    with with_weights_of(base_model(args), names, cpu) as models:
        implementations = {name: InTransformers(model) for name, model in models.items()}
        for batch, beams in tqdm(cells, desc="parts of generate()"):
            job = make_job(batch, beams)
            for name, implementation in implementations.items():
                runs = {"call": lambda implementation=implementation, job=job: implementation.run(job)[0]}
                runs |= parts(implementation.model, job.sources, beams, job.new_tokens)
                seconds = in_turns(runs, args.rounds, clock)
                section["jobs"][f"{batch} x {beams}, {name}"] = {part: median(seconds[part]) * 1e3 for part in runs}
            section["noise"] = clock.noise()
            yield section


def measure_scaling(args: BenchmarkArguments) -> Iterator[Figures]:
    """Latency by source length, output length, beams and batch size."""
    jobs = {}
    for axis, values in AXES.items():
        for value in values[:2] if args.smallest else values:
            jobs[f"{axis} {value}"] = make_job(**{**USUAL, axis: value})
    default = [name for name in default_implementations(device_here()) if not name.startswith("ctranslate2")]
    return measure(args, default, jobs)


@torch.no_grad()
def measure_long(args: BenchmarkArguments) -> Iterator[Figures]:
    """Seconds of one sentence by its length, with a translation of the same length."""
    device = device_here()
    clock = Clock(device, args.repeats)
    section: dict[str, Any] = {"machine": describe_conditions(device), "corpus": "random tokens", "jobs": {}}
    translator = InTransformers(base_model(args).to(device))
    for tokens in tqdm([20, 30] if args.smallest else LONG, desc="long sentences"):
        jobs = {f"{beams}": make_job(1, beams, source=tokens, new=tokens) for beams in LONG_BEAMS}
        runs = {beams: lambda job=job: translator.run(job)[0] for beams, job in jobs.items()}
        seconds = in_turns(runs, args.rounds, clock)
        section["jobs"][f"{tokens:,}"] = {beams: median(of_rounds) for beams, of_rounds in seconds.items()}
        section["noise"] = clock.noise()
        yield section


@torch.no_grad()
def measure_sentences(args: BenchmarkArguments) -> Iterator[Figures]:
    """Throughput from text to text in sentences/s with 4 beams, in batches sorted by length, and rows computed."""
    if args.model_name_or_path is None or args.file is None:
        raise InputError("the mode sentences needs --model_name_or_path and --file; give both.")
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)
    sentences = [line for line in Path(args.file).read_text(encoding="utf-8").splitlines() if line.strip()]
    device = device_here()
    names = without_missing(args.implementations or default_implementations(device))
    clock = Clock(device, args.repeats)
    section: dict[str, Any] = {
        "machine": describe_conditions(device),
        "corpus": f"{Path(args.file).name}, {len(sentences):,} sentences",
        "parameters": model.num_parameters(),
    }
    in_transformers = [name for name in names if name not in IN_CTRANSLATE2]
    with with_weights_of(model, in_transformers, device) as models, ExitStack() as stack:
        for name, each in models.items():
            is_marian = name.startswith("marian")
            each.generation_config = _of_marian(model, tokenizer, sentences) if is_marian else model.generation_config
        for name in set(names) - set(models):
            models[name] = load_engine(args.model_name_or_path, compute_type=IN_CTRANSLATE2[name])
            stack.callback(models[name].close)
        runs, texts, rows = {}, {}, {}
        for name in names:
            for rule in STOPPING_RULES[name.split("-")[0]]:
                options = {"num_beams": 4, "early_stopping": rule, **generate_kwargs_of(name)}
                run = partial(_by_translate, models[name], tokenizer, sentences, options)
                entry = f"{name}, {rule}"
                with counting_rows(models[name]) as counted:
                    texts[entry] = run()[1]
                runs[entry], rows[entry] = run, sum(counted)
        seconds = in_turns({name: lambda run=run: run()[0] for name, run in runs.items()}, args.rounds, clock)
    section["noise"] = clock.noise()
    first = next(iter(runs))
    section["entries"] = {
        name: {
            "sentences_a_second": len(sentences) / median(own_seconds),
            "times": _ratios(seconds[first], own_seconds),
            "rows": rows[name],
            "same": _count_same(texts[name], texts[first]),
            "seconds": own_seconds,
        }
        for name, own_seconds in seconds.items()
    }
    yield section


@torch.no_grad()
def measure_stopping(args: BenchmarkArguments) -> Iterator[Figures]:
    """Rows, seconds and BLEU of ours by alpha and rule of stopping, with the model's number of beams."""
    if args.model_name_or_path is None or args.file is None or args.references is None:
        raise InputError("the mode stopping needs --model_name_or_path, --file and --references; give all three.")
    # The other modes run with torch and transformers alone; see gpu_check.
    from hf_vanilla_transformer import load_pairs, score_translations

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path).to(device_here())
    pairs = load_pairs(test_files=[args.file, args.references])["test"]
    clock = Clock(model.device, args.repeats)
    runs, entries = {}, {}
    for alpha, rule in product(ALPHAS, OUR_RULES):
        options = {"length_penalty": alpha, "early_stopping": rule}
        run = partial(_by_translate, model, tokenizer, pairs["source"], options)
        with counting_rows(model) as counted:
            texts = run()[1]
        bleu = score_translations(texts, pairs["target"], tokenize="13a")["bleu"]
        runs[f"{alpha}, {rule}"] = run
        entries[f"{alpha}, {rule}"] = {"rows": sum(counted), "bleu": bleu, "texts": texts}
    seconds = in_turns({name: lambda run=run: run()[0] for name, run in runs.items()}, args.rounds, clock)
    for name, entry in entries.items():
        first = f"{name.split(', ')[0]}, {OUR_RULES[0]}"
        entry["seconds"], entry["times"] = seconds[name], _ratios(seconds[first], seconds[name])
        entry["same"] = _count_same(entry["texts"], entries[first]["texts"])
    yield {
        "machine": describe_conditions(model.device),
        "corpus": f"{Path(args.file).name}, {len(pairs):,} sentences, {model.generation_config.num_beams} beams",
        "noise": clock.noise(),
        "entries": {name: {key: entry[key] for key in entry if key != "texts"} for name, entry in entries.items()},
    }


def _of_marian(model: PreTrainedModel, tokenizer: Any, sentences: list[str]) -> GenerationConfig:
    """Settings that Marian supports: one length limit for all sentences, and transformers' length penalty."""
    tokens = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")
    longest = max(map(len, tokenizer(sentences).input_ids))
    return GenerationConfig(
        **{name: getattr(model.config, name) for name in tokens},
        length_penalty=PAPER_ALPHA,
        max_new_tokens=longest + PAPER_MAX_LENGTH_OFFSET,
    )


def _by_translate(model: Any, tokenizer: Any, sentences: list[str], options: dict[str, Any]) -> tuple[float, list[str]]:
    start = time.perf_counter()
    texts = translate(model, tokenizer, sentences, **options)
    return time.perf_counter() - start, texts


MEASURE = {
    "cells": measure_cells,
    "profile": measure_profile,
    "scaling": measure_scaling,
    "long": measure_long,
    "sentences": measure_sentences,
    "stopping": measure_stopping,
}


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns all figures in the output file."""
    args = parse(BenchmarkArguments, __doc__, arguments)
    measure_modes = {mode: partial(measure_mode, args) for mode, measure_mode in MEASURE.items()}
    tables, plot = (partial(show, baseline=BASELINE) for show in (generation_report.tables, generation_report.plot))
    return run_modes("generation", args.modes, measure_modes, args.output, args.plot, tables, plot)


if __name__ == "__main__":
    keep_freed_memory()
    main()
