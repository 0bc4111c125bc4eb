"""Score a model on test pairs: BLEU and chrF with their signatures, and the share of exact translations."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .arguments import DataArguments, DecodingArguments, ScoringArguments
from .common import (
    check_can_write,
    load,
    one_line,
    parse,
    plain_errors,
    score,
    show,
    write,
)


@dataclass
class EvaluationArguments:
    """What to score, and where to put the result."""

    model: str = field(metadata={"help": "A folder or a name on the Hub."})
    split: str = field(default="test", metadata={"help": "Which split to score."})
    output: str | None = field(default=None, metadata={"help": "Write the scores into this JSON file, too."})
    translations: str | None = field(default=None, metadata={"help": "Write the translations into this text file."})


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Score as the command line says; returns the scores."""
    args, data_args, scoring, decoding = parse(
        [EvaluationArguments, DataArguments, ScoringArguments, DecodingArguments], __doc__, arguments
    )
    with plain_errors():
        check_can_write(args.output, args.translations)
        scoring = scoring.for_target(data_args.languages()[1])
        pairs = data_args.load(args.split)
        tokenizer, model = load(args.model)
        data = data_args.describe(args.split)
        scores, translations = score(model, tokenizer, pairs[args.split], data, decoding, scoring)
    scores["model"] = args.model
    show(scores)
    with plain_errors():
        if args.output is not None:
            write(args.output, json.dumps(scores, indent=2) + "\n")
        if args.translations is not None:
            write(args.translations, "".join(f"{one_line(translation)}\n" for translation in translations))
    return scores


if __name__ == "__main__":
    main()
