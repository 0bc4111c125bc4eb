"""`translate()`: sentences in, translations out, in batches of similar length and in the order of the sentences."""

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from tqdm.auto import tqdm
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.constrained_beam_search import check_is_beam_search
from ..model.pipeline_vanilla_transformer import check_generated, check_vocabulary, evaluating
from ..support.argument_checks import check_number, check_strings
from .alignment import Aligner
from .engine import Engine
from .glossary import Glossary, letter_edges, phrases_of
from .inference_batches import batches
from .markup import translate_markup
from .multi_sentence_texts import translate_texts
from .translation_details import BLANK, Translation, describe


logger = logging.getLogger(__name__)

# With up to this many beams, batches have the size that was asked for.
_USUAL_BEAMS = 8
# From this many source tokens on, most of the time of base goes to attention, and grows with the square of the length.
_LONG = 2_000
# Settings of a search that say how to read its result.
_SETTINGS = ("num_beams", "do_sample", "length_penalty", "length_penalty_type", "eos_token_id")


@overload
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    batch_tokens: int = ...,
    show_progress: bool = ...,
    *,
    return_details: Literal[False] = ...,
    split_sentences: bool | str = ...,
    glossary: Mapping[str, str | Sequence[str]] | Glossary | None = ...,
    markup: str | None = ...,
    **generate_kwargs: Any,
) -> list[str]: ...


@overload
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    batch_tokens: int = ...,
    show_progress: bool = ...,
    *,
    return_details: Literal[True],
    split_sentences: bool | str = ...,
    glossary: Mapping[str, str | Sequence[str]] | Glossary | None = ...,
    markup: str | None = ...,
    **generate_kwargs: Any,
) -> list[Translation]: ...


@torch.inference_mode()
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    batch_tokens: int = 4096,
    show_progress: bool = False,
    *,
    return_details: bool = False,
    split_sentences: bool | str = False,
    glossary: Mapping[str, str | Sequence[str]] | Glossary | None = None,
    markup: str | None = None,
    **generate_kwargs: Any,
) -> list[str] | list[Translation]:
    """Translate sentences in batches of similar length; the translations keep the order of the sentences.

    A sentence of 2,000 tokens or more gets a warning, because its time grows with the square of its length (Table 1).

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sentences (`Iterable[str]`): sources; the translation of an empty or blank sentence is empty.
        batch_tokens (`int`): maximum number of source tokens per batch, padding included; a longer sentence is its own
            batch. More than 8 beams make batches smaller in proportion.
        show_progress (`bool`): whether to show a progress bar, in sentences, and another one for the tokens of each
            sentence that gets a warning.
        return_details (`bool`): return [`Translation`] objects, with scores, tokens and log-probabilities, instead of
            texts. One more forward pass per batch computes them.
        split_sentences (`bool` or `str`): whether `sentences` are texts to split into sentences, which needs sentencex;
            a string is the code of their language, by default the tokenizer's or else English. Paragraphs, line breaks
            and white space are kept. A sentence with more tokens than any that the model was trained on (the
            tokenizer's `model_max_length`) is split at clauses. False for test sets, because it changes their scores.
        glossary (`Mapping[str, str | Sequence[str]]`, *optional*): from terms to the translations that they must have;
            or a [`~hf_vanilla_transformer.translation.glossary.Glossary`], which is made once for many calls. Needs
            beam search, best with more beams than the translations of a sentence's terms have tokens.
        markup (`str`, *optional*): `"html"` or `"xml"`, if sentences contain tags. Their text is translated, and each
            tag comes out around the words that are linked with those inside of it, see `align`; the result is
            well-formed.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`. If they request several sequences per
            sentence, the first is the translation, and the others are alternatives in its details; if they request
            scores, these are dropped. `forced_phrases` has a list of phrases for each of `sentences`.

    Returns:
        `list[str]`, or `list[Translation]` with `return_details`: one translation per sentence.

    Raises:
        ImportError: if texts are to be split, and sentencex is not installed.
        TypeError: if `sentences` is one string, or contains anything but strings, or so does `glossary`.
        ValueError: if a sentence has lone surrogates, the tokenizer belongs to another model, or a translation is empty
            because weights are NaN or infinite; or if `glossary` has an entry that no translation can have, or the
            model cannot be forced; or with `markup`, if XML is not well-formed, or the model gives no alignments.
    """
    check_number("batch_tokens", batch_tokens, 1)
    check_vocabulary(model.config, tokenizer)
    sentences = list(check_strings("sentences", sentences))
    options: Any = {"batch_tokens": batch_tokens, "show_progress": show_progress, "glossary": glossary}
    of_texts: Any = partial(translate, model, tokenizer, **options, **generate_kwargs)
    if markup is not None:
        of_texts = partial(of_texts, return_details=True, split_sentences=split_sentences)
        marked = translate_markup(of_texts, markup, sentences, bool(split_sentences))
        return marked if return_details else [translation.text for translation in marked]
    if split_sentences:
        if generate_kwargs.get("forced_phrases") is not None:
            raise ValueError("forced_phrases is for sentences, not for texts to split; give a glossary instead.")
        language = split_sentences if isinstance(split_sentences, str) else None
        return translate_texts(partial(of_texts, return_details=return_details), tokenizer, sentences, language)
    phrases = phrases_of(tokenizer, sentences, glossary, generate_kwargs.pop("forced_phrases", None))
    if glossary is not None or any(phrases):
        _check_forces_phrases(model)
        check_is_beam_search(_search_settings(model, generate_kwargs))
        if glossary is not None:
            generate_kwargs.setdefault("letter_edges", letter_edges(tokenizer, model.config.vocab_size))
    return _translate(
        model, tokenizer, sentences, phrases, batch_tokens, show_progress, return_details, generate_kwargs
    )


