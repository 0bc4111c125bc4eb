"""Translate sentences, or texts of several sentences, in batches of similar length.

Texts are split into sentences if the caller requests it, sentences are grouped into batches, and `generate()`
translates each batch. The methods of [`TextTranslator`] follow this order.
"""

import copy
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
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
from .sentence_splitting import Piece, join_translations, split_into_pieces
from .translation_details import DetailLevel, Translation, describe, untranslated
from .words_of_tokens import WORDS, word_at


logger = logging.getLogger(__name__)

# With up to this many beams, batches have the requested number of tokens. With more beams, batches are smaller, because
# the memory for a batch grows with the number of beams.
_USUAL_BEAMS = 8
# From this number of source tokens on, the base model spends most of its time on attention, whose time grows with the
# square of the length.
_LONG_SOURCE = 2_000
# The maximum number of values that a search with required phrases may compute per step, for each beam and each source
# token of a full batch. With 8 beams and the default of 4,096 tokens, this takes 25 MB, and 25 ms per step on one
# thread.
_CELLS_PER_SOURCE_TOKEN = 25
# The search settings that this module needs to check a search and to describe its results.
_DESCRIBING_SETTINGS = [name for name, setting in SEARCH_SETTINGS.items() if setting.describes_result]
# Arguments that `translate()` had in earlier versions, with advice on what to do instead.
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
    """Translate sentences in batches of similar length, and return the translations in the order of the sentences.

    A sentence of 2,000 tokens or more causes a warning, because translation time grows with the square of the length
    (Table 1).

    Args:
        model (`PreTrainedModel`, or an `Engine` from `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        sentences (`Iterable[str]`): sentences to translate. A sentence without visible characters is returned
            unchanged.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included. A longer sentence gets a
            batch of its own. If there are more than 8 beams, batches become smaller in proportion.
        show_progress (`bool`): whether to show a progress bar that counts sentences, and a second one that counts
            tokens for each sentence that causes a warning.
        return_details (`bool`): whether to return [`Translation`] objects instead of strings. Computing their details
            takes one more forward pass per batch. (The package's commands pass a [`DetailLevel`].)
        split_sentences (`bool` or `str`): whether to split each item of `sentences` into sentences, which needs
            sentencex. White space and line breaks are kept. Do not split the sentences of test sets, because this
            changes their scores.

            - `True` stands for the tokenizer's source language, or else English. A string is the language code of the
              texts.
            - If a sentence has more tokens than the longest source that the model was trained on
              (`longest_training_source` in `tokenizer_config.json`), it is split between clauses.
        glossary (`Glossary`, *optional*): terms and their required translations, such as
            `Glossary({"machine": "Maschine"}, tokenizer)`. A glossary needs beam search. For best results, use more
            beams than the translations of a sentence's terms have tokens. You can also pass any object with the methods
            of [`~hf_vanilla_transformer.translation.required_phrases.RequiredPhrases`].
        copy_letterless (`bool`, *optional*): whether to copy sentences without letters, such as `"2024"`, instead of
            translating them. Sentences with a term of the glossary are translated. By default, sentences are copied if
            less than 1 % of the model's training pairs translate such a text into a different one
            (`translated_letterless_share` in `tokenizer_config.json`).
        target_lang (`str`, *optional*): the language to translate into, such as `"fr"`. The default is the language
            that `train` saved with the tokenizer.

            - If the model has several target languages, as some OPUS-MT models do, the language's code in the
              vocabulary, such as `>>fr<<`, is put before each sentence, and before each part of a split sentence.
            - If a text begins with a code, this code is used for all of its sentences instead.
            - If the model has one target language, the argument is only checked.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`. If they request several sequences per
            sentence, the first one is the translation, and the others are alternatives in its details. If they request
            scores, the scores are dropped.

    Returns:
        `list[str]`, or `list[Translation]` with `return_details`: one translation per sentence.

    Raises:
        ImportError: if `split_sentences` is set, and sentencex is not installed.
        TypeError: if `sentences` is a single string, or contains anything but strings.
        ValueError: in these cases:

            - A sentence has lone surrogates.
            - The tokenizer belongs to a different model.
            - A translation is empty because weights are NaN or infinite.
            - `glossary` is no glossary, such as a `dict`, or cannot be used with the model or the search settings.
            - The model does not translate into `target_lang`, or needs a target language and a text has no code.
    """
    detail_level = DetailLevel.from_argument(return_details)
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    if copy_letterless is None:
        copy_letterless = copies_letterless(tokenizer, otherwise=False)
    aligner = None
    if detail_level is DetailLevel.ALL:
        aligner = Aligner(model, tokenizer)
    translator = TextTranslator(
        inference,
        generate_kwargs,
        aligner=aligner,
        glossary=glossary,
        split_sentences=split_sentences,
        copy_letterless=copy_letterless,
    )

    codes = inference.codes()
    # This separates target-language codes from the sentences that begin with one.
    texts = [codes.read(sentence) for sentence in check_strings("sentences", sentences)]
    translations = translator.translate_texts(texts)
    if detail_level is DetailLevel.TEXT:
        return [translation.text for translation in translations]
    return translations


