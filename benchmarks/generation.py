"""Time generate(), of this package and of others with the same weights, in turns.

Modes: `cells` (the default; batches and beams, a base model, exactly 32 new tokens), `parts` (what the time goes on in
some cells, on the CPU), `scaling` (against source length, output length, beams and batch), `sentences` (a trained model
and a file of sentences, text to text), `report` (tables, and plots, of what was measured before).
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from benchmarks.peers.ctranslate2_model import CTranslate2Processes, word
from benchmarks.support import report_generation
from benchmarks.support.generation_entries import (
    ENTRIES,
    REFERENCE,
    InCTranslate2,
    InTransformers,
    Job,
    options_of,
    peers,
    seconds_of,
    usual_entries,
    without_missing,
)
from benchmarks.support.generation_parts import parts
from benchmarks.support.measuring import Clock, describe_machine, in_turns, keep_freed_memory
from benchmarks.support.modes import Figures, run_modes
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, translate
from hf_vanilla_transformer.cli.parsing import parse
from hf_vanilla_transformer.model.generation_vanilla_transformer import PAPER_ALPHA, PAPER_MAX_LENGTH_OFFSET


CELLS = [(1, 1), (1, 4), (16, 1), (16, 4), (64, 1), (64, 4)]
CELLS_IN_PARTS = [(1, 1), (1, 4), (64, 1), (64, 4)]
SOURCE_TOKENS, NEW_TOKENS, VOCABULARY = 15, 32, 10_000
FIRST_WORD_ID = 3
# One quantity changes at a time; the others are these.
USUAL = {"source": 16, "new": 32, "beams": 4, "batch": 8}
AXES = {
    "source": [16, 64, 256, 1024],
    "new": [16, 64, 256],
    "beams": [1, 2, 4, 8, 16],
    "batch": [1, 4, 16, 64],
}
# Bytes that are read, and width of a product, to find out how fast that is: enough to take long beside starting it.
PROBED = {"cpu": (400_000_000, 2048), "cuda": (4_000_000_000, 8192)}
# Source tokens, among which CTranslate2 has the choice.
TOKENS_A_BATCH = (4096, 1024)


@dataclass
class BenchmarkArguments:
    """What to measure, and where to put the result."""

    entries: list[str] | None = field(
        default=None, metadata={"help": f"Of {', '.join(ENTRIES)}. Default: what suits the mode and the machine."}
    )
    rounds: int = field(default=7, metadata={"help": "Rounds of measurements."})
    repeats: int = field(default=2, metadata={"help": "How often a measurement of a slow machine is made again."})
    model: str | None = field(default=None, metadata={"help": "A trained model, for the mode sentences."})
    file: str | None = field(default=None, metadata={"help": "Its sentences, one a line."})
    smallest: bool = field(default=False, metadata={"help": "A very small model and few cells, to try the command."})
    output: str = field(
        default="benchmarks/results/generation.json",
        metadata={"help": "JSON file; a mode replaces its own figures in it and leaves the others."},
    )
    plot: str | None = field(default=None, metadata={"help": "Draw into this folder, such as docs/images."})

    def __post_init__(self) -> None:
        unknown = [name for name in self.entries or [] if name not in ENTRIES]
        if unknown:
            raise ValueError(f'there is no entry "{unknown[0]}"; choose among: {", ".join(ENTRIES)}.')
        for name, least in (("rounds", 1), ("repeats", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


def base_model(args: BenchmarkArguments) -> VanillaTransformerForConditionalGeneration:
    """The paper's base with a vocabulary of 10,000 and random weights."""
    torch.manual_seed(0)
    small = (
        {"d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1} if args.smallest else {}
    )
    config = VanillaTransformerConfig.from_paper("base", vocab_size=VOCABULARY, **small)
    return VanillaTransformerForConditionalGeneration(config).eval()


def time_job(entries: dict[str, Any], job: Job, args: BenchmarkArguments, clock: Clock) -> dict[str, dict[str, Any]]:
    """Milliseconds a step of each entry, seconds of each round, and how many translations are the reference's."""
    known = {name: entry.begin(job) for name, entry in entries.items()}
    tokens = {name: entry.run(job)[1] for name, entry in entries.items()}
    runs = {name: partial(seconds_of, entry, job) for name, entry in entries.items()}
    seconds = in_turns(runs, args.rounds, clock)
    theirs = [each[0] for each in seconds[REFERENCE]]
    figures = {}
    for name, of_rounds in seconds.items():
        own, *with_packing = map(list, zip(*of_rounds, strict=True))
        figures[name] = {
            "milliseconds_a_step": median(own) / job.new_tokens * 1e3,
            "times": _ratios(theirs, own),
            "same": _count_same(tokens[name], tokens[REFERENCE]),
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
    """Random sources."""
    generator = torch.Generator().manual_seed(0)
    return Job(torch.randint(FIRST_WORD_ID, VOCABULARY, (batch, source), generator=generator), beams, new)


def device_here() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def measure(
    args: BenchmarkArguments, default: Sequence[str], jobs: dict[str, Job], packing: bool = False
) -> Iterator[Figures]:
    """All entries at all jobs; with `packing`, on CPUs, calls of ours that pack the weights, too."""
    device = device_here()
    names, clock = without_missing(args.entries or default), Clock(device, args.repeats)
    names += [] if REFERENCE in names else [REFERENCE]
    section: dict[str, Any] = {"machine": describe_machine(device), "corpus": "random tokens", "jobs": {}}
    model = base_model(args)
    section["limits"] = limits(model, clock)
    packing = packing and device.type == "cpu"
    with peers(model, names, device) as others:
        entries = {
            name: InCTranslate2(model.config, peer)
            if isinstance(peer, CTranslate2Processes)
            else InTransformers(peer, packing and name.startswith("ours"), **options_of(name))
            for name, peer in others.items()
        }
        for title, job in tqdm(jobs.items(), desc="generate()"):
            section["jobs"][title] = time_job(entries, job, args, clock)
            section["noise"] = clock.noise()
            yield section


def limits(model: Any, clock: Clock) -> dict[str, float]:
    """What this machine could do: bytes read and operations in a second; and what a step needs of them."""
    device = clock.device
    probed_bytes, width = PROBED[device.type]
    numbers = torch.ones(probed_bytes // 4, device=device)
    ways_to_read = (numbers.sum, numbers.amax, lambda: numbers @ numbers)
    square = torch.randn(width, width, device=device)
    half = square.bfloat16()
    # Not every build of torch has it, and on CPUs alone.
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
        # The keys and values of the source are computed once, and not at every step.
        "weights_of_a_step": read + config.vocab_size * config.d_model,
    }


def _fastest(work: Callable[[], Any], clock: Clock) -> float:
    fastest = clock.time(work)
    # Nothing that takes seconds, as some products do without instructions for them, is repeated.
    repeats = 4 if fastest < 1 else 0
    return min([fastest, *(clock.time(work) for _ in range(repeats))])


def measure_cells(args: BenchmarkArguments) -> Iterator[Figures]:
    """The cells of batch and beams."""
    cells = CELLS[:2] if args.smallest else CELLS
    usual = usual_entries(device_here(), of_cells=True)
    return measure(args, usual, {f"{batch} x {beams}": make_job(batch, beams) for batch, beams in cells}, packing=True)


@torch.no_grad()
def measure_parts(args: BenchmarkArguments) -> Iterator[Figures]:
    """Milliseconds of a call of ours, and of its parts, on the CPU."""
    cpu = torch.device("cpu")
    names = args.entries or [name for name in usual_entries(cpu) if name.startswith("ours")]
    if not all(name.startswith("ours") and not options_of(name) for name in names):
        raise ValueError(
            f"the mode parts looks into ours alone, without a static cache, but --entries is {' '.join(names)}; leave "
            "others out."
        )
    clock = Clock(cpu, args.repeats)
    section: dict[str, Any] = {"machine": describe_machine(cpu), "corpus": "random tokens", "jobs": {}}
    cells = CELLS_IN_PARTS[:2] if args.smallest else CELLS_IN_PARTS
    with peers(base_model(args), names, cpu) as models:
        entries = {name: InTransformers(model) for name, model in models.items()}
        for batch, beams in tqdm(cells, desc="parts of generate()"):
            job = make_job(batch, beams)
            for name, entry in entries.items():
                runs = {"call": lambda entry=entry, job=job: entry.run(job)[0]}
                runs |= parts(entry.model, job.sources, beams, job.new_tokens)
                seconds = in_turns(runs, args.rounds, clock)
                section["jobs"][f"{batch} x {beams}, {name}"] = {what: median(seconds[what]) * 1e3 for what in runs}
            section["noise"] = clock.noise()
            yield section


def measure_scaling(args: BenchmarkArguments) -> Iterator[Figures]:
    """How a step's cost grows with one quantity at a time."""
    jobs = {}
    for axis, values in AXES.items():
        for value in values[:2] if args.smallest else values:
            jobs[f"{axis} {value}"] = make_job(**{**USUAL, axis: value})
    usual = [name for name in usual_entries(device_here()) if not name.startswith("ctranslate2")]
    return measure(args, usual, jobs)


@torch.no_grad()
def measure_sentences(args: BenchmarkArguments) -> Iterator[Figures]:
    """Sentences a second from text to text, with the paper's beams, sorted by length, in batches by tokens."""
    if args.model is None or args.file is None:
        raise ValueError("the mode sentences needs --model, a trained model, and --file, its sentences.")
    tokenizer, model = AutoTokenizer.from_pretrained(args.model), AutoModelForSeq2SeqLM.from_pretrained(args.model)
    sentences = [line for line in Path(args.file).read_text(encoding="utf-8").splitlines() if line.strip()]
    device = device_here()
    names, clock = without_missing(args.entries or usual_entries(device)), Clock(device, args.repeats)
    section: dict[str, Any] = {
        "machine": describe_machine(device),
        "corpus": f"{Path(args.file).name}, {len(sentences):,} sentences",
        "parameters": model.num_parameters(),
    }
    with peers(model, names, device) as others:
        runs = {name: _sentences_by(name, peer, tokenizer, model, sentences) for name, peer in others.items()}
        texts = {name: run()[1] for name, run in runs.items()}
        seconds = in_turns({name: lambda run=run: run()[0] for name, run in runs.items()}, args.rounds, clock)
    section["noise"] = clock.noise()
    section["settings"] = {name: peer.described for name, peer in others.items() if name.startswith("ctranslate2")}
    first = next((name for name in runs if name.startswith("ours")), next(iter(runs)))
    section["entries"] = {
        name: {
            "sentences_a_second": len(sentences) / median(own_seconds),
            "times": _ratios(seconds[first], own_seconds),
            "same_as_ours": _count_same(texts[name], texts[first]),
            "seconds": own_seconds,
        }
        for name, own_seconds in seconds.items()
    }
    yield section


def _sentences_by(
    name: str, peer: Any, tokenizer: Any, model: PreTrainedModel, sentences: list[str]
) -> Callable[[], tuple[float, list[str]]]:
    """What returns seconds and translations of one entry, by the search of section 6.1."""
    if isinstance(peer, CTranslate2Processes):
        words = [[word(token, model.config) for token in ids] for ids in tokenizer(sentences).input_ids]
        options = {"beam_size": 4, "length_penalty": PAPER_ALPHA, "batch_type": "tokens"}
        peer.choose(words, *({**options, "max_batch_size": tokens} for tokens in TOKENS_A_BATCH))
        return partial(_by_ctranslate2, peer, tokenizer, model.config, sentences)
    is_marian = name.startswith("marian")
    peer.generation_config = _of_marian(model, tokenizer, sentences) if is_marian else model.generation_config
    options = {"num_beams": 4, "length_penalty": PAPER_ALPHA, **options_of(name)}
    return partial(_by_translate, peer, tokenizer, sentences, options)


def _of_marian(model: PreTrainedModel, tokenizer: Any, sentences: list[str]) -> GenerationConfig:
    """Settings that Marian knows: one limit for all sentences, and transformers' own length penalty."""
    tokens = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")
    longest = max(map(len, tokenizer(sentences).input_ids))
    return GenerationConfig(
        **{name: getattr(model.config, name) for name in tokens}, max_new_tokens=longest + PAPER_MAX_LENGTH_OFFSET
    )


def _by_translate(model: Any, tokenizer: Any, sentences: list[str], options: dict[str, Any]) -> tuple[float, list[str]]:
    start = time.perf_counter()
    texts = translate(model, tokenizer, sentences, **options)
    return time.perf_counter() - start, texts


def _by_ctranslate2(
    processes: CTranslate2Processes, tokenizer: Any, config: Any, sentences: list[str]
) -> tuple[float, list[str]]:
    """Its translation is timed in its process, our tokenizer around it here; it sorts by itself."""
    start = time.perf_counter()
    words = [[word(token, config) for token in ids] for ids in tokenizer(sentences).input_ids]
    before = time.perf_counter() - start
    seconds, targets = processes.translate(words)
    start = time.perf_counter()
    texts = tokenizer.batch_decode([[int(each) for each in target if each.isdigit()] for target in targets])
    return before + seconds + time.perf_counter() - start, texts


MEASURE = {
    "cells": measure_cells,
    "parts": measure_parts,
    "scaling": measure_scaling,
    "sentences": measure_sentences,
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure as the command line says; returns all figures of the output file."""
    args, modes = parse([BenchmarkArguments], __doc__, arguments, positional="modes")
    measure_modes = {mode: partial(of_mode, args) for mode, of_mode in MEASURE.items()}
    tables, plot = (partial(show, reference=REFERENCE) for show in (report_generation.tables, report_generation.plot))
    return run_modes(modes, measure_modes, args.output, args.plot, tables, plot)


if __name__ == "__main__":
    keep_freed_memory()
    main()
