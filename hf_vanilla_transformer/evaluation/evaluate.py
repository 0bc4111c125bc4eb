"""Evaluate a model or existing translations on test pairs, and format the scores as text."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.pair_arguments import DataArguments, Files, file_names
from ..data.text_lines import one_line
from ..model.generation_settings import limits_length
from ..support.user_errors import InputError
from ..translation.engine import Engine
from ..translation.model_loading import load
from ..translation.translate import translate
from .bleu_tokenization import References
from .metrics import METRICS, Comparison, Scores, describe_exact_match, score_translations, select_metrics
from .scoring_arguments import ScoringArguments


class Evaluation(NamedTuple):
    """The result of [`evaluate`]: translations of the test pairs, and their scores.

    Args:
        scores (`dict`): the result of `score_translations`, and `data`, a description of the pairs. If a model made the
            translations, `decoding` describes how it searched for them.
        translations (`list[str]`): translations of the sources, in the same order.
    """

    scores: Scores
    translations: list[str]


class _TestPairs(NamedTuple):
    """The pairs of an evaluation, with what is known about them.

    Args:
        pairs: the sentence pairs.
        description: a description of the pairs in words, such as their file names.
        scoring: the scoring arguments. If the pairs come from files, they suit the language of the targets.
        data_args: arguments that name the files, from which languages follow. For a data set, they name no files.
    """

    pairs: Dataset
    description: str
    scoring: ScoringArguments
    data_args: DataArguments


def evaluate(
    model: str | Path | PreTrainedModel | Engine | None,
    pairs: Dataset | Files,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    translations: Sequence[str] | None = None,
    references: Sequence[References] | None = None,
    against: Sequence[str] | None = None,
    data: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    token_error_rate: bool = False,
    target_lang: str | None = None,
    **translate_kwargs: Any,
) -> Evaluation:
    """Translate the sources of sentence pairs, and compute the scores of the translations.

    ```python
    evaluate("runs/mine", ["test.en", "test.de"], num_beams=4).scores["bleu"]
    ```

    Args:
        model (`str`, `Path`, `PreTrainedModel` or `Engine`, *optional*): a folder or a name on the Hub; a loaded model;
            or the result of `load_engine`. It must be None if `translations` are given.
        pairs (`Dataset`, or files): a data set or tables with the columns `source` and `target`, or aligned text files
            whose names end in their languages.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the tokenizer of a loaded model.
        translations (`Sequence[str]`, *optional*): existing translations of the sources.
        references (`Sequence`, *optional*): one reference, or a list of references, for each pair. The default is the
            pairs' column `references` or, without this column, their targets.
        against (`Sequence[str]`, *optional*): translations by a different system, with which [`score_translations`]
            compares the scores.
        data (`str`, *optional*): description of the pairs. The default consists of the file names.
        tokenize (`str`, *optional*): tokenization for BLEU. The default is `"char"` for the number corpus and for Thai,
            Lao, Khmer, Burmese and Tibetan. For other target languages without spaces between words, it is sacreBLEU's
            tokenization of that language. Otherwise it is `"13a"`.
        lowercase (`bool`): ignore case.
        token_error_rate (`bool`): also compute the error rate of tokens that are separated by spaces. This needs jiwer.
        target_lang (`str`, *optional*): the target language, as in `translate`. The default is the language in which
            the file names end, if the model has exactly one code for it.
        **translate_kwargs: arguments of `generate()`, such as `num_beams`; `tokens_per_batch=4096`, the maximum number
            of source tokens in a batch, padding included; and `show_progress=True`.

    Raises:
        OSError, ValueError: if the model or the files cannot be read, or if `translate` or `score_translations` raises
            one of these errors.
    """
    _check_model_or_translations(model, translations)
    scoring = ScoringArguments(tokenize, lowercase, token_error_rate)
    test = _prepare_test_pairs(pairs, data, scoring)
    if translations is not None:
        scores = _score_pairs(translations, test, references, against)
        return Evaluation(scores, list(translations))

    loaded_tokenizer, loaded_model = _load_model(model, tokenizer)
    target_language = _choose_target_language(target_lang, test, loaded_tokenizer)
    own_translations, search_description = _translate_pairs(
        loaded_model, loaded_tokenizer, test.pairs, target_lang=target_language, **translate_kwargs
    )
    scores = _score_pairs(own_translations, test, references, against)
    scores["decoding"] = search_description
    return Evaluation(scores, own_translations)


def _check_model_or_translations(
    model: str | Path | PreTrainedModel | Engine | None, translations: Sequence[str] | None
) -> None:
    """Raise InputError unless exactly one of the two is given."""
    has_model = model is not None
    has_translations = translations is not None
    if has_model == has_translations:
        raise InputError("give either a model (--model_name_or_path) or translations (--translations_file).")


def _choose_target_language(
    target_lang: str | None, test: _TestPairs, tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """Return the given target language or, without one, the language in which the names of the test files end."""
    if target_lang:
        return target_lang
    return test.data_args.target_language_for(tokenizer)


def _score_pairs(
    translations: Sequence[str],
    test: _TestPairs,
    references: Sequence[References] | None,
    against: Sequence[str] | None,
) -> Scores:
    """Return the scores of translations of the test pairs, with a description of the pairs."""
    if references is None:
        references = _get_references(test.pairs)
    scores = score_translations(
        translations,
        references,
        metrics=_select_metrics_for(test.scoring),
        against=against,
        **test.scoring.options(test.pairs),
    )
    scores["data"] = test.description
    return scores


def _select_metrics_for(scoring: ScoringArguments) -> list[str]:
    """Return the names of the default metrics and, if it is requested, the token error rate."""
    if scoring.token_error_rate:
        return select_metrics("token_error_rate")
    return select_metrics()


def _prepare_test_pairs(pairs: Dataset | Files, description: str | None, scoring: ScoringArguments) -> _TestPairs:
    """Load the test pairs if they are files, and choose the scoring that suits the language of their targets.

    Args:
        pairs: a data set, or files.
        description: a description of the pairs in words. The default consists of the file names.
        scoring: the scoring arguments that the user has given.
    """
    if isinstance(pairs, Dataset):
        # No arguments about files, so nothing is known about the languages.
        return _TestPairs(pairs, description or "the given data set", scoring, DataArguments())
    data_args = DataArguments(test_file=file_names(pairs))
    test_description = description or data_args.describe("test")
    # Language codes from the file names, such as "de" from "test.de", or None.
    _source_language, target_language = data_args.languages()
    # The language of the targets may need its own tokenization for BLEU.
    scoring_for_language = scoring.for_target(target_language)
    test_pairs = data_args.load("test")["test"]
    return _TestPairs(test_pairs, test_description, scoring_for_language, data_args)


def _load_model(
    model: str | Path | PreTrainedModel | Engine | None, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel | Engine]:
    """Return the tokenizer and the model. Load both if `model` is a folder or a name on the Hub.

    Raises ValueError if a loaded model was given without its tokenizer.
    """
    if isinstance(model, (str, Path)):
        return load(str(model))
    # `evaluate` has made sure that there is a model, so only the tokenizer can be missing.
    if model is None or tokenizer is None:
        raise InputError("a model was given without its tokenizer; give both, or the folder that holds them.")
    return tokenizer, model


def _translate_pairs(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    *,
    target_lang: str | None,
    tokens_per_batch: int = 4096,
    show_progress: bool = True,
    **search_options: Any,
) -> tuple[list[str], str]:
    """Translate the sources of sentence pairs. Return the translations, and a description of the search in words.

    Args:
        target_lang, tokens_per_batch, show_progress: see [`evaluate`].
        **search_options: arguments of `generate()`.
    """
    translations = translate(
        model,
        tokenizer,
        pairs["source"],
        tokens_per_batch,
        show_progress,
        target_lang=target_lang,
        **search_options,
    )
    return translations, describe_search(model, search_options)


def _get_references(pairs: Dataset) -> Sequence[References]:
    """Return the references of sentence pairs: the column `references` or, if it does not exist, the targets."""
    if "references" in pairs.column_names:
        return pairs["references"]
    return pairs["target"]


def describe_scores(scores: Scores) -> list[str]:
    """Format scores as lines of text that can be logged or printed. Metrics that were not computed are left out.

    Args:
        scores: the scores of an [`Evaluation`]. They may contain `against`, the name of the baseline.
    """
    lines = [f"{scores['sentences']} pairs of {scores['data']}"]
    if "decoding" in scores:
        lines.append(f"decoding: {scores['decoding']}")
    lines.append(f"exact match: {describe_exact_match(scores)}")
    for name in METRICS:
        if name in scores:
            lines += _describe_metric(name, scores)
    return lines


def _describe_metric(name: str, scores: Scores) -> list[str]:
    """Format the score of one metric, and its comparison with the baseline if there is one, as lines of text."""
    signature = scores[f"{name}_signature"]
    lines = [f"{METRICS[name].label}: {scores[name]:.2f}  {signature}"]
    comparison = scores.get(f"{name}_against")
    if comparison is not None:
        baseline_name = scores.get("against", "the other")
        lines.append(_describe_comparison(comparison, baseline_name))
    return lines


def _describe_comparison(comparison: Comparison, baseline_name: str) -> str:
    """Format the comparison of a system with a baseline as one line of text.

    `mean` is the mean score of the bootstrap resamples, and `ci` is half of their 95 % confidence interval. The values
    whose names begin with "other" belong to the baseline.
    """
    system = f"{comparison['mean']:.2f} ± {comparison['ci']:.2f}"
    baseline = f"{comparison['other_score']:.2f}, {comparison['other_mean']:.2f} ± {comparison['other_ci']:.2f}"
    if comparison["score"] == comparison["other_score"]:
        # For equal scores, sacreBLEU returns the lowest possible p-value, as if the difference were significant.
        significance = "equal scores"
    else:
        significance = f"p = {comparison['p_value']:.4f}"
    return f"  paired bootstrap: {system}; {baseline_name}: {baseline}; {significance}"


def format_examples(sources: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> str:
    """Format sentences with their translations and references as text.

    Each sentence gets an empty line and then three lines: the source, the prediction, and the reference.
    """
    lines = []
    for source, prediction, reference in zip(sources, predictions, references, strict=True):
        lines.append("")
        lines.append(f"source:     {one_line(source)}")
        lines.append(f"prediction: {one_line(prediction)}")
        lines.append(f"reference:  {one_line(reference)}")
    return "\n".join(lines)


def describe_search(model: PreTrainedModel | Engine, options: Mapping[str, object] | None = None) -> str:
    """Describe in words how a model decodes, such as "beam search, 4 beams, length penalty 0.6 (gnmt)".

    Args:
        model: the model, whose `generation_config` contains the search settings.
        options: arguments of `generate()` that override these settings.
    """
    # A copy, because `setattr` below must not change the model's settings.
    settings = copy.deepcopy(model.generation_config)
    # `GenerationConfig.update` would validate the settings, and would reject some that models use.
    if options is not None:
        for name, value in options.items():
            setattr(settings, name, value)

    phrases = _describe_beams(settings)
    length_limit = _describe_length_limit(settings)
    if length_limit is not None:
        phrases.append(length_limit)
    return ", ".join(phrases)


def _describe_beams(settings: GenerationConfig) -> list[str]:
    """Describe the search in phrases, such as "beam search", "4 beams" and "length penalty 0.6 (gnmt)"."""
    # None means the default of transformers, which is one beam.
    num_beams = settings.num_beams or 1
    if num_beams == 1:
        return ["sampling" if settings.do_sample else "greedy search"]

    search_name = "beam sampling" if settings.do_sample else "beam search"
    phrases = [search_name, f"{num_beams} beams", _describe_length_penalty(settings)]
    if settings.early_stopping is True:
        phrases.append("early stopping")
    return phrases


def _describe_length_penalty(settings: GenerationConfig) -> str:
    """Describe the length penalty of a beam search, such as "length penalty 0.6 (gnmt)"."""
    alpha = settings.length_penalty
    if alpha is None:
        # The default of transformers.
        alpha = 1.0
    # Only models of this package have this setting. For other models, transformers' own penalty applies.
    penalty_type = getattr(settings, "length_penalty_type", "hf")
    return f"length penalty {alpha} ({penalty_type})"


def _describe_length_limit(settings: GenerationConfig) -> str | None:
    """Describe the maximum length of a translation, such as "at most 20 tokens". Return None if there is no maximum."""
    offset = getattr(settings, "max_length_offset", None)
    # limits_length() returns True if `max_new_tokens` or `max_length` takes precedence over the offset.
    offset_applies = offset is not None and not limits_length(settings)
    if offset_applies:
        return f"at most source + {offset} tokens"
    max_tokens = settings.max_new_tokens or settings.max_length
    if not max_tokens:
        return None
    return f"at most {max_tokens} tokens"