@dataclass(frozen=True)
class _Sentence:
    """A sentence that the model will translate, prepared for batching.

    Args:
        index: the sentence's position among all sentences of the call.
        source: the sentence's text and its target-language code.
        phrases: the phrases that the translation must contain.
        sizes: the sizes of these phrases, by which batches are split.
        token_ids: the token ids of the model's input.
    """

    index: int
    source: Source
    phrases: list[Phrase]
    sizes: PhraseSizes
    token_ids: list[int]


class TextTranslator:
    """Translates texts with fixed settings. Each call of `translate()` or `translate_documents()` creates a new object.

    Args:
        inference (`Inference`): the model and its tokenizer.
        generate_kwargs (`dict[str, Any]`): arguments of `generate()`.
        aligner (`Aligner`, *optional*): aligns the words of translations. If it is given, translations have all
            details, which takes one more forward pass per batch. Otherwise they have only text, tokens and flags.
        glossary (`RequiredPhrases`, *optional*), split_sentences (`bool` or `str`), copy_letterless (`bool`): as in
            [`translate`].

    Raises:
        ValueError: if `generate_kwargs` contains arguments that only earlier versions of `translate` had, or `glossary`
            cannot be used.
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
        """Check the arguments, and combine the settings of this call with those of the model.

        The checks raise ValueError before anything is translated.
        """
        _check_former_arguments(generate_kwargs)
        # The model's search settings, with the changes that this call makes by `generate_kwargs`.
        search_settings = _collect_search_settings(inference.model, generate_kwargs)
        if glossary is not None:
            # This comes first, because an object that is no glossary, such as a dict, has no method `check`.
            _check_glossary(glossary, inference, generate_kwargs)
            glossary.check(search_settings)

        self._inference = _with_smaller_batches(inference, search_settings.num_beams)
        self._search_settings = search_settings
        self._generate_kwargs = _add_tokenizer_for_stop_strings(generate_kwargs, search_settings, inference)
        self._aligner = aligner
        # Matches the words that alignments link.
        self._words = WORDS if aligner is None else aligner.words
        self._glossary = glossary
        self._split_sentences = split_sentences
        self._copy_letterless = copy_letterless

    def translate_texts(self, texts: list[Source]) -> list[Translation]:
        """Translate each text as a whole, or sentence by sentence if `split_sentences` is set.

        White space and line breaks between sentences are kept.
        """
        if not self._split_sentences:
            return self._translate_sentences(texts)

        pieces_of_texts = [self._split(text) for text in texts]
        # The pieces of all texts are translated together, because large batches are faster.
        sentences = self._list_sentences(texts, pieces_of_texts)
        # One translation per piece, in the order of `sentences`.
        remaining_translations = iter(self._translate_sentences(sentences))
        text_translations = []
        for pieces in pieces_of_texts:
            translations_of_pieces = list(islice(remaining_translations, len(pieces)))
            text_translations.append(join_translations(pieces, translations_of_pieces, self._words))
        return text_translations

    def _list_sentences(self, texts: list[Source], pieces_of_texts: list[list[Piece]]) -> list[Source]:
        """Return the pieces of all texts in one list. A piece that begins with no code gets the code of its text."""
        codes = self._inference.codes()
        sentences: list[Source] = []
        for text, pieces in zip(texts, pieces_of_texts, strict=True):
            for piece in pieces:
                sentences.append(codes.read(piece.text, default=text.code))
        return sentences

    def _split(self, text: Source) -> list[Piece]:
        """Split a text into sentences, as `split_sentences` requests. A target-language code of the text is kept."""
        language = None
        if isinstance(self._split_sentences, str):
            # Otherwise it is True, which stands for the language of the tokenizer.
            language = self._split_sentences
        return split_into_pieces(self._inference.tokenizer, text.written, language, code=text.code)

    def _translate_sentences(self, sources: list[Source]) -> list[Translation]:
        """Translate sentences in batches, and copy sentences that need no translation, such as blank ones."""
        # Each sentence is copied first. The translations below replace these copies in the list.
        translations = [_copy_source(source, self._words) for source in sources]
        sentences_to_translate = self._prepare_sentences(sources)
        with evaluating(self._inference.model):
            for batch in self._batches(sentences_to_translate):
                translations_of_batch = self._translate_batch(batch)
                for sentence, translation in zip(batch, translations_of_batch, strict=True):
                    # `index` is the sentence's position in `sources`.
                    translations[sentence.index] = translation
        return translations

    def _prepare_sentences(self, sources: list[Source]) -> list[_Sentence]:
        """Select the sentences that need translation, find their required phrases, and tokenize them."""
        # The phrases are needed first, because a sentence with phrases is not copied.
        phrases_of_sources = [self._find_phrases(source) for source in sources]
        indices = []
        for index, source in enumerate(sources):
            if not self._is_copied(source, phrases_of_sources[index]):
                indices.append(index)

        sizes_of_sentences = [self._find_phrase_sizes(sources[index]) for index in indices]
        token_ids_of_sentences = self._tokenize([sources[index] for index in indices])
        sentences = []
        for index, sizes, token_ids in zip(indices, sizes_of_sentences, token_ids_of_sentences, strict=True):
            sentences.append(_Sentence(index, sources[index], phrases_of_sources[index], sizes, token_ids))
        return sentences

    def _find_phrases(self, source: Source) -> list[Phrase]:
        """Return the phrases that the translation of a sentence must contain; none without a glossary."""
        if self._glossary is None:
            return []
        return self._glossary.phrases(source.text)

    def _find_phrase_sizes(self, source: Source) -> PhraseSizes:
        """Return the sizes of a sentence's required phrases, which are all 0 without a glossary."""
        if self._glossary is None:
            return PhraseSizes()
        return self._glossary.sizes(source.text)

    def _is_copied(self, source: Source, phrases: list[Phrase]) -> bool:
        """Return True if a sentence is copied instead of translated, because it is blank or has no letters."""
        if is_blank(source.text):
            return True
        # A text without letters may be a term of the glossary, such as "24/7", and then has phrases.
        return self._copy_letterless and not has_letters(source.text) and not phrases

    def _tokenize(self, sources: list[Source]) -> list[list[int]]:
        """Return the token ids of each sentence, beginning with a target-language code if the model needs one."""
        if not sources:
            return []
        codes = self._inference.codes()
        coded_texts = [codes.join(source) for source in sources]
        # A single call tokenizes all sentences, because this is faster.
        return encode(self._inference.tokenizer, coded_texts).input_ids

    def _batches(self, sentences: list[_Sentence]) -> Iterator[list[_Sentence]]:
        """Group sentences of similar length into batches. Many or long required phrases make the batches smaller."""
        source_lengths = [len(sentence.token_ids) for sentence in sentences]
        phrase_sizes = [sentence.sizes for sentence in sentences]
        # The maximum number of cells (see `PhraseSizes.cells`) per batch. It grows with the token budget of the batch.
        most_cells = self._inference.tokens_per_batch * _CELLS_PER_SOURCE_TOKEN
        # `inference.batches` groups the indices of sentences of similar length, and shows a progress bar. A batch
        # without required phrases is not divided further.
        for indices_of_similar_length in self._inference.batches(source_lengths, task="translating", unit="sentences"):
            for indices_of_batch in split_by_phrases(indices_of_similar_length, phrase_sizes, most_cells):
                yield [sentences[index] for index in indices_of_batch]

    def _translate_batch(self, batch: list[_Sentence]) -> list[Translation]:
        """Translate a batch with one call of `generate()`, and return the translations with their details."""
        # The best hypothesis of each sentence comes first.
        sequences = self._search(batch)  # (sentences, hypotheses, target)
        best_sequences = sequences[:, 0]  # (sentences, target)
        # This raises an error if a translation is empty because weights of the model are NaN or infinite.
        check_generated(self._inference.model, self._inference.tokenizer, best_sequences)

        # The words of a source are counted in the text as the user wrote it, with its target-language code.
        sources = [TokenizedText(sentence.source.written, sentence.token_ids) for sentence in batch]
        # The progress bar counts translated sentences, so forced decoding must not show a second one.
        without_progress = replace(self._inference, show_progress=False)
        return describe(without_progress, self._aligner, sources, sequences, self._search_settings)

    def _search(self, batch: list[_Sentence]) -> torch.Tensor:
        """Search for translations of a batch, and return token ids of shape `(sentences, hypotheses, target)`."""
        model = self._inference.model
        token_ids = [sentence.token_ids for sentence in batch]
        inputs = self._inference.tokenizer.pad({"input_ids": token_ids}, return_tensors="pt")

        generate_kwargs = dict(self._generate_kwargs)
        # The required phrases of each sentence, which are an empty list for most sentences.
        phrases = [sentence.phrases for sentence in batch]
        if self._glossary is not None and any(phrases):
            # This search replaces the one of `generate()`.
            generate_kwargs["custom_generate"] = self._glossary.search(model, phrases)
        output = _generate(self._inference, inputs.to(model.device), generate_kwargs)

        # `generate()` returns the token ids, (sentences * hypotheses, target), or an object that contains them if
        # scores or other outputs are requested.
        token_ids_of_hypotheses: torch.Tensor = getattr(output, "sequences", output)
        # The hypotheses of a sentence are next to each other. -1 stands for their number.
        return token_ids_of_hypotheses.unflatten(0, (len(batch), -1))


