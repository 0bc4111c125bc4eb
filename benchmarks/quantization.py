"""Compare a model in float32, bfloat16, float16 and int8: BLEU, translations equal to float32's, throughput, size.

Only translation is timed; the precisions take turns.
"""

import json
import operator
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, TorchAoConfig

from benchmarks.support import report_parts
from benchmarks.support.timing import Clock, in_turns
from hf_vanilla_transformer import Int8Config, translate
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.cli.shared_options import BatchArguments
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.evaluation.evaluate import evaluate
from hf_vanilla_transformer.evaluation.metrics import describe_exact_match
from hf_vanilla_transformer.evaluation.scoring_arguments import ScoringArguments
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.translation.decoding_arguments import DecodingArguments


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
    """What to measure, and where to write the result."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    rounds: int = field(default=3, metadata={"help": "Rounds of measurements."})
    repeats: int = field(
        default=2, metadata={"help": "Maximum repetitions of a measurement while the machine is slow."}
    )
    output: str | None = field(default=None, metadata={"help": "Also write the figures into this JSON file."})

    def __post_init__(self) -> None:
        check_number("rounds", self.rounds, 1)
        check_number("repeats", self.repeats, 0)


def megabytes(model: PreTrainedModel) -> float:
    """Size of the weights on disk, in units of 1,000,000 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 1e6


def time_translation(model: Any, tokenizer: Any, sentences: Sequence[str], **options: Any) -> tuple[float, float]:
    """Wall seconds and CPU seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    translate(model, tokenizer, sentences, **options)
    return time.perf_counter() - wall, time.process_time() - processor


class Arguments(NamedTuple):
    """All arguments."""

    benchmark: BenchmarkArguments
    data: DataArguments
    scoring: ScoringArguments
    decoding: DecodingArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """Run the command line; returns the figures of each precision."""
    args, data_args, scoring, decoding, batches = parse(Arguments, __doc__, arguments)
    check_can_write(args.output)
    pairs = data_args.load()["test"]
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    models = {
        name: AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path, **loading)
        for name, loading in LOADING.items()
    }
    figures, translations = {}, {}
    for name, model in models.items():
        figures[name], translations[name] = evaluate(
            model,
            pairs,
            tokenizer,
            data=data_args.describe("test"),
            tokenize=scoring.bleu_tokenize,
            lowercase=scoring.lowercase,
            tokens_per_batch=batches.tokens_per_batch,
            **decoding.generate_kwargs(),
        )
    sentences, options = (
        list(pairs["source"]),
        {"tokens_per_batch": batches.tokens_per_batch, **decoding.generate_kwargs()},
    )
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
            f"{name}: BLEU {figures[name]['bleu']:.2f}, exact match {describe_exact_match(figures[name])}, {equal} of "
            f"{len(pairs)} translations equal to float32's, {figures[name]['megabytes']:.1f} MB, "
            f"{figures[name]['sentences_per_second']:.1f} sentences/s "
            f"({figures[name]['sentences_per_processor_second']:.1f} per CPU second)"
        )
    print(report_parts.describe_noise({"noise": clock.noise()}))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
