"""`translate_documents()`: documents of HTML or XML in, the same documents with translated texts out."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal, overload

import torch
from transformers import PreTrainedTokenizerBase

from ...data.target_language import Source, TargetCodes
from ...model.input_checks import copies_letterless
from ...support.argument_checks import check_strings
from ...support.user_errors import InputError
from ...translation.alignment import Aligner
from ...translation.inference import Inference
from ...translation.required_phrases import RequiredPhrases
from ...translation.sentence_splitting import Piece, join_without_alternatives
from ...translation.translate import TextTranslator
from ...translation.translation_details import DetailLevel, Translation
from ...translation.words_of_tokens import WORDS_AND_LETTERS
from .markup_document import FORMATS, Document


@overload
def translate_documents(
    model: Any,
    tokenizer: Any,
    documents: Iterable[str],
    format: str = ...,
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    *,
    return_details: Literal[True, DetailLevel.FLAGS, DetailLevel.ALL],
    **kwargs: Any,
) -> list[Translation]: ...


@overload
def translate_documents(
    model: Any,
    tokenizer: Any,
    documents: Iterable[str],
    format: str = ...,
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    **kwargs: Any,
) -> list[str]: ...


@torch.inference_mode()
def translate_documents(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[str],
    format: str = "html",
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    return_details: bool | DetailLevel = False,
    split_sentences: bool | str = False,
    glossary: RequiredPhrases | None = None,
    copy_letterless: bool | None = None,
    target_lang: str | None = None,
    **generate_kwargs: Any,
) -> list[Any]:
    """Translate the texts of documents block by block, and put the tags inside of each block around the right words.

    A tag comes out around the words that are linked with those inside of it, see `align`; in Chinese, Thai and others,
    whose words no spaces divide, around letters.

    Args:
        model, tokenizer, tokens_per_batch, show_progress, return_details, glossary, generate_kwargs: as in `translate`.
            The model must give alignments if a document has tags inside of a block. Tokens, scores and the alignment of
            a document are those of its texts, one after the other.
        documents (`Iterable[str]`): documents, or parts of them.
        format (`str`): `"html"`, which needs selectolax, or `"xml"`.
        split_sentences (`bool` or `str`): whether to translate each block sentence by sentence; see `translate`.
        copy_letterless (`bool`, *optional*): whether blocks and their parts are their own translations if they have no
            letter, as in `translate`. By default they are also if the model's folder does not say what its training
            pairs do.
        target_lang (`str`, *optional*): the language to translate into, as in `translate`; its code is put before each
            block. A document that begins with a code, before its tags or in its first text, keeps it for all of its
            texts that do not begin with another one.

    Returns:
        `list[str]`, or `list[Translation]` with `return_details`: one translation per document.

    Raises:
        ImportError: if selectolax is missing for HTML, or sentencex for texts to split.
        TypeError: if `documents` is one string, or contains anything but strings.
        ValueError: if `format` is unknown, XML is not well-formed, or the model gives no alignments; and whatever
            `translate` raises.
    """
    if format not in FORMATS:
        raise InputError(f"format is {format!r}; choose one of {', '.join(FORMATS)}.")
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    if copy_letterless is None:
        copy_letterless = copies_letterless(tokenizer, otherwise=True)
    translator = TextTranslator(
        inference,
        generate_kwargs,
        aligner=Aligner(model, tokenizer, WORDS_AND_LETTERS, for_tags=True),
        glossary=glossary,
        split_sentences=split_sentences,
        copy_letterless=copy_letterless,
    )
    codes = inference.codes()
    parsed = []
    texts = []
    for markup in check_strings("documents", documents):
        document, texts_of_document = read_document(format, markup, codes)
        parsed.append(document)
        texts += texts_of_document
    translations_of_texts = iter(translator.translate_texts(texts))
    translations = []
    for document in parsed:
        translations_of_document = list(islice(translations_of_texts, len(document.texts)))
        translations.append(_translation_of_document(document, translations_of_document))
    if DetailLevel.from_argument(return_details) is DetailLevel.TEXT:
        return [translation.text for translation in translations]
    return translations


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


def _translation_of_document(document: Document, translations: list[Translation]) -> Translation:
    """Return the document with the translations of its texts; its other details are those of the texts, line by line.

    Its n-th alternative has the n-th of each text, or the last one that a text has.
    """
    if document.has_tags and any(translation.alignment is None for translation in translations if translation.text):
        raise InputError(
            "markup is placed by word alignments, which this model does not give; use a single model of this package."
        )
    hypotheses_of_texts = [(translation, *translation.alternatives) for translation in translations]
    most_hypotheses = max(map(len, hypotheses_of_texts), default=1)
    written = []
    for number in range(most_hypotheses):
        chosen = []
        for hypotheses in hypotheses_of_texts:
            last = len(hypotheses) - 1
            chosen.append(hypotheses[min(number, last)]._replace(alternatives=()))
        written.append(_write(document, chosen))
    best, *others = written
    return best._replace(alternatives=tuple(others))


def _write(document: Document, translations: list[Translation]) -> Translation:
    """Write the document with one translation of each of its texts."""
    texts = [translation.text for translation in translations]
    links = [translation.alignment or [] for translation in translations]
    if len(translations) == 1:
        details = translations[0]
    else:
        lines = [Piece(text, "\n") for text in document.texts]
        details = join_without_alternatives(lines, translations, WORDS_AND_LETTERS)
    return details._replace(text=document.render(texts, links))