def _check_former_arguments(generate_kwargs: dict[str, Any]) -> None:
    """Raise ValueError if the caller passes an argument that `translate` no longer has. The message gives advice."""
    for name, remedy in _FORMER_ARGUMENTS.items():
        if name in generate_kwargs:
            raise InputError(f"{name} is no longer an argument; {remedy}.")


def _check_glossary(glossary: object, inference: Inference, generate_kwargs: dict[str, Any]) -> None:
    """Raise ValueError if an object is not a glossary, or cannot be used with the model or the other arguments."""
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


def _add_tokenizer_for_stop_strings(
    generate_kwargs: dict[str, Any], settings: GenerationConfig, inference: Inference
) -> dict[str, Any]:
    """Return a copy of the arguments with the tokenizer that `generate()` needs to find stop strings, if there are any.

    Inference engines reject stop strings, so they get no tokenizer.
    """
    copied_kwargs = dict(generate_kwargs)
    # `calls_processors` is True for PyTorch models, and False for inference engines.
    if settings.stop_strings and inference.runtime.calls_processors:
        _source_tokenizer, target_tokenizer = sides_of(inference.tokenizer)
        copied_kwargs["tokenizer"] = target_tokenizer
    return copied_kwargs


def _with_smaller_batches(inference: Inference, num_beams: object) -> Inference:
    """Return the settings of a call, with smaller batches if there are many beams, because each beam takes memory."""
    if not isinstance(num_beams, int):
        # It is None for a greedy search; for other values `generate()` will raise an error.
        return inference
    # For example, 16 beams halve the number of tokens. Up to 8 beams, the number stays the same.
    tokens_per_batch = inference.tokens_per_batch * _USUAL_BEAMS // max(_USUAL_BEAMS, num_beams)
    return replace(inference, tokens_per_batch=max(1, tokens_per_batch))


