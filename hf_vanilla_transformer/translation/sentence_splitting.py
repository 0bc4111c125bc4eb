"""Split texts into sentences, split sentences that are too long, and join the translations of the pieces."""

import re
from bisect import bisect_right
from collections.abc import Callable
from heapq import nlargest
from itertools import accumulate
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from ..data.target_language import tokenizer_language
from ..data.vocabularies import longest_training_source
from ..support.language_codes import language_of
from ..support.user_errors import needing
from .concurrent_use import encode
from .sentence_ends import is_sentence_end
from .translation_details import Translation
from .words_of_tokens import WORDS


# Matches the empty string after each line break. `str.splitlines()` would also split at control characters such as
# U+001E, which tokenizers remove from the middle of words.
_LINE_ENDS = re.compile(r"(?<=[\n\v\f\x85\u2028\u2029])|(?<=\r)(?!\n)")
# Where a sentence that is too long may be split, best places first.
_BETWEEN_CLAUSES = re.compile(r"[;:—–…؛；：]\s*")  # noqa: RUF001
_AFTER_COMMAS_AND_BRACKETS = re.compile(r"[,)\]،、，。]\s*")  # noqa: RUF001
_BETWEEN_WORDS = re.compile(r"\s+")
_ANYWHERE = re.compile("(?s:.)")
_BREAKS = (_BETWEEN_CLAUSES, _AFTER_COMMAS_AND_BRACKETS, _BETWEEN_WORDS, _ANYWHERE)
# Text that is never split: numbers such as 1,250,000 or 1 250 000, times, URLs and e-mail addresses.
_UNBREAKABLE = re.compile(
    r"(?:\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3}){1,4}(?!\d)|\d+)(?:[^\w\s]\d+)*"
    r"|(?:[a-z][a-z0-9+.-]{0,15}://|www\.|mailto:)[^\s、，。；：！？]+|[a-z0-9_.%+-]{1,64}@[a-z0-9.-]+",  # noqa: RUF001
    re.IGNORECASE,
)
# The rules of `is_sentence_end` look only at the first and last words of a sentence, so this number of characters at
# each of its ends is enough for them.
_CHARACTERS_TO_JUDGE_BY = 100


class Piece(NamedTuple):
    """A sentence of a text, or a part of a sentence that was too long.

    The pieces of a text, each followed by its white space, make up the whole text.

    Args:
        text (`str`): the sentence without white space at its ends; empty for white space before the first sentence.
        space (`str`): the white space that follows.
        is_part (`bool`): whether this is a part of a sentence that was too long.
    """

    text: str
    space: str
    is_part: bool = False


def split_into_pieces(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    language: str | None = None,
    max_tokens: int | None = None,
    code: str = "",
) -> list[Piece]:
    """Split a text into sentences, and sentences with too many tokens into parts.

    A sentence that is too long is split at clauses, but not inside numbers and URLs.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        text (`str`): the text to split.
        language (`str`, *optional*): language code of the text, by default the tokenizer's source language, or else
            English.
        max_tokens (`int`, *optional*): maximum number of tokens of a piece, `</s>` included. By default it is the
            longest source that the model was trained on (`longest_training_source` in `tokenizer_config.json`), or
            else `model_max_length`.
        code (`str`): code of the target language, such as `">>fr<<"`, which is put before each piece when it is
            tokenized. If the text begins with this code, so does the first piece.

    Returns:
        `list[Piece]`: at least one piece, even if the text is empty.
    """
    source_language = language or tokenizer_language(tokenizer, "src_lang")
    most_tokens = longest_training_source(tokenizer) if max_tokens is None else max_tokens

    def fits(sentence: str) -> bool:
        # The code counts, because it is one of the tokens that the model gets.
        coded = f"{code} {sentence}" if code else sentence
        return len(encode(tokenizer, coded).input_ids) <= most_tokens

    written_code = re.match(rf"(\s*)({re.escape(code)}\s*)", text) if code else None
    if written_code is None:
        return split_text(text, source_language, fits) or [Piece("", "")]

    # The code is not a sentence, so it is put before the first piece after splitting the rest.
    pieces = split_text(text[written_code.end() :], source_language, fits) or [Piece("", "")]
    leading_space, code_with_space = written_code.groups()
    pieces[0] = pieces[0]._replace(text=code_with_space + pieces[0].text)
    if leading_space:
        pieces.insert(0, Piece("", leading_space))
    return pieces


