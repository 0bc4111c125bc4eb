"""Split texts into sentences, and sentences that are too long into parts; join the translations of those."""

import re
from bisect import bisect_right
from collections.abc import Callable
from heapq import nlargest
from itertools import accumulate, product
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from ..data.target_language import tokenizer_language
from ..data.vocabularies import longest_training_source
from ..support.language_codes import language_of
from ..support.user_errors import needing
from .concurrent_use import encode
from .sentence_ends import is_sentence_end
from .translation_details import Translation
from .words_of_tokens import WORDS


# Where a sentence that is too long may be split, best places first: between clauses, at commas and brackets, at words.
# Not str.splitlines(), which splits at controls that tokenizers remove inside of words.
_LINE_ENDS = re.compile(r"(?<=[\n\v\f\x85\u2028\u2029])|(?<=\r)(?!\n)")
# Last, anywhere.
_BREAKS = tuple(re.compile(each) for each in (r"[;:—–…؛；：]\s*", r"[,)\]،、，。]\s*", r"\s+", "(?s:.)"))  # noqa: RUF001
# What is not split: numbers such as 1,250,000 or 1 250 000, times, URLs and addresses of e-mail.
_WHOLE = re.compile(
    r"(?:\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3}){1,4}(?!\d)|\d+)(?:[^\w\s]\d+)*"
    r"|(?:[a-z][a-z0-9+.-]{0,15}://|www\.|mailto:)[^\s、，。；：！？]+|[a-z0-9_.%+-]{1,64}@[a-z0-9.-]+",  # noqa: RUF001
    re.IGNORECASE,
)
# Characters at either side of a sentence that tell whether it ends.
_ENOUGH_TO_JUDGE_BY = 100


class Piece(NamedTuple):
    """A sentence, or a part of one that was too long, without white space at its ends, and the one that follows it."""

    text: str
    space: str
    is_part: bool = False


def split_into_pieces(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    language: str | None = None,
    most: int | None = None,
    code: str = "",
) -> list[Piece]:
    """The sentences of a text in a language, by default the tokenizer's or else English; at least one.

    Sentences with more than `most` tokens are split at clauses, but not inside numbers and URLs; by default `most` are
    those that the model was trained on (`longest_training_source` of the tokenizer's configuration, or else
    `model_max_length`; `</s>` included).

    `code` is that of the target language, which each piece gets before it is tokenized. If the text begins with it, the
    first piece does.
    """
    most = longest_training_source(tokenizer) if most is None else most

    def fits(sentence: str) -> bool:
        coded = f"{code} {sentence}" if code else sentence
        return len(encode(tokenizer, coded).input_ids) <= most

    language = language or tokenizer_language(tokenizer, "src_lang")
    written_code = re.match(rf"(\s*)({re.escape(code)}\s*)", text) if code else None
    if written_code is None:
        return split_text(text, language, fits) or [Piece("", "")]
    first, *others = split_text(text[written_code.end() :], language, fits) or [Piece("", "")]
    pieces = [first._replace(text=written_code[2] + first.text), *others]
    if written_code[1]:
        pieces.insert(0, Piece("", written_code[1]))
    return pieces


def split_text(text: str, language: str | None, fits: Callable[[str], bool]) -> list[Piece]:
    """Split a text into sentences, and sentences that are too long into parts.

    A line break ends a sentence, because inside a translation it would have no place; an abbreviation of the language
    does not. Joined, the text and the white space of all pieces are `text`.
    """
    code = (language or "en").lower()
    known = language_of(code) or code
    sentences = [sentence for line in _LINE_ENDS.split(text) for sentence in _sentences(line, known)]
    return [piece for sentence in sentences for piece in _pieces(sentence, fits)]


def _sentences(line: str, language: str) -> list[str]:
    with needing("text", "split_sentences needs"):
        from sentencex import segment
    # sentencex 1.0 fails on white space of several bytes after an initial, such as "A\u00a0."; spaces are as long.
    sentences = []
    start = 0
    position = 0
    for part in segment(language, re.sub(r"\s", " ", line)):
        if start < position and is_sentence_end(_without_middle(line, start, position), part, language):
            sentences.append(line[start:position])
            start = position
        position += len(part)
    if start < position:
        sentences.append(line[start:position])
    return sentences