def _translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    phrases: list[list],
    batch_tokens: int,
    show_progress: bool,
    return_details: bool,
    generate_kwargs: dict[str, Any],
) -> list[Any]:
    """Translate sentences in batches of similar length, each with the phrases that its translation must have."""
    translations: list[Any] = [BLANK if return_details else ""] * len(sentences)
    indices = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    encoded = tokenizer([sentences[index] for index in indices], verbose=False).input_ids if indices else []
    settings = _search_settings(model, generate_kwargs)
    aligner = Aligner(model, tokenizer) if return_details else None
    if isinstance(settings.num_beams, int):  # generate() raises an error for anything else.
        batch_tokens = max(1, batch_tokens * _USUAL_BEAMS // max(_USUAL_BEAMS, settings.num_beams))
    progress = tqdm(total=len(indices), desc="translating", unit=" sentences", disable=not show_progress)
    with evaluating(model), progress:
        for batch in batches([len(ids) for ids in encoded], batch_tokens):
            inputs = tokenizer.pad({"input_ids": [encoded[row] for row in batch]}, return_tensors="pt")
            forced = [phrases[indices[row]] for row in batch]
            options = {**generate_kwargs, "forced_phrases": forced} if any(forced) else generate_kwargs
            output = _generate(model, inputs.to(model.device), show_progress, options)
            sequences = getattr(output, "sequences", output).unflatten(0, (len(batch), -1))
            check_generated(model, tokenizer, sequences[:, 0])
            if aligner is not None:
                sources = [(sentences[indices[row]], encoded[row]) for row in batch]
                found: list[Any] = describe(model, tokenizer, sources, sequences, settings, batch_tokens, aligner)
            else:
                found = tokenizer.batch_decode(sequences[:, 0], skip_special_tokens=True)
            for row, translation in zip(batch, found, strict=True):
                translations[indices[row]] = translation
            progress.update(len(batch))
    return translations


def _generate(model: Any, inputs: Any, show_progress: bool, generate_kwargs: dict[str, Any]) -> Any:
    """Call `generate()`, with a warning and a progress bar in tokens if a sentence is long."""
    length = inputs["input_ids"].shape[1]
    if length < _LONG or isinstance(model, Engine):
        return model.generate(**inputs, **generate_kwargs)
    logger.warning("a sentence has %s tokens; its time grows with the square of that, so split it.", f"{length:,}")
    # Most translations are about as long as their source.
    with tqdm(total=length, desc="a long sentence", unit=" tokens", leave=False, disable=not show_progress) as progress:
        given = generate_kwargs.get("logits_processor") or []
        processors = LogitsProcessorList([*given, _StepCounter(progress)])
        return model.generate(**inputs, **{**generate_kwargs, "logits_processor": processors})


def _search_settings(model: Any, generate_kwargs: dict[str, Any]) -> Any:
    """The model's `generation_config` with the settings of a call of `generate()` that checks and details need."""
    settings = copy.copy(model.generation_config)
    given = generate_kwargs.get("generation_config")
    for name in _SETTINGS:
        for value in (generate_kwargs.get(name), getattr(given, name, None)):
            if value is not None:
                setattr(settings, name, value)
                break
    return settings


def _check_forces_phrases(model: Any) -> None:
    """Raise ValueError if a model's `generate()` has no `forced_phrases`."""
    kind = model.config.model_type
    if isinstance(model, Engine) or kind != VanillaTransformerConfig.model_type:
        reason = "another engine than torch" if isinstance(model, Engine) else f'a model of the type "{kind}"'
        raise ValueError(f"terms and forced_phrases do not work with {reason}; leave them out, or use another.")


class _StepCounter(LogitsProcessor):
    """Counts decoding steps on a progress bar, and leaves the logits as they are."""

    def __init__(self, progress: Any):
        self._progress = progress

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._progress.update()
        return scores
