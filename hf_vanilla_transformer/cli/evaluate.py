"""Translate test pairs and compute BLEU and chrF with their signatures, and the share of exact translations."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.pair_arguments import DataArguments
from ..data.text_lines import one_line
from ..evaluation.example_translations import format_examples, spread
from ..evaluation.metric_names import describe_exact_match
from ..evaluation.scoring_arguments import ScoringArguments
from ..model.generation_settings import limits_length
from ..support.argument_checks import check_optional
from ..support.atomic_files import write_text
from ..support.output_files import check_can_write
from ..translation.decoding_arguments import DecodingArguments
from ..translation.loading_arguments import LoadingArguments
from ..translation.translate import translate
from .load_model import load_given
from .parser import parse, plain_errors
from .shared_options import BatchArguments, EngineArguments


if TYPE_CHECKING:
    from datasets import Dataset


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
    with plain_errors():
        check_can_write(args.output, args.translations, inputs=[*data_args.paths(), loading.model_name_or_path])
        scoring = scoring.for_target(data_args.languages()[1])
        pairs = data_args.load(args.split)
        tokenizer, model = load_given(loading, engine)
        scores, translations = evaluate_pairs(
            model,
            tokenizer,
            pairs[args.split],
            data_args.describe(args.split),
            decoding,
            scoring,
            tokens_per_batch=batches.tokens_per_batch,
        )
    scores["model"] = loading.model_name_or_path
    if args.show is not None:
        rows = spread(len(translations), args.show)
        shown = pairs[args.split].select(rows)
        print(format_examples(shown["source"], [translations[row] for row in rows], shown["target"]), end="\n\n")
    print_scores(scores)
    with plain_errors():
        if args.output is not None:
            write_text(args.output, json.dumps(scores, indent=2) + "\n")
        if args.translations is not None:
            write_text(args.translations, "".join(f"{one_line(translation)}\n" for translation in translations))
    return scores


def evaluate_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: "Dataset",
    data: str,
    decoding: DecodingArguments,
    scoring: ScoringArguments,
    tokens_per_batch: int = BatchArguments.tokens_per_batch,
    show_progress: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of pairs and score the translations.

    Returns:
        The scores with `data` and `decoding` in words, and the translations.
    """
    from ..evaluation.metrics import score_translations

    given = decoding.generate_kwargs()
    hypotheses = translate(model, tokenizer, pairs["source"], tokens_per_batch, show_progress, **given)
    scores = score_translations(hypotheses, pairs["target"], **scoring.options(pairs))
    scores |= {"data": data, "decoding": describe_search(model, given)}
    return scores, hypotheses


def print_scores(scores: dict[str, Any]) -> None:
    """Print scores as lines of text."""
    print(f"{scores['sentences']} pairs of {scores['data']}")
    print(f"decoding: {scores['decoding']}")
    print(f"exact match: {describe_exact_match(scores)}")
    print(f"BLEU: {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF: {scores['chrf']:.2f}  {scores['chrf_signature']}")


def describe_search(model: PreTrainedModel, given: dict[str, Any] | None = None) -> str:
    """The decoding in words: the model's `generation_config`, overridden by the given settings."""
    settings = copy.deepcopy(model.generation_config)
    # Not by update(), which validates settings that the model may carry.
    for name, value in (given or {}).items():
        setattr(settings, name, value)
    beams, limit = settings.num_beams or 1, _describe_limit(settings)
    if beams == 1:
        return f"{'sampling' if settings.do_sample else 'greedy search'}{limit}"
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    penalty = f"length penalty {alpha} ({getattr(settings, 'length_penalty_type', 'hf')})"
    kind = "beam sampling" if settings.do_sample else "beam search"
    stop = ", early stopping" if settings.early_stopping is True else ""
    return f"{kind}, {beams} beams, {penalty}{stop}{limit}"


def _describe_limit(settings: GenerationConfig) -> str:
    offset = getattr(settings, "max_length_offset", None)
    limit = settings.max_new_tokens or settings.max_length
    if offset is not None and not limits_length(settings):
        limit = f"source + {offset}"
    return f", at most {limit} tokens" if limit else ""