def _without_middle(line: str, start: int, end: int) -> str:
    """Return a part of a line, without its middle if it is long, because a line may have very many parts to join."""
    if end - start <= 2 * _ENOUGH_TO_JUDGE_BY:
        return line[start:end]
    return line[start : start + _ENOUGH_TO_JUDGE_BY] + line[end - _ENOUGH_TO_JUDGE_BY : end]


def _pieces(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    text = sentence.strip()
    if not text:
        return [Piece("", sentence)]
    start = sentence.find(text)
    parts = split_at_clauses(text, fits)
    spaces = [part[len(part.rstrip()) :] for part in parts[:-1]] + [sentence[start + len(text) :]]
    pieces = [Piece(part.strip(), space, len(parts) > 1) for part, space in zip(parts, spaces, strict=True)]
    return [Piece("", sentence[:start]), *pieces] if start else pieces


def split_at_clauses(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence in the middle, between clauses or else between words, until each part fits or is a character.

    A number or a URL that does not fit stays whole.
    """
    if len(sentence.strip()) < 2 or fits(sentence.strip()):
        return [sentence]
    inside = {place for whole in _WHOLE.finditer(sentence) for place in range(whole.start() + 1, whole.end())}
    for pattern in _BREAKS:
        if ends := {found.end() for found in pattern.finditer(sentence)} - inside - {len(sentence)}:
            end = min(ends, key=lambda end: (abs(end - len(sentence) // 2), end))
            return split_at_clauses(sentence[:end], fits) + split_at_clauses(sentence[end:], fits)
    return [sentence]


def join_texts(pieces: list[Piece], translations: list[str]) -> str:
    """The translations of all pieces, with the white space of the text."""
    return "".join(translation + piece.space for piece, translation in zip(pieces, translations, strict=True))


def join_translations(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """The translation of a text: those of its sentences with its white space.

    Alternatives are the best combinations of the sentences' hypotheses, by the sum of their scores.
    """
    best, *others = (join_without_alternatives(pieces, each, words) for each in _combinations(translations))
    return best._replace(alternatives=tuple(others))


def _combinations(translations: list[Translation]) -> list[list[Translation]]:
    """The best combinations of one hypothesis of each sentence, best first, as many as a sentence has hypotheses."""
    count = max(1 + len(translation.alternatives) for translation in translations)
    # A score, and the last hypothesis with a link to those before it.
    best: list[tuple[float, Any]] = [(0.0, None)]
    for translation in translations:
        hypotheses = (translation, *translation.alternatives)
        # A truncated hypothesis comes after finished ones with lower scores.
        scores = list(accumulate((each.score for each in hypotheses), min))
        extended = product(best, zip(scores, hypotheses, strict=True))
        best = nlargest(
            count, ((total + score, (before, each)) for (total, before), (score, each) in extended), lambda new: new[0]
        )
    return [_unlinked(last) for _, last in best]


def _unlinked(last: Any) -> list[Translation]:
    found = []
    while last is not None:
        last, each = last
        found.append(each)
    return found[::-1]


def join_without_alternatives(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """The translations of all pieces as one, with the white space of the text; alternatives are left out.

    The alignment is of the words of a pattern.
    """
    texts = [translation.text for translation in translations]
    sides = ([piece.text for piece in pieces], texts)
    first_words = zip(*(_first_words(pieces, side, words) for side in sides), strict=True)
    alignments = [translation.alignment for translation in translations]
    links = {
        (source + one, target + other)
        for (source, target), alignment in zip(first_words, alignments, strict=True)
        for one, other in alignment or ()
    }
    flags = frozenset().union(*(translation.flags for translation in translations))
    return Translation(
        text=join_texts(pieces, texts),
        score=sum(translation.score for translation in translations),
        tokens=[token for translation in translations for token in translation.tokens],
        log_probs=[value for translation in translations for value in translation.log_probs],
        alignment=None if None in alignments else sorted(links),
        flags=flags | {"split"} if any(piece.is_part for piece in pieces) else flags,
    )


def _first_words(pieces: list[Piece], texts: list[str], words: re.Pattern[str]) -> list[int]:
    """For each piece with its text, the index of its first word in the joined text, which may begin before it."""
    parts = [text + piece.space for text, piece in zip(texts, pieces, strict=True)]
    ends = [word.end() for word in words.finditer("".join(parts))]
    starts = list(accumulate(map(len, parts), initial=0))[:-1]
    return [bisect_right(ends, start) for start in starts]
