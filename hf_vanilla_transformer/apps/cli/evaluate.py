"""Translate test pairs and compute BLEU, chrF and TER with their signatures, and the share of exact translations.

hf-vanilla-transformer evaluate --model_name_or_path runs/mine --test_file test.en test.de --output scores.json
hf-vanilla-transformer evaluate --translations_file mine.de --test_file test.en test.de --against other.de
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...data.pair_arguments import DataArguments
from ...data.text_lines import one_line, read_lines
from ...evaluation.scoring_arguments import ScoringArguments
from ...support.argument_checks import check_optional
from ...support.atomic_files import write_text
from ...support.build_arguments import option
from ...support.output_files import check_can_write, open_output
from ...support.user_errors import InputError
from ...translation.decoding_arguments import DecodingArguments
from ...translation.loading_arguments import EnsembleLoadingArguments
from ...translation.translate import translate
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_given


@dataclass
class EvaluationArguments:
    """What to evaluate, and where to write the result."""

    split: str = option("test", "The split to translate.")
    translations_file: str | None = option(None, "Score the lines of this file in the place of a model's translations.")
    references_file: list[str] | None = option(None, "One or more files with another reference of each pair per line.")
    against: str | None = option(None, "Compare with another model, or a file of translations, by a paired bootstrap.")
    against_revision: str | None = option(
        None, "Branch, tag or commit of the model of --against on the Hub; --revision does not apply to it."
    )
    output: str | None = option(None, "Write the scores to this JSON file, too.")
    translations: str | None = option(None, "Write the translations to this text file.")
    show: int | None = option(None, "Print N examples, spread over the split, as source, prediction and reference.")

    def __post_init__(self) -> None:
        check_optional(self, "show")
        if self.against_revision is not None and self.against is None:
            raise InputError(
                f"against_revision is {self.against_revision}, but has no effect without --against; leave it out."
            )


@dataclass
class ModelArguments(EnsembleLoadingArguments):
    """The model to load, unless translations are given."""

    model_name_or_path: list[str] | None = option(  # type: ignore[assignment]
        None, "The folder of a saved model, or its name on the Hub; several are an ensemble."
    )


class Arguments(NamedTuple):
    evaluation: EvaluationArguments
    model: ModelArguments
    engine: EngineArguments
    data: DataArguments
    scoring: ScoringArguments
    decoding: DecodingArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Evaluate as the command line says; returns the scores."""
    args = parse(Arguments, __doc__, arguments, "evaluate")
    # Not at the top, because --help needs neither data sets nor metrics.
    from ...data.evenly_spaced_rows import pick_evenly_spaced_rows
    from ...evaluation.evaluate import describe_scores, evaluate, format_examples

    asked, data, names = args.evaluation, args.data, args.model.model_name_or_path or []
    if not names and asked.against is None and (unused := args.decoding.generate_kwargs()):
        raise InputError(f"{', '.join(unused)}: no effect without a model that translates; leave it out.")
    inputs = [*data.paths(), *(asked.references_file or []), asked.translations_file, asked.against, *names]
    check_can_write(asked.output, asked.translations, inputs=inputs)
    scoring = args.scoring.for_target(data.languages()[1])
    pairs = data.load(asked.split)[asked.split]
    files = [asked.translations_file] if asked.translations_file else [], asked.references_file or []
    given, more = ([read_lines(Path(path), len(pairs)) for path in paths] for paths in files)
    search = {"tokens_per_batch": args.batches.tokens_per_batch, **args.decoding.generate_kwargs()}
    tokenizer, model = load_given(args.model, args.engine) if names else (None, None)
    target_language = None if tokenizer is None else data.target_language_for(tokenizer)
    scores, translations = evaluate(
        model,
        pairs,
        tokenizer,
        translations=given[0] if given else None,
        references=[*zip(pairs["target"], *more, strict=True)] if more else None,
        against=_others(args, pairs, search),
        data=data.describe(asked.split),
        token_error_rate=scoring.token_error_rate,
        target_lang=target_language,
        **scoring.options(pairs),
        **search,
    )
    described = {"model": ", ".join(names) or None}
    described |= {"translations_file": asked.translations_file, "against": asked.against}
    scores |= {key: value for key, value in described.items() if value is not None}
    if asked.show is not None:
        rows = pick_evenly_spaced_rows(len(translations), asked.show)
        shown = pairs.select(rows)
        print(format_examples(shown["source"], [translations[row] for row in rows], shown["target"]), end="\n\n")
    print("\n".join(describe_scores(scores)))
    if asked.output is not None:
        write_text(asked.output, json.dumps(scores, indent=2) + "\n")
    if asked.translations is not None:
        with open_output(asked.translations) as file:
            file.writelines(f"{one_line(translation)}\n" for translation in translations)
    return scores


def _others(args: Arguments, pairs: Any, search: dict[str, Any]) -> list[str] | None:
    """The translations to compare with, of a file or a model, if any."""
    other = args.evaluation.against
    if other is None:
        return None
    if Path(other).exists() and not Path(other).is_dir():
        if args.evaluation.against_revision is not None:
            raise InputError(
                f"against_revision is {args.evaluation.against_revision}, but has no effect on the file {other}; leave "
                "it out."
            )
        return read_lines(Path(other), len(pairs))
    revision = args.evaluation.against_revision
    tokenizer, model = load_given(replace(args.model, model_name_or_path=[other], revision=revision), args.engine)
    target_language = args.data.target_language_for(tokenizer)
    return translate(model, tokenizer, pairs["source"], show_progress=True, target_lang=target_language, **search)
