"""Translate test pairs, and compute BLEU, chrF and TER with sacreBLEU signatures, and the share of exact translations.

hf-vanilla-transformer evaluate --model_name_or_path runs/mine --test_file test.en test.de --output scores.json
hf-vanilla-transformer evaluate --translations_file mine.de --test_file test.en test.de --against other.de
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from .shared_options import BatchArguments, EngineArguments, load_tokenizer_and_model


if TYPE_CHECKING:
    from datasets import Dataset

    from ...evaluation.evaluate import Evaluation


@dataclass
class EvaluationArguments:
    """Command-line arguments that select the translations to evaluate and the output files."""

    split: str = option("test", "The split to translate.")
    translations_file: str | None = option(None, "Score the lines of this file instead of a model's translations.")
    references_file: list[str] | None = option(
        None, "One or more files, each with one more reference per pair, one per line."
    )
    against: str | None = option(
        None, "Compare with a different model, or with a file of translations, by a paired bootstrap."
    )
    against_revision: str | None = option(
        None, "Branch, tag or commit of the model in --against, if it is on the Hub; --revision does not apply to it."
    )
    output: str | None = option(None, "Also write the scores to this JSON file.")
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
    """Command-line arguments for the model. The model is optional, because existing translations can be evaluated."""

    model_name_or_path: list[str] | None = option(  # type: ignore[assignment]
        None, "The folder of a saved model, or its name on the Hub; several are an ensemble."
    )


class Arguments(NamedTuple):
    """All argument groups of `evaluate`, in the order in which `--help` lists them."""

    evaluation: EvaluationArguments
    model: ModelArguments
    engine: EngineArguments
    data: DataArguments
    scoring: ScoringArguments
    decoding: DecodingArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Evaluate the translations that the command line selects, print the scores, and return them."""
    args = parse(Arguments, __doc__, arguments, "evaluate")
    # This is not imported at the top, because --help needs neither data sets nor metrics.
    from ...evaluation.evaluate import describe_scores

    # These mistakes are reported before the data and the model are loaded, which takes longer.
    _check_decoding_options(args)
    _check_outputs(args)
    scoring = _choose_scoring(args)
    # `load` returns a dict of data sets by split.
    pairs = args.data.load(args.evaluation.split)[args.evaluation.split]

    evaluation = _evaluate(args, scoring, pairs)
    # The scores are stored together with the names of what was evaluated.
    scores = {**evaluation.scores, **_name_what_was_evaluated(args)}

    if args.evaluation.show is not None:
        _print_examples(pairs, evaluation.translations, args.evaluation.show)
    print("\n".join(describe_scores(scores)))
    _write_outputs(args.evaluation, scores, evaluation.translations)
    return scores


def _choose_scoring(args: Arguments) -> ScoringArguments:
    """Return the scoring options for the target language. Chinese, for example, needs another tokenization for BLEU."""
    _source_language, target_language = args.data.languages()
    return args.scoring.for_target(target_language)


def _name_what_was_evaluated(args: Arguments) -> dict[str, str]:
    """Return the names of the model, of the file of translations, and of what they are compared with, if any."""
    names: dict[str, str] = {}
    if args.model.model_name_or_path:
        names["model"] = ", ".join(args.model.model_name_or_path)
    if args.evaluation.translations_file is not None:
        names["translations_file"] = args.evaluation.translations_file
    if args.evaluation.against is not None:
        names["against"] = args.evaluation.against
    return names


def _check_decoding_options(args: Arguments) -> None:
    """Raise InputError if there are decoding options, such as `num_beams`, but no model that translates."""
    options = args.decoding.generate_kwargs()
    may_have_model = args.model.model_name_or_path or args.evaluation.against is not None
    if options and not may_have_model:
        raise InputError(f"{', '.join(options)}: no effect without a model that translates; leave it out.")


def _check_outputs(args: Arguments) -> None:
    """Raise an error if an output file cannot be written, or if it would overwrite an input file or a model."""
    evaluation = args.evaluation
    reference_files = evaluation.references_file or []
    model_names = args.model.model_name_or_path or []
    inputs = [
        *args.data.paths(),
        *reference_files,
        evaluation.translations_file,
        evaluation.against,
        *model_names,
    ]
    # A path that is None is skipped.
    check_can_write(evaluation.output, evaluation.translations, inputs=inputs)


