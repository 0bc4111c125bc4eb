"""`translate()`: translate sentences in batches of similar length, in the order of the sentences.

Texts of several sentences are split into sentences, sentences are put into batches, and `generate()` translates each
batch. [`TextTranslator`] has these steps in this order.
"""

import copy
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, overload

import torch
from tqdm.auto import tqdm
from transformers import (
    BatchEncoding,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..data.target_language import Source
from ..model.generation_settings import SEARCH_SETTINGS
from ..model.input_checks import check_generated, copies_letterless, has_letters, is_blank, sides_of
from ..support.argument_checks import check_strings
from ..support.user_errors import InputError, input_errors
from .alignment import Aligner
from .concurrent_use import encode, evaluating
from .engine import Engine
from .inference import Inference, TokenizedText
from .required_phrases import Phrase, PhraseSizes, RequiredPhrases, split_by_phrases
from .sentence_splitting import join_translations, split_into_pieces
from .translation_details import DetailLevel, Translation, describe, untranslated
from .words_of_tokens import WORDS, word_at


logger = logging.getLogger(__name__)

# Batches have the requested number of tokens with up to this many beams. With more beams they are smaller, because the
# memory for a batch grows with the beams.
_USUAL_BEAMS = 8
# From this number of source tokens on, the base model spends most of its time on attention, which grows with the square
# of the length.
_LONG_SOURCE = 2_000
# How many numbers the search with phrases may compute in each step, for each beam and each source token that fits into
# a batch. With 8 beams and the default of 4,096 tokens they take 25 MB, and 25 ms per step on one thread.
_CELLS_PER_SOURCE_TOKEN = 25
# Settings of a search that are needed to check it and to describe its result.
_DESCRIBING_SETTINGS = [name for name, setting in SEARCH_SETTINGS.items() if setting.describes_result]
# Arguments that `translate()` had in earlier versions, and what to do instead.
_FORMER_ARGUMENTS = {
    "markup": 'call translate_documents(model, tokenizer, documents, format="html"), or format="xml"',
    "forced_phrases": (
        "give glossary=Glossary(terms, tokenizer), or for token ids call model.generate() with "
        "custom_generate=ForcedPhrases(phrases)"
    ),
}


@overload
def translate(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    *,
    return_details: Literal[True, DetailLevel.FLAGS, DetailLevel.ALL],
    **kwargs: Any,
) -> list[Translation]: ...


@overload
def translate(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    **kwargs: Any,
) -> list[str]: ...


@torch.inference_mode()
def translate(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    return_details: bool | DetailLevel = False,
    split_sentences: bool | str = False,
    glossary: RequiredPhrases | None = None,
    copy_letterless: bool | None = None,
    target_lang: str | None = None,
    **generate_kwargs: Any,
) -> list[str] | list[Translation]:
    """Translate sentences in batches of similar length; the translations keep the order of the sentences.

    A sentence of 2,000 tokens or more causes a warning, because its time grows with the square of its length (Table 1).

    Args:
        model (`PreTrainedModel`, or an `Engine` from `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        sentences (`Iterable[str]`): sentences to translate. One without visible characters is its own translation.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included. A longer sentence is its
            own batch. More than 8 beams make batches smaller in proportion.
        show_progress (`bool`): whether to show a progress bar in sentences, and a second one in tokens for each
            sentence that causes a warning.
        return_details (`bool`): whether to return [`Translation`] objects, with scores, tokens and log-probabilities,
            instead of strings. One more forward pass per batch computes them. (Commands pass a [`DetailLevel`].)
        split_sentences (`bool` or `str`): whether `sentences` are texts to split into sentences, which needs sentencex.
            A string is the language code of the texts; the default is the tokenizer's source language, or else English.
            Paragraphs, line breaks and white space are kept. If a sentence has more tokens than any that the model was
            trained on (`longest_training_source` in `tokenizer_config.json`), it is split at clauses. Do not split the
            sentences of test sets, because it changes their scores.
        glossary (`Glossary`, *optional*): terms and the translations that they must have, such as
            `Glossary({"machine": "Maschine"}, tokenizer)`. This needs beam search, with more beams than the
            translations of a sentence's terms have tokens for best results. A different object with the methods of
            [`~hf_vanilla_transformer.translation.required_phrases.RequiredPhrases`] may require other phrases.
        copy_letterless (`bool`, *optional*): whether sentences without letters, such as `"2024"`, are their own
            translations, unless they contain a term of the glossary. This includes the parts of texts to split. By
            default they are copied if under 1 % of the model's training pairs translate such a text into a different
            one (`translated_letterless_share` in `tokenizer_config.json`).
        target_lang (`str`, *optional*): language to translate into, such as `"fr"`, for a model of several target
            languages, as some OPUS-MT models are. Its code in the vocabulary, such as `>>fr<<`, is put before each
            sentence, and before each part of a split sentence. The default is the language that `train` saved with the
            tokenizer. A text that begins with a code keeps this code for all of its parts. For a model of one target
            language, the argument is only checked.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`. If they request several sequences per
            sentence, the first one is the translation, and the others are alternatives in its details. If they request
            scores, these are dropped.

    Returns:
        `list[str]`, or `list[Translation]` with `return_details`: one translation per sentence.

    Raises:
        ImportError: if texts are to be split, and sentencex is not installed.
        TypeError: if `sentences` is one string, or contains anything but strings.
        ValueError: if a sentence has lone surrogates; if the tokenizer belongs to another model; if a translation is
            empty because weights are NaN or infinite; if `glossary` is not an object with required phrases (such as a
            `dict`), or cannot be used with the model or the search; or if the model does not translate into
            `target_lang`, or needs one and a text has no code.
    """
    detail_level = DetailLevel.from_argument(return_details)
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    if copy_letterless is None:
        copy_letterless = copies_letterless(tokenizer, otherwise=False)
    translator = TextTranslator(
        inference,
        generate_kwargs,
        aligner=Aligner(model, tokenizer) if detail_level is DetailLevel.ALL else None,
        glossary=glossary,
        split_sentences=split_sentences,
        copy_letterless=copy_letterless,
    )
    codes = inference.codes()
    texts = [codes.read(sentence) for sentence in check_strings("sentences", sentences)]
    translations = translator.translate_texts(texts)
    if detail_level is DetailLevel.TEXT:
        return [translation.text for translation in translations]
    return translations


@dataclass
class _Sentence:
    """A sentence that the model translates.

    Args:
        index (`int`): its position among all sentences of the call.
        source (`Source`): its text, with the code of the target language.
        phrases (`list[Phrase]`): phrases that its translation must contain.
        sizes (`PhraseSizes`): sizes of these phrases.
        token_ids (`list[int]`): the input of the model.
    """

    index: int
    source: Source
    phrases: list[Phrase]
    sizes: PhraseSizes
    token_ids: list[int]


class TextTranslator:
    """Translate texts with the settings of one call of `translate()` or `translate_documents()`.

    Args:
        inference (`Inference`): the model with its tokenizer.
        generate_kwargs (`dict[str, Any]`): arguments of `generate()`.
        aligner (`Aligner`, *optional*): aligns the words of translations. With it, translations have all details, which
            takes one more forward pass per batch. Without it, they have text, tokens and flags.
        glossary (`RequiredPhrases`, *optional*), split_sentences (`bool` or `str`), copy_letterless (`bool`): as in
            [`translate`].

    Raises:
        ValueError: if `generate_kwargs` has arguments of earlier versions, or `glossary` cannot be used.
    """

    def __init__(
        self,
        inference: Inference,
        generate_kwargs: dict[str, Any],
        *,
        aligner: Aligner | None,
        glossary: RequiredPhrases | None,
        split_sentences: bool | str,
        copy_letterless: bool,
    ):
        _check_former_arguments(generate_kwargs)
        self._settings = _collect_search_settings(inference.model, generate_kwargs)
        if glossary is not None:
            _check_glossary(glossary, inference, generate_kwargs)
            glossary.check(self._settings)
        self._inference = _with_smaller_batches(inference, self._settings.num_beams)
        self._generate_kwargs = dict(generate_kwargs)
        if self._settings.stop_strings and inference.runtime.calls_processors:
            # `generate()` needs the tokenizer to find stop strings in the tokens of translations.
            self._generate_kwargs["tokenizer"] = sides_of(inference.tokenizer)[1]
        self._aligner = aligner
        self._words = WORDS if aligner is None else aligner.words
        self._glossary = glossary
        self._split_sentences = split_sentences
        self._copy_letterless = copy_letterless

    def translate_texts(self, texts: list[Source]) -> list[Translation]:
        """Translate texts as a whole, or sentence by sentence with the white space and line breaks between them."""
        if not self._split_sentences:
            return self._translate_sentences(texts)

        language = self._split_sentences if isinstance(self._split_sentences, str) else None
        tokenizer = self._inference.tokenizer
        codes = self._inference.codes()
        pieces_of_texts = []
        sentences = []
        for text in texts:
            pieces = split_into_pieces(tokenizer, text.written, language, code=text.code)
            pieces_of_texts.append(pieces)
            sentences += [codes.read(piece.text, text.code) for piece in pieces]

        translations = iter(self._translate_sentences(sentences))
        translations_of_texts = []
        for pieces in pieces_of_texts:
            translations_of_pieces = list(islice(translations, len(pieces)))
            translations_of_texts.append(join_translations(pieces, translations_of_pieces, self._words))
        return translations_of_texts

    def _translate_sentences(self, sources: list[Source]) -> list[Translation]:
        """Translate sentences in batches. A sentence that the model does not get is its own translation."""
        # The copies of all other sentences are replaced below.
        translations = [_copy_source(source, self._words) for source in sources]
        sentences = self._prepare_sentences(sources)
        with evaluating(self._inference.model):
            for batch in self._batches(sentences):
                for sentence, translation in zip(batch, self._translate_batch(batch), strict=True):
                    translations[sentence.index] = translation
        return translations

    def _prepare_sentences(self, sources: list[Source]) -> list[_Sentence]:
        """Choose the sentences that the model translates, tokenize them, and find the phrases that they require."""
        sentences = []
        for index, source in enumerate(sources):
            phrases: list[Phrase] = []
            if self._glossary is not None:
                phrases = self._glossary.phrases(source.text)
            # A text without letters may be a term of the glossary, such as "24/7".
            is_copied = self._copy_letterless and not has_letters(source.text) and not phrases
            if is_copied or is_blank(source.text):
                continue
            sizes = PhraseSizes()
            if self._glossary is not None:
                sizes = self._glossary.sizes(source.text)
            sentences.append(_Sentence(index, source, phrases, sizes, token_ids=[]))

        if sentences:
            codes = self._inference.codes()
            texts = [codes.join(sentence.source) for sentence in sentences]
            # All sentences are tokenized by one call, because this is faster.
            token_ids_of_sentences = encode(self._inference.tokenizer, texts).input_ids
            for sentence, token_ids in zip(sentences, token_ids_of_sentences, strict=True):
                sentence.token_ids = token_ids
        return sentences

    def _batches(self, sentences: list[_Sentence]) -> Iterator[list[_Sentence]]:
        """Group sentences of similar length; batches are smaller where terms have many or long translations."""
        lengths = [len(sentence.token_ids) for sentence in sentences]
        sizes = [sentence.sizes for sentence in sentences]
        most_cells = self._inference.tokens_per_batch * _CELLS_PER_SOURCE_TOKEN
        for rows in self._inference.batches(lengths, "translating", "sentences"):
            for rows_of_batch in split_by_phrases(rows, sizes, most_cells):
                yield [sentences[row] for row in rows_of_batch]

    def _translate_batch(self, batch: list[_Sentence]) -> list[Translation]:
        """Translate a batch by one call of `generate()`."""
        model = self._inference.model
        tokenizer = self._inference.tokenizer
        inputs = tokenizer.pad({"input_ids": [sentence.token_ids for sentence in batch]}, return_tensors="pt")

        generate_kwargs = dict(self._generate_kwargs)
        phrases = [sentence.phrases for sentence in batch]
        if self._glossary is not None and any(phrases):
            generate_kwargs["custom_generate"] = self._glossary.search(model, phrases)
        output = _generate(self._inference, inputs.to(model.device), generate_kwargs)

        # `generate()` returns an object with `sequences` if scores or other outputs are requested.
        sequences = getattr(output, "sequences", output)
        sequences_of_sentences = sequences.unflatten(0, (len(batch), -1))
        best_sequences = sequences_of_sentences[:, 0]
        check_generated(model, tokenizer, best_sequences)
        sources = [TokenizedText(sentence.source.written, sentence.token_ids) for sentence in batch]
        without_progress = replace(self._inference, show_progress=False)
        return describe(without_progress, self._aligner, sources, sequences_of_sentences, self._settings)


def _check_former_arguments(generate_kwargs: dict[str, Any]) -> None:
    """Raise ValueError, with a remedy, if there is an argument that `translate` had in earlier versions."""
    for name, remedy in _FORMER_ARGUMENTS.items():
        if name in generate_kwargs:
            raise InputError(f"{name} is no longer an argument; {remedy}.")


def _check_glossary(glossary: object, inference: Inference, generate_kwargs: dict[str, Any]) -> None:
    """Raise ValueError if a glossary is not an object with required phrases, or the model cannot search for phrases."""
    if not isinstance(glossary, RequiredPhrases):
        raise InputError(
            f"glossary is of type {type(glossary).__name__}; give glossary=Glossary(terms, tokenizer), which is in the "
            "package hf_vanilla_transformer."
        )
    runtime = inference.runtime
    if not runtime.takes_phrases:
        raise InputError(f"terms do not work with {runtime.description}; leave them out, or use a different model.")
    if generate_kwargs.get("custom_generate") is not None:
        raise InputError("glossary and custom_generate both choose the search; give only one of them.")


def _with_smaller_batches(inference: Inference, num_beams: object) -> Inference:
    """Return the same inference with smaller batches if there are many beams, which take memory in proportion."""
    if not isinstance(num_beams, int):
        # It is None for a greedy search; for other values `generate()` will raise an error.
        return inference
    tokens_per_batch = inference.tokens_per_batch * _USUAL_BEAMS // max(_USUAL_BEAMS, num_beams)
    return replace(inference, tokens_per_batch=max(1, tokens_per_batch))


def _copy_source(sentence: Source, words: re.Pattern[str]) -> Translation:
    """Return a sentence as its own translation.

    A code at the beginning of the sentence is left out of the translation, but counts as a word of the source.
    """
    translation = untranslated(sentence.text, words)
    length_of_code = len(sentence.written) - len(sentence.text)
    first_word = word_at(sentence.written, length_of_code, words)
    links = [(first_word + source_word, target_word) for source_word, target_word in translation.alignment or ()]
    return translation._replace(alignment=links)


def _generate(inference: Inference, inputs: BatchEncoding, generate_kwargs: dict[str, Any]) -> Any:
    """Call `generate()`, with a warning and a progress bar in tokens if a sentence is long."""
    # Engines and models have no class in common that has this method.
    model: Any = inference.model
    length = inputs["input_ids"].shape[1]
    if length < _LONG_SOURCE or not inference.runtime.calls_processors:
        # transformers checks some settings of a generation_config.json only when it uses them.
        with input_errors():
            return model.generate(**inputs, **generate_kwargs)

    logger.warning("a sentence has %s tokens; its time grows with the square of that, so split it.", f"{length:,}")
    # Most translations are about as long as their source, so the progress bar ends at the length of the source.
    is_silent = not inference.show_progress
    with tqdm(total=length, desc="a long sentence", unit=" tokens", leave=False, disable=is_silent) as progress:

        def count_step(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
            progress.update()
            return scores

        processors = LogitsProcessorList([*(generate_kwargs.get("logits_processor") or []), count_step])
        kwargs_with_progress = {**generate_kwargs, "logits_processor": processors}
        return model.generate(**inputs, **kwargs_with_progress)


def _collect_search_settings(model: PreTrainedModel | Engine, generate_kwargs: dict[str, Any]) -> GenerationConfig:
    """Return the settings that a call of `generate()` will use, as far as they are needed here.

    Arguments of the call override a `generation_config` among them, and this overrides the model's `generation_config`.
    """
    settings: GenerationConfig = copy.copy(model.generation_config)
    overrides = [generate_kwargs]
    if generate_kwargs.get("generation_config"):
        overrides.insert(0, vars(generate_kwargs["generation_config"]))
    for values in overrides:
        for name in _DESCRIBING_SETTINGS:
            if values.get(name) is not None:
                setattr(settings, name, values[name])
    return settings
