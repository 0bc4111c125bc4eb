"""`translate()`: sentences in, translations out, in batches of similar length and in the order of the sentences.

Each layer calls the next one: documents with tags, texts of several sentences, sentences, batches of sentences.
"""

import copy
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, overload

import torch
from tqdm.auto import tqdm
from transformers import LogitsProcessorList, PreTrainedTokenizerBase

from ..apps.documents.markup_document import KINDS, Document
from ..apps.terms.glossary import CELLS_PER_TOKEN, Glossary, PhraseSizes, letter_edges, phrases_of
from ..data.target_language import Source, TargetCodes
from ..model.constrained_beam_search import check_is_beam_search
from ..model.generation_settings import SEARCH_SETTINGS
from ..model.input_checks import check_generated, copies_letterless, has_letters, is_blank, sides_of
from ..support.argument_checks import check_strings
from ..support.user_errors import InputError, input_errors
from .alignment import Aligner
from .concurrent_use import encode, evaluating
from .inference import Inference
from .sentence_splitting import Piece, join, joined, pieces_of
from .translation_details import Translation, describe, untranslated
from .words_of_tokens import WORDS, WORDS_AND_LETTERS, word_at


logger = logging.getLogger(__name__)

# With up to this many beams, batches have the size that was asked for.
_USUAL_BEAMS = 8
# From this many source tokens on, most of the time of base goes to attention, and grows with the square of the length.
_LONG = 2_000
# Numbers that the search with phrases may compute in each step, for each beam and each source token that fits a batch.
# With 8 beams and the usual 4,096 tokens they take 25 MB, and 25 ms per step on one thread.
_CELLS_PER_SOURCE_TOKEN = 25
# Settings of a search that say how to read its result.
_SETTINGS = [name for name, setting in SEARCH_SETTINGS.items() if setting.describes_result]


@overload
def translate(
    model: Any,
    tokenizer: Any,
    sentences: Iterable[str],
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    *,
    return_details: Literal[True, "flags"],
    **kwargs: Any,
) -> list[Translation]: ...


@overload
def translate(
    model: Any,
    tokenizer: Any,
    sentences: Iterable[str],
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    **kwargs: Any,
) -> list[str]: ...


