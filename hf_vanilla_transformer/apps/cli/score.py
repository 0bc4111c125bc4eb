"""Compute log-probabilities of given translations, one line per pair: total, length-normalized, and per token.

hf-vanilla-transformer score --model_name_or_path runs/mine --test_file test.en test.de
hf-vanilla-transformer score --model_name_or_path runs/mine --test_file test.en test.de --format jsonl
"""

import json
import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...data.pair_arguments import DataArguments
from ...support.build_arguments import option
from ...support.output_files import check_can_write, open_output
from ...translation.loading_arguments import EnsembleLoadingArguments
from ...translation.score import Score, score
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_given


@dataclass
class ScoreArguments:
    """Which pairs to score, and how to write the result."""

    split: str = option("test", "The split to score.")
    output: str | None = option(None, "Write the scores to this file, not to stdout.")
    format: Literal["text", "jsonl"] = option(
        "text",
        "text: the total log-probability of each target, one number per line. jsonl: an object per line "
        'with "source", "target", "total", "normalized" (the total divided by the model\'s length penalty, as beam '
        'search ranks hypotheses), "tokens" and "log_probs".',
    )


class Arguments(NamedTuple):
    score: ScoreArguments
    model: EnsembleLoadingArguments
    engine: EngineArguments
    data: DataArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> list[Score]:
    """Score as the command line says; returns the scores in the order of the pairs."""
    args = parse(Arguments, __doc__, arguments, "score")
    check_can_write(args.score.output, inputs=[*args.data.paths(), *args.model.model_name_or_path])
    pairs = args.data.load(args.score.split)[args.score.split]
    sources, targets = list(pairs["source"]), list(pairs["target"])
    tokenizer, model = load_given(args.model, args.engine)
    scores = score(
        model,
        tokenizer,
        sources,
        targets,
        args.batches.tokens_per_batch,
        show_progress=sys.stderr.isatty(),
        target_lang=args.data.target_language_for(tokenizer),
    )
    is_json = args.score.format == "jsonl"
    with open_output(args.score.output) as file:
        for source, target, result in zip(sources, targets, scores, strict=True):
            file.write(f"{describe(source, target, result) if is_json else f'{result.total:.6f}'}\n")
    return scores


def describe(source: str, target: str, result: Score) -> str:
    """A pair with its score as a JSON object."""
    return json.dumps({"source": source, "target": target, **result._asdict()}, ensure_ascii=False)
