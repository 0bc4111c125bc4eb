"""Evaluate a model, or existing translations, on test pairs, and describe the scores in words."""

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
    """Translations of test pairs and their scores.

    Args:
        scores (`dict`): the result of `score_translations`; `data`, a description of the pairs; and, if a model
            translated them, `decoding`, a description of the search.
        translations (`list[str]`): translations of the sources, in their order.
    """

    scores: Scores
    translations: list[str]


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
        model (`str`, `Path`, `PreTrainedModel` or `Engine`, *optional*): a folder or a name on the Hub; or a model with
            its tokenizer, or the result of `load_engine`; or None if `translations` are given.
        pairs (`Dataset`, or files): a data set or tables with columns `source` and `target`, or aligned text files
            whose names end in their languages.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): tokenizer of the model, unless `model` is a folder or name.
        translations (`Sequence[str]`, *optional*): existing translations of the sources.
        references (`Sequence`, *optional*): for each pair one reference, or a list of them; by default the column
            `references` of the pairs, or else their targets.
        against (`Sequence[str]`, *optional*): translations by a different system, with which [`score_translations`]
            compares the scores.
        data (`str`, *optional*): description of the pairs; by default the names of the files.
        tokenize (`str`, *optional*): tokenization for BLEU. The default is `"char"` for the number corpus and for Thai,
            Lao, Khmer, Burmese and Tibetan, the tokenization of sacrebleu for other target languages without spaces
            between words, and otherwise `"13a"`.
        lowercase (`bool`): ignore case.
        token_error_rate (`bool`): also compute the error rate of the tokens between spaces, by jiwer.
        target_lang (`str`, *optional*): the language that a model of several target languages translates into, as in
            `translate`; by default the language in which the files' names end, if the model has one code for it.
        **translate_kwargs: arguments of `generate()`, such as `num_beams`; `tokens_per_batch=4096`, the maximum number
            of source tokens in a batch, padding included; and `show_progress=True`, whether to show a progress bar.

    Raises:
        OSError, ValueError: if the model or the files cannot be read, and in the cases in which `translate` and
            `score_translations` raise them.
    """
    if (model is None) == (translations is None):
        raise InputError("give either a model (--model_name_or_path) or translations (--translations_file).")

    scoring = ScoringArguments(tokenize, lowercase, token_error_rate)
    if isinstance(pairs, Dataset):
        data_args = DataArguments()
        description = data or "the given data set"
        test_pairs = pairs
    else:
        data_args = DataArguments(test_file=file_names(pairs))
        description = data or data_args.describe("test")
        _, target_language = data_args.languages()
        scoring = scoring.for_target(target_language)
        test_pairs = data_args.load("test")["test"]
    facts = {"data": description}

    if isinstance(model, (str, Path)):
        tokenizer, model = load(str(model))
    if translations is None:
        if model is None or tokenizer is None:
            raise InputError("a model was given without its tokenizer; give both, or the folder that holds them.")
        search = dict(translate_kwargs)
        tokens_per_batch = search.pop("tokens_per_batch", 4096)
        show_progress = search.pop("show_progress", True)
        translations = translate(
            model,
            tokenizer,
            test_pairs["source"],
            tokens_per_batch,
            show_progress,
            target_lang=target_lang or data_args.target_language_for(tokenizer),
            **search,
        )
        facts["decoding"] = describe_search(model, search)

    if references is None:
        column = "references" if "references" in test_pairs.column_names else "target"
        references = test_pairs[column]
    requested_metrics = []
    if token_error_rate:
        requested_metrics.append("token_error_rate")
    scores = score_translations(
        translations,
        references,
        tokenize=scoring.choose_tokenization(test_pairs),
        lowercase=scoring.lowercase,
        metrics=select_metrics(*requested_metrics),
        against=against,
    )
    scores.update(facts)
    return Evaluation(scores, list(translations))


def describe_scores(scores: Scores) -> list[str]:
    """Describe scores in lines of text.

    Args:
        scores: the scores of an [`Evaluation`]. If they contain `against`, it is the name of the baseline.
    """
    lines = [f"{scores['sentences']} pairs of {scores['data']}"]
    if "decoding" in scores:
        lines.append(f"decoding: {scores['decoding']}")
    lines.append(f"exact match: {describe_exact_match(scores)}")
    for name, metric in METRICS.items():
        if name not in scores:
            continue
        lines.append(f"{metric.label}: {scores[name]:.2f}  {scores[f'{name}_signature']}")
        if f"{name}_against" in scores:
            baseline_name = scores.get("against", "the other")
            lines.append(_describe_comparison(scores[f"{name}_against"], baseline_name))
    return lines


def _describe_comparison(comparison: Comparison, baseline_name: str) -> str:
    """Describe in a line how the score of a system differs from the score of a baseline."""
    system = f"{comparison['mean']:.2f} ± {comparison['ci']:.2f}"
    baseline = f"{comparison['other_score']:.2f}, {comparison['other_mean']:.2f} ± {comparison['other_ci']:.2f}"
    if comparison["score"] == comparison["other_score"]:
        # For equal scores, sacrebleu's p-value is the lowest, as if they differed.
        significance = "equal scores"
    else:
        significance = f"p = {comparison['p_value']:.4f}"
    return f"  paired bootstrap: {system}; {baseline_name}: {baseline}; {significance}"


def format_examples(sources: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> str:
    """Return sentences with their translations and references as text, in blocks of an empty line and three lines."""
    lines = []
    for source, prediction, reference in zip(sources, predictions, references, strict=True):
        lines.append("")
        lines.append(f"source:     {one_line(source)}")
        lines.append(f"prediction: {one_line(prediction)}")
        lines.append(f"reference:  {one_line(reference)}")
    return "\n".join(lines)


def describe_search(model: PreTrainedModel | Engine, options: Mapping[str, object] | None = None) -> str:
    """Describe the search of a model in words, such as "beam search, 4 beams, length penalty 0.6 (gnmt)".

    Args:
        model: the `generation_config` of the model has the settings of the search.
        options: arguments of `generate()` that replace these settings.
    """
    settings = copy.deepcopy(model.generation_config)
    # `GenerationConfig.update` would validate the settings, and reject some that a model may have.
    for name, value in (options or {}).items():
        setattr(settings, name, value)
    limit = _describe_length_limit(settings)

    num_beams = settings.num_beams or 1
    if num_beams == 1:
        search = "sampling" if settings.do_sample else "greedy search"
        return f"{search}{limit}"

    search = "beam sampling" if settings.do_sample else "beam search"
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    penalty_type = getattr(settings, "length_penalty_type", "hf")
    stopping = ", early stopping" if settings.early_stopping is True else ""
    return f"{search}, {num_beams} beams, length penalty {alpha} ({penalty_type}){stopping}{limit}"


def _describe_length_limit(settings: GenerationConfig) -> str:
    """Return the end of a sentence that says how long a translation may be; empty if there is no limit."""
    offset = getattr(settings, "max_length_offset", None)
    if offset is not None and not limits_length(settings):
        return f", at most source + {offset} tokens"
    max_tokens = settings.max_new_tokens or settings.max_length
    if not max_tokens:
        return ""
    return f", at most {max_tokens} tokens"