def split_text(text: str, language: str | None, fits: Callable[[str], bool]) -> list[Piece]:
    """Split a text into sentences, and sentences that are too long into parts.

    A line break ends a sentence, because the translation would have no place for it inside a sentence. A period after
    an abbreviation of the language does not.

    Args:
        text (`str`): the text to split.
        language (`str`, *optional*): language code of the text, by default English.
        fits (`Callable[[str], bool]`): returns True if a piece is short enough.
    """
    code = (language or "en").lower()
    short_code = language_of(code) or code
    pieces: list[Piece] = []
    for line in _LINE_ENDS.split(text):
        for sentence in _split_line(line, short_code):
            pieces += _split_sentence(sentence, fits)
    return pieces


def _split_line(line: str, language: str) -> list[str]:
    """Split a line into sentences, each with its white space.

    sentencex proposes where sentences end, and [`is_sentence_end`] rejects some of the proposals.
    """
    with needing("text", "split_sentences needs"):
        from sentencex import segment
    # sentencex 1.0 fails on white space of several bytes after an initial, such as "A\u00a0.". A space in its place
    # has the same length, so positions in the line stay valid.
    line_with_spaces = re.sub(r"\s", " ", line)
    sentences = []
    start = 0
    position = 0
    for segment_text in segment(language, line_with_spaces):
        if start < position and is_sentence_end(_without_middle(line, start, position), segment_text, language):
            sentences.append(line[start:position])
            start = position
        position += len(segment_text)
    if start < position:
        sentences.append(line[start:position])
    return sentences


def _without_middle(line: str, start: int, end: int) -> str:
    """Return the text of a line between two positions, without its middle if it is long.

    A line may consist of very many segments that are joined one after the other. If each join copied the whole text,
    the time would grow with the square of the line's length.
    """
    if end - start <= 2 * _CHARACTERS_TO_JUDGE_BY:
        return line[start:end]
    return line[start : start + _CHARACTERS_TO_JUDGE_BY] + line[end - _CHARACTERS_TO_JUDGE_BY : end]


