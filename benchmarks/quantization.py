"""Score a model in float32, bfloat16, float16 and int8, and time it: BLEU, equal translations, sentences a second."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, TorchAoConfig

from hf_vanilla_transformer import Int8Config
from scripts.common import (
    DataArguments,
    DecodingArguments,
    ScoringArguments,
    check_can_write,
    parse,
    plain_errors,
    score,
    write,
)


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
WARM_UP_SENTENCES = 16


@dataclass
class BenchmarkArguments:
    """What to measure, and where to put the result."""

    model: str = field(metadata={"help": "A folder or a name on the Hub."})
    output: str | None = field(default=None, metadata={"help": "Write the figures into this JSON file, too."})


def megabytes(model: PreTrainedModel) -> float:
    """Size of the weights on disk, in units of 1,000,000 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 1e6


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
    figures: dict[str, dict[str, Any]] = {}
    float32_translations: list[str] = []
    for name, loading in LOADING.items():
        model = AutoModelForSeq2SeqLM.from_pretrained(args.model, **loading)
        few = pairs.select(range(min(WARM_UP_SENTENCES, len(pairs))))
        score(model, tokenizer, few, "", decoding, scoring)
        wall, processor = time.perf_counter(), time.process_time()
        scores, translations = score(model, tokenizer, pairs, data_args.describe("test"), decoding, scoring)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        float32_translations = float32_translations or translations
        equal = sum(a == b for a, b in zip(translations, float32_translations, strict=True))
        figures[name] = {
            **scores,
            "as_in_float32": equal,
            "megabytes": megabytes(model),
            "sentences_per_second": len(pairs) / wall,
            "sentences_per_processor_second": len(pairs) / processor,
        }
        print(
            f"{name}: BLEU {scores['bleu']:.2f}, exact match {scores['exact_match']:.1f} %, {equal} of {len(pairs)} "
            f"translations as in float32, {figures[name]['megabytes']:.1f} MB, {len(pairs) / wall:.1f} sentences/s "
            f"({len(pairs) / processor:.1f} a second of processor time)",
            flush=True,
        )
    if args.output is not None:
        write(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


if __name__ == "__main__":
    main()
