"""Compute log-probabilities of given translations, one line per pair: total, length-normalized, and per token."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..data.pair_arguments import DataArguments
from ..support.output_files import check_can_write, open_output
from ..translation.loading_arguments import LoadingArguments
from ..translation.score import Score, score
from .load_from_options import load_given
from .parser import parse, plain_errors
from .shared_options import BatchArguments, EngineArguments


FORMATS = ("text", "jsonl")


@dataclass
class ScoreArguments:
    """Which pairs to score, and how to write the result."""

    split: str = field(default="test", metadata={"help": "The split to score."})
    output: str | None = field(default=None, metadata={"help": "Write the scores to this file, not to stdout."})
    format: str = field(
        default="text",
        metadata={
            "help": '"text": the total log-probability of each target, one number per line. "jsonl": an object per '
            'line with "source", "target", "total", "normalized" (the total divided by the model\'s length penalty, '
            'as beam search ranks hypotheses), "tokens" and "log_probs".'
        },
    )

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f'format is "{self.format}"; choose one of {", ".join(FORMATS)}.')


def main(arguments: Sequence[str] | None = None) -> list[Score]:
    """Score as the command line says; returns the scores in the order of the pairs."""
    kinds = [ScoreArguments, LoadingArguments, EngineArguments, DataArguments, BatchArguments]
    args, loading, engine, data_args, batches = parse(kinds, __doc__, arguments, verb="score")
    with plain_errors():
        check_can_write(args.output, inputs=[*data_args.paths(), loading.model_name_or_path])
        pairs = data_args.load(args.split)[args.split]
        sources, targets = list(pairs["source"]), list(pairs["target"])
        tokenizer, model = load_given(loading, engine)
        scores = score(model, tokenizer, sources, targets, batches.tokens_per_batch, show_progress=sys.stderr.isatty())
        with open_output(args.output) as file:
            for source, target, result in zip(sources, targets, scores, strict=True):
                file.write(f"{describe(source, target, result) if args.format == 'jsonl' else f'{result.total:.6f}'}\n")
    return scores


def describe(source: str, target: str, result: Score) -> str:
    """A pair with its score as a JSON object."""
    return json.dumps({"source": source, "target": target, **result._asdict()}, ensure_ascii=False)