@torch.inference_mode()
def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    return_details: bool | Literal["flags"] = False,
    split_sentences: bool | str = False,
    glossary: Mapping[str, str | Sequence[str]] | Glossary | None = None,
    markup: str | None = None,
    copy_letterless: bool | None = None,
    target_lang: str | None = None,
    **generate_kwargs: Any,
) -> list[Any]:
    """Translate sentences in batches of similar length; the translations keep the order of the sentences.

    A sentence of 2,000 tokens or more gets a warning, because its time grows with the square of its length (Table 1).

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sentences (`Iterable[str]`): sources; one without visible characters is its own translation.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included; a longer sentence is its
            own batch. More than 8 beams make batches smaller in proportion.
        show_progress (`bool`): whether to show a progress bar, in sentences, and another one for the tokens of each
            sentence that gets a warning.
        return_details (`bool` or `"flags"`): return [`Translation`] objects, with scores, tokens and log-probabilities,
            instead of texts. One more forward pass per batch computes them; `"flags"` does without it, and gives text,
            tokens and flags only.
        split_sentences (`bool` or `str`): whether `sentences` are texts to split into sentences, which needs sentencex;
            a string is the code of their language, by default the tokenizer's or else English. Paragraphs, line breaks
            and white space are kept. A sentence with more tokens than any that the model was trained on
            (`longest_training_source` in `tokenizer_config.json`) is split at clauses. False for test sets, because it
            changes their scores.
        glossary (`Mapping[str, str | Sequence[str]]`, *optional*): from terms to the translations that they must have;
            or a [`~hf_vanilla_transformer.apps.terms.glossary.Glossary`], which is made once for many calls. Needs
            beam search, best with more beams than the translations of a sentence's terms have tokens.
        markup (`str`, *optional*): `"html"` or `"xml"`, if sentences are documents, or parts of them. Their text is
            translated block by block, and each tag inside of a block comes out around the words that are linked with
            those inside of it, see `align`; in Chinese, Thai and others, whose words no spaces divide, around letters.
            HTML needs selectolax.
        copy_letterless (`bool`, *optional*): whether sentences, and parts of documents and of texts to split, are their
            own translations if they have no letter, such as `"2024"`, and no term of a glossary. By default they are if
            under 1 % of the model's training pairs translate such a text into a different one
            (`translated_letterless_share` in `tokenizer_config.json`), and with `markup` if the folder does not say.
        target_lang (`str`, *optional*): the language to translate into, such as `"fr"`, for a model of several target
            languages, as some of OPUS-MT are. Its code in the vocabulary, such as `>>fr<<`, is put before each
            sentence, each part of a split one, and each block of a document. By default it is the language that `train`
            saved with the tokenizer. A text that begins with a code keeps it for all of its parts. For a model of one
            target language it is checked.
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
            model cannot be forced; or with `markup`, if XML is not well-formed, or the model gives no alignments; or if
            the model does not translate into `target_lang`, or needs one and a text has no code.
    """
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    documents = list(check_strings("sentences", sentences))
    forced_phrases = generate_kwargs.pop("forced_phrases", None)
    if markup not in (None, *KINDS):
        raise InputError(f"markup is {markup!r}; choose one of {', '.join(KINDS)}.")
    if (split_sentences or markup) and forced_phrases is not None:
        raise InputError("forced_phrases is for sentences, not for texts to split; give a glossary instead.")
    # Alignments place tags.
    decodes_again = return_details is True or markup is not None
    words = WORDS_AND_LETTERS if markup else WORDS
    if copy_letterless is None:
        copy_letterless = copies_letterless(tokenizer, otherwise=markup is not None)
    options = _Options(
        inference,
        decodes_again,
        words,
        generate_kwargs,
        glossary,
        forced_phrases,
        split_sentences,
        copy_letterless,
    )
    if markup:
        found = _translate_documents(documents, markup, options)
    else:
        codes = inference.codes()
        found = _translate_texts([codes.read(document) for document in documents], options)
    return found if return_details else [translation.text for translation in found]


@dataclass
class _Options:
    inference: Inference
    decodes_again: bool
    words: re.Pattern[str]
    generate_kwargs: dict[str, Any]
    glossary: Mapping[str, str | Sequence[str]] | Glossary | None
    forced_phrases: Sequence[Sequence] | None
    split_sentences: bool | str
    copy_letterless: bool


def _translate_documents(documents: list[str], kind: str, options: _Options) -> list[Translation]:
    """Translate the texts of documents, block by block, and write them with these."""
    codes = options.inference.codes()
    parsed = []
    sources = []
    for document in documents:
        document_with_texts, sources_of_document = read_document(kind, document, codes)
        parsed.append(document_with_texts)
        sources += sources_of_document
    found = iter(_translate_texts(sources, options))
    return [_write(document, list(islice(found, len(document.texts)))) for document in parsed]


def read_document(kind: str, markup: str, codes: TargetCodes) -> tuple[Document, list[Source]]:
    """Parse a document of HTML or XML, and read its texts with the codes of their target languages.

    A code at the beginning of the document, before its tags or in its first text, is that of all texts that do not
    begin with another one.
    """
    # The code is no markup; XML would not be well-formed with it.
    whole = codes.read(markup)
    document = Document(kind, whole.text)
    has_code_before_tags = whole.text != markup
    code_of_document = whole.code
    if document.texts and not has_code_before_tags:
        # If the first text has no code either, this is the default again.
        code_of_document = codes.read(document.texts[0]).code
    return document, [codes.read(text, code_of_document) for text in document.texts]