def _copy_source(sentence: Source, words: re.Pattern[str]) -> Translation:
    """Return a [`Translation`] that copies a sentence, and aligns each word with itself.

    A target-language code at the beginning of the sentence is left out of the translation, but the alignment counts it
    as a word of the source.

    Args:
        sentence (`Source`): `written` is the sentence as the user wrote it, and `text` is the sentence without a code.
        words (`re.Pattern[str]`): matches the words that the alignment links.
    """
    translation = untranslated(sentence.text, words)
    length_of_code = len(sentence.written) - len(sentence.text)
    # The source's words are counted in `written`. Without a code, its first word is word 0.
    first_word_after_code = word_at(sentence.written, length_of_code, words)
    # Copied texts always have an alignment.
    assert translation.alignment is not None
    links = []
    for source_word, target_word in translation.alignment:
        links.append((first_word_after_code + source_word, target_word))
    return translation._replace(alignment=links)


def _generate(inference: Inference, inputs: BatchEncoding, generate_kwargs: dict[str, Any]) -> Any:
    """Call `generate()`. If a sentence is long, log a warning and show a progress bar that counts tokens."""
    # `input_ids` has the shape (sentences, padded source).
    source_length = inputs["input_ids"].shape[1]
    # A logits processor counts the tokens, so this needs a model that calls logits processors.
    if source_length >= _LONG_SOURCE and inference.runtime.calls_processors:
        logger.warning(
            "a sentence has %s tokens; its time grows with the square of that, so split it.", f"{source_length:,}"
        )
        return _generate_with_progress(inference, inputs, generate_kwargs)

    # The annotation is Any because engines and models have no common class that declares `generate`.
    model: Any = inference.model
    # transformers checks some settings of a generation_config.json only when it uses them.
    with input_errors():
        return model.generate(**inputs, **generate_kwargs)


