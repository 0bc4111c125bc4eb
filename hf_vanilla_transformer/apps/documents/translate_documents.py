"""Translate the texts of HTML or XML documents, and leave everything else in the documents unchanged."""

from collections.abc import Iterable
from typing import Any, Literal, overload

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.target_language import Source, TargetCodes
from ...model.input_checks import copies_letterless
from ...support.argument_checks import check_strings
from ...support.user_errors import InputError
from ...translation.alignment import Aligner
from ...translation.engine import Engine
from ...translation.inference import Inference
from ...translation.required_phrases import RequiredPhrases
from ...translation.sentence_splitting import Piece, join_without_alternatives
from ...translation.translate import TextTranslator
from ...translation.translation_details import DetailLevel, Translation
from ...translation.words_of_tokens import WORDS_AND_LETTERS
from .markup_document import FORMATS, Document


@overload
def translate_documents(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
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
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[str],
    format: str = ...,
    tokens_per_batch: int = ...,
    show_progress: bool = ...,
    **kwargs: Any,
) -> list[str]: ...


@torch.inference_mode()
def translate_documents(
    model: PreTrainedModel | Engine,
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
) -> list[str] | list[Translation]:
    """Translate HTML or XML documents block by block, and keep inline tags around the corresponding words.

    In a translation, an inline element encloses the words that are aligned with the words inside the original element;
    see `align`. In scripts without spaces between words, such as Chinese and Thai, letters are aligned instead.

    The arguments have the same meaning as in `translate`, with a block in place of a sentence. Only the differences are
    described in detail here.

    Args:
        model (`PreTrainedModel` or `Engine`): the model. If a document has tags inside a block, the model must support
            alignments.
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer of the model.
        documents (`Iterable[str]`): documents, or parts of documents.
        format (`str`): `"html"`, which needs selectolax, or `"xml"`.
        tokens_per_batch (`int`): the maximum number of source tokens per batch.
        show_progress (`bool`): True to show a progress bar.
        return_details (`bool`): True to return [`Translation`] objects. The tokens, the score and the alignment of a
            document combine the details of its texts in order.
        split_sentences (`bool` or `str`): True, or the language code of the texts, to translate each block sentence by
            sentence.
        glossary (`Glossary`, *optional*): terms and their required translations.
        copy_letterless (`bool`, *optional*): True to copy blocks without letters, such as a cell with "2024", instead
            of translating them. By default, they are copied unless the model has learned from its training pairs to
            translate such texts.
        target_lang (`str`, *optional*): the language to translate into. Its code is put before each block. If a
            document starts with a code, either before its tags or in its first text, this code applies to all texts of
            the document that do not start with a code themselves.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `list[str]`, or `list[Translation]` with `return_details`: one translation per document.

    Raises:
        ImportError: if selectolax (needed for HTML) or sentencex (needed for `split_sentences`) is missing.
        TypeError: if `documents` is a single string, or contains anything other than strings.
        ValueError: if `format` is unknown, if XML is not well-formed, if tags must be placed but the model does not
            support alignments, or for any reason for which `translate` raises it.
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
    parsed_documents, sources = _read_documents(format, documents, inference.codes())
    translations_of_texts = translator.translate_texts(sources)
    translations = _assemble_documents(parsed_documents, translations_of_texts)
    if DetailLevel.from_argument(return_details) is DetailLevel.TEXT:
        return [translation.text for translation in translations]
    return translations


def _read_documents(format: str, documents: Iterable[str], codes: TargetCodes) -> tuple[list[Document], list[Source]]:
    """Parse documents, and return them and their texts, one document after the other.

    The texts of all documents are in one list, so that texts from different documents share batches.
    """
    parsed_documents: list[Document] = []
    sources: list[Source] = []
    for markup in check_strings("documents", documents):
        document, sources_of_document = read_document(format, markup, codes)
        parsed_documents.append(document)
        sources += sources_of_document
    return parsed_documents, sources


def read_document(format: str, markup: str, codes: TargetCodes) -> tuple[Document, list[Source]]:
    """Parse an HTML or XML document, and return the document and its texts, with the codes of their target languages.

    If the document starts with a code, either before its tags or in its first text, this code applies to all texts that
    do not start with a code themselves.
    """
    # A code before the tags, as in ">>fr<< <p>one</p>", is removed first, because XML with text before its prolog is
    # not well-formed.
    source_of_document = codes.read(markup)
    document = Document(format, source_of_document.text)
    has_code_before_tags = source_of_document.text != markup
    if has_code_before_tags or not document.texts:
        code_of_document = source_of_document.code
    else:
        # If the first text has no code either, this is the default code.
        code_of_document = codes.read(document.texts[0]).code
    sources_of_texts = [codes.read(text, code_of_document) for text in document.texts]
    return document, sources_of_texts


def _assemble_documents(documents: list[Document], translations_of_texts: list[Translation]) -> list[Translation]:
    """Assemble the translation of each document.

    Args:
        documents: the documents.
        translations_of_texts: the translations of the texts of all documents, one document after the other.
    """
    translations: list[Translation] = []
    # Each document gets as many translations as it has texts.
    start = 0
    for document in documents:
        end = start + len(document.texts)
        translations.append(_translate_document(document, translations_of_texts[start:end]))
        start = end
    return translations


def _translate_document(document: Document, translations: list[Translation]) -> Translation:
    """Assemble the translation of a document, and its alternatives, from the translations of its texts."""
    _check_alignments(document, translations)
    # For each text, its best translation and the alternatives to it.
    hypotheses_of_texts = [[translation, *translation.alternatives] for translation in translations]
    # A document without texts has one translation, which is the document itself.
    num_hypotheses = max(map(len, hypotheses_of_texts), default=1)
    translated_documents: list[Translation] = []
    for rank in range(num_hypotheses):
        chosen_hypotheses = _choose_hypotheses(hypotheses_of_texts, rank)
        translated_documents.append(_write_document(document, chosen_hypotheses))
    best_document = translated_documents[0]
    alternatives = tuple(translated_documents[1:])
    return best_document._replace(alternatives=alternatives)


def _choose_hypotheses(hypotheses_of_texts: list[list[Translation]], rank: int) -> list[Translation]:
    """Return the hypothesis of each text with the given rank, without its alternatives.

    A text with fewer hypotheses contributes its last one.
    """
    chosen_hypotheses: list[Translation] = []
    for hypotheses in hypotheses_of_texts:
        last_rank = len(hypotheses) - 1
        hypothesis = hypotheses[min(rank, last_rank)]
        chosen_hypotheses.append(hypothesis._replace(alternatives=()))
    return chosen_hypotheses


def _check_alignments(document: Document, translations: list[Translation]) -> None:
    """Raise InputError if a document has tags to place, but a translation of its texts has no alignment.

    Empty translations need no alignment.
    """
    if not document.has_tags:
        return
    for translation in translations:
        if translation.text and translation.alignment is None:
            raise InputError(
                "markup is placed by word alignments, which this model does not give; use a single model of this "
                "package."
            )


def _write_document(document: Document, translations: list[Translation]) -> Translation:
    """Write a document with one translation of each of its texts, and combine the details of these translations.

    Details are, for example, tokens and scores.
    """
    translated_texts = [translation.text for translation in translations]
    # A translation may lack an alignment if there are no tags to place.
    links = [translation.alignment or [] for translation in translations]
    translated_document = document.render(translated_texts, links)
    if len(translations) == 1:
        return translations[0]._replace(text=translated_document)
    # The details of several texts are combined as if each text were one line.
    lines = [Piece(text, "\n") for text in document.texts]
    details = join_without_alternatives(lines, translations, WORDS_AND_LETTERS)
    return details._replace(text=translated_document)