def _write(document: Document, translations: list[Translation]) -> Translation:
    """A document with the translations of its texts; tokens, scores and alignment are those of the texts, line by line.

    Its n-th alternative has the n-th of each text, or the last one that a text has.
    """
    if document.has_tags and any(translation.alignment is None for translation in translations if translation.text):
        raise InputError(
            "markup is placed by word alignments, which this model does not give; use a single model of this package."
        )
    hypotheses = [(translation, *translation.alternatives) for translation in translations]
    found = []
    for number in range(max(map(len, hypotheses), default=1)):
        chosen = [each[min(number, len(each) - 1)]._replace(alternatives=()) for each in hypotheses]
        text = document.render([each.text for each in chosen], [each.alignment or [] for each in chosen])
        lines = [Piece(each, "\n") for each in document.texts]
        whole = joined(lines, chosen, WORDS_AND_LETTERS) if len(lines) != 1 else chosen[0]
        found.append(whole._replace(text=text))
    return found[0]._replace(alternatives=tuple(found[1:]))


def _translate_texts(texts: list[Source], options: _Options) -> list[Translation]:
    """Translate texts, as a whole or sentence by sentence; white space and line breaks stay."""
    if not options.split_sentences:
        return _translate_sentences(texts, options)
    tokenizer, codes = options.inference.tokenizer, options.inference.codes()
    language = options.split_sentences if isinstance(options.split_sentences, str) else None
    pieces = [pieces_of(tokenizer, text.written, language, code=text.code) for text in texts]
    sentences = []
    for text, pieces_of_text in zip(texts, pieces, strict=True):
        sentences += [codes.read(piece.text, text.code) for piece in pieces_of_text]
    translations = iter(_translate_sentences(sentences, options))
    return [join(each, list(islice(translations, len(each))), options.words) for each in pieces]


def _translate_sentences(sentences: list[Source], options: _Options) -> list[Translation]:
    """Translate sentences, each with the phrases that its translation must have."""
    model, tokenizer = options.inference.model, options.inference.tokenizer
    glossary = options.glossary
    if glossary is not None and not isinstance(glossary, Glossary):
        glossary = Glossary(glossary, tokenizer)
    texts = [sentence.text for sentence in sentences]
    phrases = phrases_of(texts, glossary, options.forced_phrases)
    if glossary is not None or any(phrases):
        runtime = options.inference.runtime
        if not runtime.takes_phrases:
            raise InputError(
                f"terms and forced_phrases do not work with {runtime.description}; leave them out, or use another."
            )
        check_is_beam_search(_search_settings(model, options.generate_kwargs))
    sizes = [PhraseSizes()] * len(sentences)
    if glossary is not None:
        edges = letter_edges(tokenizer, model.config.vocab_size)
        options.generate_kwargs.setdefault("letter_edges", edges)
        sizes = [glossary.sizes(text) for text in texts]
    return _translate_batches(sentences, phrases, sizes, options)


def _translate_batches(
    sentences: list[Source], phrases: list[list], sizes: list[PhraseSizes], options: _Options
) -> list[Translation]:
    """Translate sentences in batches of similar length; they are smaller where terms have many or long translations."""
    inference, generate_kwargs = options.inference, options.generate_kwargs
    model, tokenizer = inference.model, inference.tokenizer
    codes = inference.codes()
    translations = [_untranslated(sentence, options.words) for sentence in sentences]
    indices = []
    for index, sentence in enumerate(sentences):
        # A glossary may have terms such as "24/7".
        is_copied = options.copy_letterless and not has_letters(sentence.text) and not phrases[index]
        if not is_blank(sentence.text) and not is_copied:
            indices.append(index)
    encoded = encode(tokenizer, [codes.join(sentences[index]) for index in indices]).input_ids if indices else []
    settings = _search_settings(model, generate_kwargs)
    if settings.stop_strings and inference.runtime.calls_processors:
        generate_kwargs = {**generate_kwargs, "tokenizer": sides_of(tokenizer)[1]}
    aligner = Aligner(model, tokenizer, options.words, options.words is not WORDS) if options.decodes_again else None
    if isinstance(settings.num_beams, int):  # generate() raises an error for anything else.
        budget = inference.tokens_per_batch * _USUAL_BEAMS // max(_USUAL_BEAMS, settings.num_beams)
        inference = replace(inference, tokens_per_batch=max(1, budget))
    batches = inference.batches([len(ids) for ids in encoded], "translating", "sentences")
    most_cells = inference.tokens_per_batch * _CELLS_PER_SOURCE_TOKEN
    sizes_of_rows = [sizes[index] for index in indices]
    with evaluating(model):
        for batch in (part for whole in batches for part in _split_by_phrases(whole, sizes_of_rows, most_cells)):
            inputs = tokenizer.pad({"input_ids": [encoded[row] for row in batch]}, return_tensors="pt")
            forced = [phrases[indices[row]] for row in batch]
            arguments = {**generate_kwargs, "forced_phrases": forced} if any(forced) else generate_kwargs
            output = _generate(inference, inputs.to(model.device), arguments)
            sequences = getattr(output, "sequences", output).unflatten(0, (len(batch), -1))
            check_generated(model, tokenizer, sequences[:, 0])
            sources = [(sentences[indices[row]].written, encoded[row]) for row in batch]
            found = describe(replace(inference, show_progress=False), aligner, sources, sequences, settings)
            for row, translation in zip(batch, found, strict=True):
                translations[indices[row]] = translation
    return translations


