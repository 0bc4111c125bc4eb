"""Split texts into sentences, and sentences that are too long into parts; join their translations."""

import re
from collections.abc import Callable
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase


# Where a sentence that is too long may be split, best places first: between clauses, at commas and brackets, at words.
_BREAKS = tuple(re.compile(pattern) for pattern in (r"[;:—–…؛；：]\s*", r"[,)\]،、，。]\s*", r"\s+"))  # noqa: RUF001
# Names under which tokenizers have the language of the source: Marian's and ours, FSMT's.
_LANGUAGE = ("source_lang", "src_lang")


class Piece(NamedTuple):
    """A sentence, or a part of one, and the white space that follows it.

    Args:
        text (`str`): what to translate; it neither begins nor ends with white space, and may be empty.
        space (`str`): white space, line breaks included.
        is_part (`bool`): whether the sentence was too long, so that this is a part of it.
    """

    text: str
    space: str
    is_part: bool = False


def source_language(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The code of the language that a tokenizer encodes, such as `"en"`; None if the tokenizer does not tell."""
    found = [getattr(tokenizer, name, None) or tokenizer.init_kwargs.get(name) for name in _LANGUAGE]
    return next((code for code in found if isinstance(code, str) and code), None)


def split_text(text: str, language: str | None, fits: Callable[[str], bool]) -> list[Piece]:
    """Split a text into sentences, and sentences that are too long into parts.

    A line break ends a sentence, because inside a translation it would have no place.

    Args:
        text (`str`): any number of paragraphs.
        language (`str`, *optional*): code of its language, whose abbreviations do not end a sentence; English if None.
        fits (`Callable`): whether a sentence is short enough for the model.

    Returns:
        `list[Piece]`: joined, the text and the white space of all pieces are `text`.

    Raises:
        ImportError: if sentencex is not installed.
    """
    sentences = [sentence for line in text.splitlines(keepends=True) for sentence in _sentences(line, language or "en")]
    return [piece for sentence in sentences for piece in _pieces(sentence, fits)]


def split_at_clauses(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence in the middle, between clauses or else between words, until each part fits.

    Returns:
        `list[str]`: joined, the parts are the sentence. A part of one character may be too long.
    """
    if len(sentence.strip()) < 2 or fits(sentence.strip()):
        return [sentence]
    end = _best_break(sentence)
    return split_at_clauses(sentence[:end], fits) + split_at_clauses(sentence[end:], fits)


def join_texts(pieces: list[Piece], translations: list[str]) -> str:
    """The translations of all pieces, with the white space of the text."""
    return "".join(translation + piece.space for piece, translation in zip(pieces, translations, strict=True))


def _sentences(line: str, language: str) -> list[str]:
    try:
        from sentencex import segment
    except ImportError as error:
        raise ImportError(
            "split_sentences needs sentencex; install it with: pip install '/path/to/the/repository[text]'"
        ) from error
    # sentencex 1.0 fails on white space of several bytes after an initial, such as "A\u00a0."; spaces are as long.
    sentences, end = [], 0
    for found in segment(language, re.sub(r"\s", " ", line)):
        sentences.append(line[end : end + len(found)])
        end += len(found)
    return sentences


def _pieces(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    text = sentence.strip()
    start = sentence.find(text) if text else len(sentence)
    before = [Piece("", sentence[:start])] if start else []
    if not text:
        return before
    parts = split_at_clauses(text, fits)
    spaces = [part[len(part.rstrip()) :] for part in parts[:-1]] + [sentence[start + len(text) :]]
    return before + [Piece(part.strip(), space, len(parts) > 1) for part, space in zip(parts, spaces, strict=True)]


def _best_break(sentence: str) -> int:
    """Where to split a sentence: at the best kind of place that it has, nearest to its middle."""
    middle = len(sentence) // 2
    for pattern in _BREAKS:
        if ends := [found.end() for found in pattern.finditer(sentence) if found.end() < len(sentence)]:
            return min(ends, key=lambda end: abs(end - middle))
    return middle
