"""What the verb `evaluate` does: translate test pairs, score the translations, and compare them with others."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data.pair_arguments import DataArguments, Files, file_names
from ..data.text_lines import one_line
from ..model.generation_settings import limits_length
from ..support.user_errors import InputError
from ..translation.model_loading import load
from ..translation.translate import translate
from .metrics import METRICS, describe_exact_match, score_translations, select_metrics
from .scoring_arguments import ScoringArguments


class Evaluation(NamedTuple):
    """Scores of a model on pairs.

    Args:
        scores (`dict`): of `score_translations`, and in words `data`, the pairs, and `decoding`, the search of a model.
        translations (`list[str]`): of the sources, in their order.
    """

    scores: dict[str, Any]
    translations: list[str]


def evaluate(
    model: Any,
    pairs: Dataset | Files,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    translations: Sequence[str] | None = None,
    references: Sequence[str | Sequence[str]] | None = None,
    against: Sequence[str] | None = None,
    data: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    token_error_rate: bool = False,
    target_lang: str | None = None,
    **translate_kwargs: Any,
) -> Evaluation:
    """Translate the sources of pairs, and compute the scores of the translations.

    ```python
    evaluate("runs/mine", ["test.en", "test.de"], num_beams=4).scores["bleu"]
    ```

    Args:
        model (`str`, `Path`, `PreTrainedModel`, or what `load_engine` returns): a folder or a name on the Hub; or a
            model, with its tokenizer; or None for given translations.
        pairs (`Dataset`, or files): a data set or tables with columns `source` and `target`, or aligned text files
            whose names end in their languages.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): of the model.
        translations (`Sequence[str]`, *optional*): existing translations of the sources.
        references, against (`Sequence`, *optional*): as of [`score_translations`]; by default the references are the
            targets of the pairs, or their column `references`.
        data (`str`, *optional*): the pairs in words; by default the names of the files.
        tokenize (`str`, *optional*): tokenization of BLEU; by default `"char"` for the number corpus and for Thai, Lao,
            Khmer, Burmese and Tibetan, what sacrebleu has for another target language without spaces between words, and
            `"13a"` for others.
        lowercase (`bool`): ignore case.
        token_error_rate (`bool`): also compute the error rate of the tokens between spaces, by jiwer.
        target_lang (`str`, *optional*): the language that a model of several target languages translates into, as in
            `translate`; by default that of the files' names, if the model has one code for it.
        **translate_kwargs: arguments of `generate()`, such as `num_beams`; `tokens_per_batch=4096`, the maximum number
            of source tokens in a batch, padding included; and `show_progress=True`, whether to show a progress bar.

    Raises:
        OSError, ValueError: if the model or the files cannot be read; and as `translate` and `score_translations` do.
    """
    if (model is None) == (translations is None):
        raise InputError("give either a model (--model_name_or_path) or translations (--translations_file).")
    scoring = ScoringArguments(tokenize, lowercase, token_error_rate)
    if not isinstance(pairs, Dataset):
        files = DataArguments(test_file=file_names(pairs))
        data, scoring = data or files.describe("test"), scoring.for_target(files.languages()[1])
        pairs = files.load("test")["test"]
    else:
        files = DataArguments()
    if isinstance(model, (str, Path)):
        tokenizer, model = load(str(model))
    facts = {"data": data or "the given data set"}
    if translations is None:
        if tokenizer is None:
            raise InputError("a model was given without its tokenizer; give both, or the folder that holds them.")
        batches = translate_kwargs.pop("tokens_per_batch", 4096), translate_kwargs.pop("show_progress", True)
        target_lang = target_lang or files.target_language_for(tokenizer)
        translations = translate(
            model, tokenizer, pairs["source"], *batches, target_lang=target_lang, **translate_kwargs
        )
        facts["decoding"] = describe_search(model, translate_kwargs)
    if references is None:
        references = pairs["references" if "references" in pairs.column_names else "target"]
    metrics = select_metrics(*["token_error_rate"] * token_error_rate)
    options: dict[str, Any] = {"metrics": metrics, "against": against, **scoring.options(pairs)}
    scores = score_translations(translations, references, **options)
    return Evaluation({**scores, **facts}, [*translations])


def describe_scores(scores: dict[str, Any]) -> list[str]:
    """Scores as lines of text."""
    lines = [f"{scores['sentences']} pairs of {scores['data']}", f"exact match: {describe_exact_match(scores)}"]
    if "decoding" in scores:
        lines.insert(1, f"decoding: {scores['decoding']}")
    for name, metric in METRICS.items():
        if name not in scores:
            continue
        lines.append(f"{metric.label}: {scores[name]:.2f}  {scores[f'{name}_signature']}")
        if found := scores.get(f"{name}_against"):
            this, other = (f"{found[f'{side}mean']:.2f} ± {found[f'{side}ci']:.2f}" for side in ("", "other_"))
            other = f"{scores.get('against', 'the other')}: {found['other_score']:.2f}, {other}"
            # sacrebleu's p-value of equal scores is the least, as if they differed.
            p_value = f"p = {found['p_value']:.4f}" if found["score"] != found["other_score"] else "equal scores"
            lines.append(f"  paired bootstrap: {this}; {other}; {p_value}")
    return lines


def format_examples(sources: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> str:
    """Sentences, their translations and their references, three lines each, with an empty line before each three."""
    lines = []
    for texts in zip(sources, predictions, references, strict=True):
        source, prediction, reference = map(one_line, texts)
        lines += ["", f"source:     {source}", f"prediction: {prediction}", f"reference:  {reference}"]
    return "\n".join(lines)


def describe_search(model: Any, given: dict[str, Any] | None = None) -> str:
    """The decoding in words: the model's `generation_config`, overridden by the given settings."""
    settings = copy.deepcopy(model.generation_config)
    # Not by update(), which validates settings that the model may carry.
    for name, value in (given or {}).items():
        setattr(settings, name, value)
    offset, limit = getattr(settings, "max_length_offset", None), settings.max_new_tokens or settings.max_length
    if offset is not None and not limits_length(settings):
        limit = f"source + {offset}"
    limit = f", at most {limit} tokens" if limit else ""
    beams = settings.num_beams or 1
    if beams == 1:
        return f"{'sampling' if settings.do_sample else 'greedy search'}{limit}"
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    penalty = f"length penalty {alpha} ({getattr(settings, 'length_penalty_type', 'hf')})"
    kind = "beam sampling" if settings.do_sample else "beam search"
    stop = ", early stopping" if settings.early_stopping is True else ""
    return f"{kind}, {beams} beams, {penalty}{stop}{limit}"
