"""Translate test pairs and compute BLEU and chrF with their signatures, and the share of exact translations."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.pair_arguments import DataArguments
from ..data.text_lines import one_line
from ..evaluation.scoring_arguments import ScoringArguments
from ..support.argument_checks import check_optional
from ..support.atomic_files import write_text
from ..support.output_files import check_can_write
from ..translation.decoding_arguments import DecodingArguments
from ..translation.loading_arguments import LoadingArguments
from .load_from_options import load_given
from .parser import parse, plain_errors
from .shared_options import BatchArguments, EngineArguments


@dataclass
class EvaluationArguments:
    """What to evaluate, and where to write the result."""

    split: str = field(default="test", metadata={"help": "The split to translate."})
    output: str | None = field(default=None, metadata={"help": "Write the scores to this JSON file, too."})
    translations: str | None = field(default=None, metadata={"help": "Write the translations to this text file."})
    show: int | None = field(
        default=None,
        metadata={"help": "Print N examples, evenly spread over the split, as source, prediction and reference."},
    )

    def __post_init__(self) -> None:
        check_optional(self, "show")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Evaluate as the command line says; returns the scores."""
    kinds = [
        EvaluationArguments,
        LoadingArguments,
        EngineArguments,
        DataArguments,
        ScoringArguments,
        DecodingArguments,
        BatchArguments,
    ]
    args, loading, engine, data_args, scoring, decoding, batches = parse(kinds, __doc__, arguments, verb="evaluate")
    # Not at the top, because --help needs neither data sets nor metrics.
    from ..evaluation.evaluate import describe_scores, evaluate, format_examples, spread

    with plain_errors():
        check_can_write(args.output, args.translations, inputs=[*data_args.paths(), loading.model_name_or_path])
        scoring = scoring.for_target(data_args.languages()[1])
        pairs = data_args.load(args.split)
        tokenizer, model = load_given(loading, engine)
        scores, translations = evaluate(
            model,
            pairs[args.split],
            tokenizer,
            data=data_args.describe(args.split),
            tokenize=scoring.bleu_tokenize,
            lowercase=scoring.lowercase,
            tokens_per_batch=batches.tokens_per_batch,
            **decoding.generate_kwargs(),
        )
    scores["model"] = loading.model_name_or_path
    if args.show is not None:
        rows = spread(len(translations), args.show)
        shown = pairs[args.split].select(rows)
        print(format_examples(shown["source"], [translations[row] for row in rows], shown["target"]), end="\n\n")
    print("\n".join(describe_scores(scores)))
    with plain_errors():
        if args.output is not None:
            write_text(args.output, json.dumps(scores, indent=2) + "\n")
        if args.translations is not None:
            write_text(args.translations, "".join(f"{one_line(translation)}\n" for translation in translations))
    return scores
