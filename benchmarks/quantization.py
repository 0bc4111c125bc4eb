"""Score and time a model in float32, bfloat16, float16 and int8: BLEU, equal translations, sentences a second.

The ways of loading take turns in translating all sentences, and that alone is timed.
"""

import json
import operator
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, TorchAoConfig

from benchmarks.support import report
from benchmarks.support.measuring import Clock, in_turns
from hf_vanilla_transformer import Int8Config, translate
from hf_vanilla_transformer.cli.arguments import DataArguments, DecodingArguments, ScoringArguments
from hf_vanilla_transformer.cli.evaluate import evaluate_pairs
from hf_vanilla_transformer.cli.parsing import parse, plain_errors
from hf_vanilla_transformer.cli.writing import check_can_write
from hf_vanilla_transformer.files import write_text


LOADING: dict[str, dict[str, Any]] = {
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "int8": {"quantization_config": Int8Config()},
    "torchao's int8 weights": {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())},
    "torchao's int8 weights and activations": {
        "quantization_config": TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
    },
}


@dataclass
class BenchmarkArguments:
    """What to measure, and where to put the result."""

    model: str = field(metadata={"help": "A folder or a name on the Hub."})
    rounds: int = field(default=3, metadata={"help": "Rounds of measurements."})
    repeats: int = field(default=2, metadata={"help": "How often a measurement of a slow machine is made again."})
    output: str | None = field(default=None, metadata={"help": "Write the figures into this JSON file, too."})

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("repeats", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


def megabytes(model: PreTrainedModel) -> float:
    """Size of the weights on disk, in units of 1,000,000 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 1e6


def time_translation(model: Any, tokenizer: Any, sentences: Sequence[str], **options: Any) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    translate(model, tokenizer, sentences, **options)
    return time.perf_counter() - wall, time.process_time() - processor


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    """Measure as the command line says; returns the figures of each way of loading."""
    args, data_args, scoring, decoding = parse(
        [BenchmarkArguments, DataArguments, ScoringArguments, DecodingArguments], __doc__, arguments
    )
    with plain_errors():
        check_can_write(args.output)
        pairs = data_args.load()["test"]
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    models = {name: AutoModelForSeq2SeqLM.from_pretrained(args.model, **loading) for name, loading in LOADING.items()}
    figures, translations = {}, {}
    for name, model in models.items():
        scored = evaluate_pairs(model, tokenizer, pairs, data_args.describe("test"), decoding, scoring)
        figures[name], translations[name] = scored
    sentences, options = list(pairs["source"]), {"batch_tokens": decoding.batch_tokens, **decoding.generate_kwargs()}
    runs = {name: partial(time_translation, model, tokenizer, sentences, **options) for name, model in models.items()}
    clock = Clock(torch.device("cpu"), args.repeats)
    for name, seconds in in_turns(runs, args.rounds, clock).items():
        wall, processor = map(list, zip(*seconds, strict=True))
        equal = sum(map(operator.eq, translations[name], translations["float32"]))
        figures[name] |= {
            "as_in_float32": equal,
            "megabytes": megabytes(models[name]),
            "sentences_per_second": len(pairs) / median(wall),
            "sentences_per_processor_second": len(pairs) / median(processor),
            "seconds": wall,
            "processor_seconds": processor,
        }
        print(
            f"{name}: BLEU {figures[name]['bleu']:.2f}, exact match {figures[name]['exact_match']:.1f} %, {equal} of "
            f"{len(pairs)} translations as in float32, {figures[name]['megabytes']:.1f} MB, "
            f"{figures[name]['sentences_per_second']:.1f} sentences/s "
            f"({figures[name]['sentences_per_processor_second']:.1f} a second of processor time)"
        )
    print(report.describe_noise({"noise": clock.noise()}))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
