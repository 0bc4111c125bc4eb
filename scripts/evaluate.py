"""Score a model on test pairs: BLEU and chrF with their signatures, and the share of exact translations."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from datasets import Dataset

from hf_vanilla_transformer import score_translations, translate
from scripts.common import (
    DataArguments,
    DecodingArguments,
    ScoringArguments,
    describe_search,
    load,
    parse,
    plain_errors,
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
        pairs = data_args.load()
        if args.split not in pairs:
            raise ValueError(f'there is no split "{args.split}"; there is: {", ".join(pairs)}.')
        tokenizer, model = load(args.model)
    given = decoding.generate_kwargs()
    hypotheses = translate(
        model, tokenizer, pairs[args.split]["source"], decoding.batch_tokens, show_progress=True, **given
    )
    scores = score_translations(hypotheses, pairs[args.split]["target"], **scoring.options())
    scores |= {"model": args.model, "data": data_args.describe(), "split": args.split}
    scores["decoding"] = describe_search(model, given)
    if "number" in pairs[args.split].column_names:
        scores["exact_match_by_digits"] = exact_match_by_digits(pairs[args.split], hypotheses)
    show(scores)
    if args.output is not None:
        write(args.output, json.dumps(scores, indent=2) + "\n")
    if args.translations is not None:
        write(args.translations, "".join(f"{line}\n" for line in hypotheses))
    return scores


def exact_match_by_digits(pairs: Dataset, hypotheses: Sequence[str]) -> dict[str, dict[str, float]]:
    """For numbers of each length: how many there are, and the percent translated exactly."""
    matches: dict[int, list[bool]] = {}
    for number, target, hypothesis in zip(pairs["number"], pairs["target"], hypotheses, strict=True):
        matches.setdefault(len(str(number)), []).append(hypothesis == target)
    return {
        str(digits): {"numbers": len(hits), "exact_match": 100 * sum(hits) / len(hits)}
        for digits, hits in sorted(matches.items())
    }


def show(scores: dict[str, Any]) -> None:
    print(f"{scores['model']} on {scores['sentences']} pairs of {scores['data']} ({scores['split']})")
    print(f"decoding: {scores['decoding']}")
    for digits, share in scores.get("exact_match_by_digits", {}).items():
        print(f"  {digits} digits: {share['exact_match']:5.1f} % of {share['numbers']}")
    print(f"exact match: {scores['exact_match']:.1f}")
    print(f"BLEU: {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF: {scores['chrf']:.2f}  {scores['chrf_signature']}")


if __name__ == "__main__":
    main()
