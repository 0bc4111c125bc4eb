"""Translate sentences with HTML or XML inside; `markup_document` reads them, `tag_placement` places their tags."""

from collections.abc import Callable

from .markup_document import Document
from .translation_details import Translation


KINDS = ("html", "xml")


def translate_markup(
    translate_texts: Callable[[list[str]], list[Translation]], kind: str, sentences: list[str], keeps_lines: bool
) -> list[Translation]:
    """Translate sentences with markup.

    Args:
        translate_texts (`Callable`): from texts to their translations with alignments.
        kind (`str`): `"html"` or `"xml"`.
        sentences (`list` of `str`): with tags.
        keeps_lines (`bool`): whether the texts of HTML have a line for each block, or one line.

    Returns:
        `list[Translation]`: the texts have markup; tokens and alignments are those of the text without.

    Raises:
        ValueError: if `kind` is unknown, [`Document`] raises one, or the model gives no alignments.
    """
    if kind not in KINDS:
        raise ValueError(f"markup is {kind!r}; choose one of {', '.join(KINDS)}.")
    documents = [Document(kind, sentence) for sentence in sentences]
    texts = [document.text.rstrip() for document in documents]
    if kind == "html" and not keeps_lines:
        texts = [text.replace("\n", " ") for text in texts]
    found = translate_texts(texts)
    return [_with_markup(*each) for each in zip(documents, found, strict=True)]


def _with_markup(document: Document, translation: Translation) -> Translation:
    if translation.alignment is None and document.elements and translation.text:
        raise ValueError(
            "markup is placed by word alignments, which this model does not give; use a single model of this package."
        )
    others = tuple(_with_markup(document, other) for other in translation.alternatives)
    text = document.render(translation.text, translation.alignment or [])
    return translation._replace(text=text, alternatives=others)
