"""Compare models, such as a teacher and its students: BLEU and throughput of each runtime, precision and beam size.

Only translation is timed, from text to text; all of them take turns.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.support import report_parts
from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.timing import Clock, in_turns
from hf_vanilla_transformer import Int8Config, load_engine, translate
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.evaluation.evaluate import evaluate
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.support.user_errors import InputError


RUNTIMES = ("torch", "torch int8", "ctranslate2", "ctranslate2 int8")


@dataclass
class BenchmarkArguments:
    """What to measure, and where to write the result."""

    models: list[str] = field(metadata={"help": "Folders, the teacher first."})
    runtimes: list[str] = field(default_factory=lambda: list(RUNTIMES), metadata={"help": "Runtimes and precisions."})
    beams: list[int] = field(default_factory=lambda: [1, 5], metadata={"help": "Beam sizes."})
    tokens_per_batch: int = field(default=4096, metadata={"help": "Source tokens of a batch; 1: single sentences."})
    rounds: int = field(default=3, metadata={"help": "Rounds of measurements."})
    output: str = field(default="runs/students.json", metadata={"help": "File of the figures, next to a picture."})

    def __post_init__(self) -> None:
        check_number("rounds", self.rounds, 1)
        unknown = [name for name in self.runtimes if name not in RUNTIMES]
        if unknown:
            raise InputError(f'there is no runtime "{unknown[0]}"; choose among: {", ".join(RUNTIMES)}.')


class Arguments(NamedTuple):
    """All arguments."""

    benchmark: BenchmarkArguments
    data: DataArguments


def load(folder: str, runtime: str) -> Any:
    """The model of a folder in a runtime."""
    name, _, precision = runtime.partition(" ")
    if name == "ctranslate2":
        return load_engine(folder, name, precision or "float32")
    quantization = {"quantization_config": Int8Config()} if precision else {}
    return AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, **quantization)


def measure(args: BenchmarkArguments, data: DataArguments) -> dict[str, Any]:
    """BLEU, seconds of each round and sentences/s, by model, runtime and beam size."""
    pairs = data.load()["test"]
    clock, figures, runs = Clock(torch.device("cpu"), repeats=2), {}, {}
    for folder in args.models:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for runtime in args.runtimes:
            model = load(folder, runtime)
            for beams in args.beams:
                options = {"num_beams": beams, "tokens_per_batch": args.tokens_per_batch}
                scores, _ = evaluate(model, pairs, tokenizer, data=data.describe("test"), **options)
                name = f"{folder}, {runtime}, {beams}"
                figures[name] = {"model": folder, "runtime": runtime, "beams": beams, **scores}
                work = partial(translate, model, tokenizer, list(pairs["source"]), **options)
                runs[name] = partial(clock.time, work)
    for name, seconds in in_turns(runs, args.rounds, clock).items():
        figures[name] |= {"seconds": seconds, "sentences_per_second": len(pairs) / median(seconds)}
    machine = describe_conditions(torch.device("cpu"))
    return {"machine": machine, "corpus": data.describe("test"), "noise": clock.noise(), "entries": figures}


def tables(figures: dict[str, Any]) -> Iterator[str]:
    """The figures in Markdown; ratios are the medians over the rounds, to the first model with the same settings."""
    yield report_parts.describe(figures)
    yield report_parts.describe_noise(figures)
    entries = list(figures["entries"].values())
    rows = []
    for each in entries:
        settings = each["runtime"], each["beams"]
        first = next(other for other in entries if (other["runtime"], other["beams"]) == settings)
        ratios = [of_first / own for of_first, own in zip(first["seconds"], each["seconds"], strict=True)]
        cells = [each["model"], *map(str, settings), f"{each['bleu']:.2f}", f"{each['sentences_per_second']:.0f}"]
        rows.append([*cells, report_parts.spread(ratios)])
    yield report_parts.table(["model", "runtime", "beams", "BLEU", "sentences/s", "to the first model"], rows)


def draw(entries: dict[str, dict[str, Any]]) -> Any:
    """BLEU by sentences/s: a line for each model and runtime, over the beam sizes, which stand next to its points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    models, runtimes = (list(dict.fromkeys(each[name] for each in entries.values())) for name in ("model", "runtime"))
    for model, runtime in product(models, runtimes):
        line = [each for each in entries.values() if (each["model"], each["runtime"]) == (model, runtime)]
        points = [(each["sentences_per_second"], each["bleu"]) for each in line]
        style = {"marker": "osD^"[runtimes.index(runtime)], "color": f"C{models.index(model)}", "linewidth": 0.7}
        axes.plot(*zip(*points, strict=True), label=f"{model}, {runtime}", **style)
        for each, point in zip(line, points, strict=True):
            axes.annotate(str(each["beams"]), point, xytext=(5, 3), textcoords="offset points", fontsize="small")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [digit * 10**power for power in range(6) for digit in (1, 2, 5) if low <= digit * 10**power <= high]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("throughput, sentences/s, text to text; the numbers are beams")
    axes.set_ylabel("BLEU")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns the figures."""
    args, data = parse(Arguments, __doc__, arguments)
    check_can_write(args.output)
    figures = measure(args, data)
    path = Path(args.output)
    write_text(path, json.dumps(figures, indent=2) + "\n")
    report_parts.draw(path.stem, {"entries": draw}, figures, path.parent)
    print(*tables(figures), sep="\n\n")
    return figures


if __name__ == "__main__":
    main()