def _generate_with_progress(inference: Inference, inputs: BatchEncoding, generate_kwargs: dict[str, Any]) -> Any:
    """Call `generate()`, and show a progress bar that counts the tokens of the longest sentence."""
    model: Any = inference.model
    # Most translations are about as long as their source, so the progress bar's total is the length of the source.
    source_length = inputs["input_ids"].shape[1]
    is_silent = not inference.show_progress
    with tqdm(total=source_length, desc="a long sentence", unit=" tokens", leave=False, disable=is_silent) as progress:
        kwargs_with_progress = dict(generate_kwargs)
        kwargs_with_progress["logits_processor"] = _add_token_counter(generate_kwargs.get("logits_processor"), progress)
        return model.generate(**inputs, **kwargs_with_progress)


def _add_token_counter(processors: LogitsProcessorList | None, progress: "tqdm[Any]") -> LogitsProcessorList:
    """Return the given logits processors, if any, followed by a processor that counts each step in a progress bar."""

    # `generate()` calls this at each step. It returns the scores unchanged, so it does not influence the search.
    def count_token(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        progress.update()
        return scores

    processors_with_counter = LogitsProcessorList()
    if processors:
        processors_with_counter.extend(processors)
    processors_with_counter.append(count_token)
    return processors_with_counter


def _collect_search_settings(model: PreTrainedModel | Engine, generate_kwargs: dict[str, Any]) -> GenerationConfig:
    """Return the search settings that a call of `generate()` will use.

    Keyword arguments of the call have priority, then a `generation_config` that is passed to the call, and then the
    model's own `generation_config`. Only the settings in `_DESCRIBING_SETTINGS`, which this module needs, are
    determined in this way. All other settings have the model's values.
    """
    # The calls below change the copy, and leave the model's own settings unchanged. Later values override earlier ones,
    # so the source with the highest priority comes last.
    settings: GenerationConfig = copy.copy(model.generation_config)
    config_of_call: GenerationConfig | None = generate_kwargs.get("generation_config")
    if config_of_call:
        _override_unless_none(settings, vars(config_of_call))
    _override_unless_none(settings, generate_kwargs)
    return settings


def _override_unless_none(settings: GenerationConfig, values: Mapping[str, object]) -> None:
    """Overwrite the settings in `_DESCRIBING_SETTINGS` with the given values, unless a value is missing or None."""
    for name in _DESCRIBING_SETTINGS:
        value = values.get(name)
        if value is not None:
            setattr(settings, name, value)