def _untranslated(sentence: Source, words: re.Pattern[str]) -> Translation:
    """Return a sentence as its own translation, because the model does not get it.

    A code at its beginning is left out; it counts as a word of the source.
    """
    translation = untranslated(sentence.text, words)
    first_word = word_at(sentence.written, len(sentence.written) - len(sentence.text), words)
    links = [(first_word + source_word, target_word) for source_word, target_word in translation.alignment or ()]
    return translation._replace(alignment=links)


def _split_by_phrases(batch: list[int], sizes: list[PhraseSizes], most_cells: int) -> list[list[int]]:
    """Split a batch so that no part computes more than `most_cells`, and little of that for padding.

    A row that has more cells than that is a part of its own. Padding may double the cells of a part. It may also take
    as long as the model takes for one token of each row, so that batches with short phrases stay whole.
    """
    parts: list[list[int]] = []
    # Of the last part: the sizes to which its rows are padded, and its cells without padding.
    padded = PhraseSizes()
    cells = 0
    # Rows with phrases of similar sizes are next to each other; the others keep their order.
    for row in sorted(batch, key=lambda row: -sizes[row].cells):
        num_rows = len(parts[-1]) + 1 if parts else 1
        padded_with_row = padded.pad(sizes[row])
        cells_with_row = cells + sizes[row].cells
        most_with_padding = 2 * cells_with_row + num_rows * CELLS_PER_TOKEN
        fits = num_rows * padded_with_row.cells <= min(most_cells, most_with_padding)
        if parts and fits:
            parts[-1].append(row)
            padded = padded_with_row
            cells = cells_with_row
        else:
            parts.append([row])
            padded = sizes[row]
            cells = sizes[row].cells
    return parts


def _generate(inference: Inference, inputs: Any, generate_kwargs: dict[str, Any]) -> Any:
    """Call `generate()`, with a warning and a progress bar in tokens if a sentence is long."""
    model = inference.model
    length = inputs["input_ids"].shape[1]
    if length < _LONG or not inference.runtime.calls_processors:
        # transformers checks some settings of a generation_config.json where it uses them.
        with input_errors():
            return model.generate(**inputs, **generate_kwargs)
    logger.warning("a sentence has %s tokens; its time grows with the square of that, so split it.", f"{length:,}")
    # Most translations are about as long as their source.
    is_silent = not inference.show_progress
    with tqdm(total=length, desc="a long sentence", unit=" tokens", leave=False, disable=is_silent) as progress:

        def count_step(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
            progress.update()
            return scores

        processors = LogitsProcessorList([*(generate_kwargs.get("logits_processor") or []), count_step])
        return model.generate(**inputs, **{**generate_kwargs, "logits_processor": processors})


def _search_settings(model: Any, generate_kwargs: dict[str, Any]) -> Any:
    """The model's `generation_config` with the settings of a call of `generate()` that checks and details need."""
    settings = copy.copy(model.generation_config)
    for given in (vars(generate_kwargs.get("generation_config") or settings), generate_kwargs):
        for name in _SETTINGS:
            if given.get(name) is not None:
                setattr(settings, name, given[name])
    return settings
