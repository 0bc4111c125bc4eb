"""Compute the log-probabilities of given translations, one line per pair. With --format jsonl, a line also contains the
length-normalized log-probability and the log-probability of each token.

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
from .shared_options import BatchArguments, EngineArguments, load_tokenizer_and_model


@dataclass
class ScoreArguments:
    """Command-line arguments that select the pairs to score, and the output file and its format."""

    split: str = option("test", "The split to score.")
    output: str | None = option(None, "Write the scores to this file, not to stdout.")
    format: Literal["text", "jsonl"] = option(
        "text",
        "text: the total log-probability of each target, one number per line. jsonl: an object per line "
        'with "source", "target", "total", "normalized" (the total divided by the model\'s length penalty, as beam '
        'search ranks hypotheses), "tokens" and "log_probs".',
    )


class Arguments(NamedTuple):
    """All argument groups of `score`, in the order in which `--help` lists them."""

    score: ScoreArguments
    model: EnsembleLoadingArguments
    engine: EngineArguments
    data: DataArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> list[Score]:
    """Score the pairs that the command line selects, and return the scores in the order of the pairs."""
    args = parse(Arguments, __doc__, arguments, "score")
    output = args.score.output
    split = args.score.split
    # The output and the pairs come first, because loading the model takes longer and one of them may be invalid.
    check_can_write(output, inputs=[*args.data.paths(), *args.model.model_name_or_path])
    pairs = args.data.load(split)[split]
    sources = list(pairs["source"])
    targets = list(pairs["target"])
    tokenizer, model = load_tokenizer_and_model(args.model, args.engine)
    scores = score(
        model,
        tokenizer,
        sources,
        targets,
        args.batches.tokens_per_batch,
        show_progress=sys.stderr.isatty(),
        target_lang=args.data.target_language_for(tokenizer),
    )
    with open_output(output) as file:
        for source, target, pair_score in zip(sources, targets, scores, strict=True):
            file.write(_format_line(args.score.format, source, target, pair_score))
    return scores


def _format_line(output_format: str, source: str, target: str, pair_score: Score) -> str:
    """Return a pair's line of the output, which is either in JSON or only has the total log-probability."""
    if output_format == "jsonl":
        return f"{format_as_json(source, target, pair_score)}\n"
    return f"{pair_score.total:.6f}\n"


def format_as_json(source: str, target: str, pair_score: Score) -> str:
    """Format a sentence pair and its score as a JSON object on one line."""
    return json.dumps({"source": source, "target": target, **pair_score._asdict()}, ensure_ascii=False)