def _evaluate(args: Arguments, scoring: ScoringArguments, pairs: "Dataset") -> "Evaluation":
    """Return the scores by name, and the translations, which come from a model or from `--translations_file`."""
    from ...evaluation.evaluate import evaluate

    # These files are read before a model is loaded, because loading takes longer and a file may be invalid.
    translations_of_file = _read_translations(args.evaluation.translations_file, pairs)
    references = _read_references(args.evaluation.references_file or [], pairs)
    # These stay None if the translations come from a file. `evaluate` then only computes the scores.
    tokenizer = None
    model = None
    target_language = None
    if args.model.model_name_or_path:
        tokenizer, model = load_tokenizer_and_model(args.model, args.engine)
        target_language = args.data.target_language_for(tokenizer)
    # The arguments of `translate()` for the model, and for a second model in `--against`.
    search = args.decoding.generate_kwargs()
    search["tokens_per_batch"] = args.batches.tokens_per_batch
    return evaluate(
        model,
        pairs,
        tokenizer,
        translations=translations_of_file,
        references=references,
        against=_load_other_translations(args, pairs, search),
        data=args.data.describe(args.evaluation.split),
        token_error_rate=scoring.token_error_rate,
        target_lang=target_language,
        **scoring.options(pairs),
        **search,
    )


def _read_translations(path: str | None, pairs: "Dataset") -> list[str] | None:
    """Return the lines of `--translations_file`, one for each pair; None if there is no such file."""
    if not path:
        return None
    return read_lines(Path(path), len(pairs))


def _write_outputs(args: EvaluationArguments, scores: Mapping[str, Any], translations: Sequence[str]) -> None:
    """Write the scores and the translations to the output files, if the command line names any."""
    if args.output is not None:
        write_text(args.output, json.dumps(scores, indent=2) + "\n")
    if args.translations is not None:
        with open_output(args.translations) as file:
            file.writelines(f"{one_line(translation)}\n" for translation in translations)


def _read_references(paths: Sequence[str], pairs: "Dataset") -> list[tuple[str, ...]] | None:
    """Return the references of each sentence pair: its target, and its own line in each reference file.

    Returns None if there are no reference files.
    """
    if not paths:
        return None
    references_by_file = [read_lines(Path(path), len(pairs)) for path in paths]
    return list(zip(pairs["target"], *references_by_file, strict=True))


def _print_examples(pairs: "Dataset", translations: Sequence[str], count: int) -> None:
    """Print up to `count` sentence pairs, spread evenly over the data, with their translations, and an empty line."""
    from ...data.evenly_spaced_rows import pick_evenly_spaced_rows
    from ...evaluation.evaluate import format_examples

    rows = pick_evenly_spaced_rows(len(translations), count)
    examples = pairs.select(rows)
    shown_translations = [translations[row] for row in rows]
    print(format_examples(examples["source"], shown_translations, examples["target"]), end="\n\n")


def _load_other_translations(args: Arguments, pairs: "Dataset", search: Mapping[str, Any]) -> list[str] | None:
    """Return the translations that `--against` names: the lines of a file, or the translations of a second model.

    Returns None without `--against`. `search` contains the `translate()` arguments for the second model.
    """
    name = args.evaluation.against
    if name is None:
        return None
    path = Path(name)
    is_file = path.exists() and not path.is_dir()
    if not is_file:
        return _translate_by_other_model(name, args, pairs, search)
    revision = args.evaluation.against_revision
    if revision is not None:
        raise InputError(f"against_revision is {revision}, but has no effect on the file {name}; leave it out.")
    return read_lines(path, len(pairs))


def _translate_by_other_model(name: str, args: Arguments, pairs: "Dataset", search: Mapping[str, Any]) -> list[str]:
    """Return the translations of the model in `--against`, to which the first model's other options apply, too."""
    revision = args.evaluation.against_revision
    other_model_args = replace(args.model, model_name_or_path=[name], revision=revision)
    tokenizer, model = load_tokenizer_and_model(other_model_args, args.engine)
    target_language = args.data.target_language_for(tokenizer)
    return translate(model, tokenizer, pairs["source"], show_progress=True, target_lang=target_language, **search)