def _split_sentence(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Return the pieces of one sentence: a single piece, or its parts if the sentence does not fit.

    White space before the sentence becomes a piece without text.
    """
    text = sentence.strip()
    if not text:
        return [Piece("", sentence)]
    start = sentence.find(text)
    end = start + len(text)

    pieces = []
    if start > 0:
        pieces.append(Piece("", sentence[:start]))
    parts = split_at_clauses(text, fits)
    for part in parts[:-1]:
        space = part[len(part.rstrip()) :]
        pieces.append(Piece(part.strip(), space, is_part=True))
    pieces.append(Piece(parts[-1].strip(), sentence[end:], is_part=len(parts) > 1))
    return pieces


def split_at_clauses(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence near its middle, and its halves again, until each part fits or is a single character.

    Breaks between clauses are preferred to breaks after commas and brackets, and these to breaks between words. A
    number or a URL that does not fit stays whole.
    """
    stripped = sentence.strip()
    if len(stripped) < 2 or fits(stripped):
        return [sentence]

    forbidden = {len(sentence)}
    for match in _UNBREAKABLE.finditer(sentence):
        forbidden.update(range(match.start() + 1, match.end()))

    middle = len(sentence) // 2
    for pattern in _BREAKS:
        breaks = {match.end() for match in pattern.finditer(sentence)}
        breaks -= forbidden
        if breaks:
            # If two breaks are equally near, the first one is taken.
            nearest = min(breaks, key=lambda position: (abs(position - middle), position))
            return split_at_clauses(sentence[:nearest], fits) + split_at_clauses(sentence[nearest:], fits)
    return [sentence]


def join_texts(pieces: list[Piece], translations: list[str]) -> str:
    """Join the translations of all pieces with the white space of the source text."""
    return "".join(translation + piece.space for piece, translation in zip(pieces, translations, strict=True))


def join_translations(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """Join the translations of all pieces into the translation of their text, with the white space of the text.

    The alternatives of the result are the next best combinations of the pieces' hypotheses, ranked by the sum of their
    scores.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        translations (`list[Translation]`): a translation of each piece.
        words (`re.Pattern[str]`): matches the words that alignments link.
    """
    joined = []
    for hypotheses in _best_combinations(translations):
        joined.append(join_without_alternatives(pieces, hypotheses, words))
    return joined[0]._replace(alternatives=tuple(joined[1:]))


class _Combination(NamedTuple):
    """A hypothesis of each of the first sentences of a text.

    Combinations that begin alike share their beginning, so that long texts need no copies of long lists.

    Args:
        score (`float`): the sum of the scores by which its hypotheses are ranked.
        hypothesis (`Translation`, *optional*): the hypothesis of the last sentence; None if there is no sentence yet.
        previous (`_Combination`, *optional*): the combination for the sentences before the last one.
    """

    score: float
    hypothesis: Translation | None = None
    previous: "_Combination | None" = None

    def hypotheses(self) -> list[Translation]:
        """Return the hypotheses in the order of the sentences."""
        last_first = []
        combination: _Combination | None = self
        while combination is not None and combination.hypothesis is not None:
            last_first.append(combination.hypothesis)
            combination = combination.previous
        return last_first[::-1]


def _best_combinations(translations: list[Translation]) -> list[list[Translation]]:
    """Combine the hypotheses of all sentences, and return the best combinations, best first.

    There are at most as many combinations as the sentence with the most hypotheses has. After each sentence only the
    best ones are kept: a combination that is worse now stays worse with the same continuation.
    """
    count = max(1 + len(translation.alternatives) for translation in translations)
    combinations = [_Combination(0.0)]
    for translation in translations:
        hypotheses = [translation, *translation.alternatives]
        # The search returns truncated hypotheses after all finished ones, even if their scores are higher. So that they
        # stay behind, no hypothesis gets a higher score than the one before it.
        ranking_scores = list(accumulate((hypothesis.score for hypothesis in hypotheses), min))
        extended = []
        for combination in combinations:
            for hypothesis, score in zip(hypotheses, ranking_scores, strict=True):
                extended.append(_Combination(combination.score + score, hypothesis, combination))
        combinations = nlargest(count, extended, key=lambda combination: combination.score)
    return [combination.hypotheses() for combination in combinations]


def join_without_alternatives(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """Join one translation of each piece, with the white space of the text; drop the alternatives.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        translations (`list[Translation]`): a translation of each piece.
        words (`re.Pattern[str]`): matches the words that alignments link.

    Returns:
        `Translation`: its alignment is None if the alignment of any piece is None.
    """
    sources = [piece.text for piece in pieces]
    targets = [translation.text for translation in translations]
    first_source_words = _find_first_words(pieces, sources, words)
    first_target_words = _find_first_words(pieces, targets, words)

    tokens: list[str] = []
    log_probs: list[float] = []
    links: set[tuple[int, int]] = set()
    flags: set[str] = set()
    for translation, first_source, first_target in zip(
        translations, first_source_words, first_target_words, strict=True
    ):
        tokens += translation.tokens
        log_probs += translation.log_probs
        flags |= translation.flags
        for source_word, target_word in translation.alignment or ():
            links.add((first_source + source_word, first_target + target_word))
    if any(piece.is_part for piece in pieces):
        flags.add("split")

    lacks_alignment = any(translation.alignment is None for translation in translations)
    return Translation(
        text=join_texts(pieces, targets),
        score=sum(translation.score for translation in translations),
        tokens=tokens,
        log_probs=log_probs,
        alignment=None if lacks_alignment else sorted(links),
        flags=frozenset(flags),
    )


def _find_first_words(pieces: list[Piece], texts: list[str], words: re.Pattern[str]) -> list[int]:
    """Return the index of the first word of each piece, counted in the joined text.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        texts (`list[str]`): what stands in the place of each piece: its source or its translation.
        words (`re.Pattern[str]`): matches the words. A word may begin in the piece before, if no white space divides
            the two pieces.
    """
    texts_with_space = [text + piece.space for text, piece in zip(texts, pieces, strict=True)]
    word_ends = [word.end() for word in words.finditer("".join(texts_with_space))]
    first_words = []
    start = 0
    for text in texts_with_space:
        first_words.append(bisect_right(word_ends, start))
        start += len(text)
    return first_words
