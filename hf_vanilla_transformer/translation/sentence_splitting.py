"""Split texts into sentences, split overlong sentences into parts, and join the translations of these pieces."""

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
# Where an overlong sentence may be split, best places first.
_BETWEEN_CLAUSES = re.compile(r"[;:—–…؛；：]\s*")  # noqa: RUF001
_AFTER_COMMAS_AND_BRACKETS = re.compile(r"[,)\]،、，。]\s*")  # noqa: RUF001
_BETWEEN_WORDS = re.compile(r"\s+")
_ANYWHERE = re.compile("(?s:.)")
_BREAKS = (_BETWEEN_CLAUSES, _AFTER_COMMAS_AND_BRACKETS, _BETWEEN_WORDS, _ANYWHERE)
# Text that is never split: numbers such as 1,250,000 or 1 250 000, times of day, URLs and e-mail addresses.
_UNBREAKABLE = re.compile(
    r"(?:\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3}){1,4}(?!\d)|\d+)(?:[^\w\s]\d+)*"
    r"|(?:[a-z][a-z0-9+.-]{0,15}://|www\.|mailto:)[^\s、，。；：！？]+|[a-z0-9_.%+-]{1,64}@[a-z0-9.-]+",  # noqa: RUF001
    re.IGNORECASE,
)
# The rules of `is_sentence_end` depend only on the first and last words of a sentence, so they need no more than this
# number of characters at each end.
_CHARACTERS_TO_JUDGE_BY = 100


class Piece(NamedTuple):
    """A sentence of a text, or a part of an overlong sentence, with the white space after it.

    The concatenated pieces of a text, each followed by its white space, are the whole text.

    Args:
        text (`str`): the sentence without white space at its ends; empty if the piece is white space before a sentence.
        space (`str`): the white space that follows.
        is_part (`bool`): whether this is a part of an overlong sentence.
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
    """Split a text into sentences, and split sentences with too many tokens into parts.

    An overlong sentence is split between clauses if possible, and never inside numbers and URLs.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        text (`str`): the text to split.
        language (`str`, *optional*): language code of the text. The default is the tokenizer's source language, or else
            English.
        max_tokens (`int`, *optional*): maximum number of tokens per piece, `</s>` included. The default is the length
            of the longest source that the model was trained on (`longest_training_source` in
            `tokenizer_config.json`), or else `model_max_length`.
        code (`str`): target-language code, such as `">>fr<<"`, which counts toward the tokens of each piece. If the
            text begins with this code, so does the first piece that is not just white space.

    Returns:
        `list[Piece]`: at least one piece, even if the text is empty.
    """
    source_language = language or tokenizer_language(tokenizer, "src_lang")
    most_tokens = longest_training_source(tokenizer) if max_tokens is None else max_tokens

    def fits(sentence: str) -> bool:
        # The code counts, because the model receives it as a token.
        coded = f"{code} {sentence}" if code else sentence
        return len(encode(tokenizer, coded).input_ids) <= most_tokens

    written_code = re.match(rf"(\s*)({re.escape(code)}\s*)", text) if code else None
    if written_code is None:
        return split_text(text, source_language, fits) or [Piece("", "")]

    # The code is not a sentence, so the rest of the text is split, and the code is then put before the first piece.
    pieces = split_text(text[written_code.end() :], source_language, fits) or [Piece("", "")]
    leading_space, code_with_space = written_code.groups()
    pieces[0] = pieces[0]._replace(text=code_with_space + pieces[0].text)
    if leading_space:
        pieces.insert(0, Piece("", leading_space))
    return pieces


def split_text(text: str, language: str | None, fits: Callable[[str], bool]) -> list[Piece]:
    """Split a text into sentences, and split sentences for which `fits` returns False into parts.

    A line break always ends a sentence, because a line break inside a sentence could not be kept in the translation.
    The period of an abbreviation does not end a sentence.

    Args:
        text (`str`): the text to split.
        language (`str`, *optional*): language code of the text. The default is English.
        fits (`Callable[[str], bool]`): returns True if a sentence or a part is short enough.
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

    The library sentencex proposes where sentences end, and [`is_sentence_end`] rejects some of its proposals.
    """
    with needing("text", "split_sentences needs"):
        from sentencex import segment
    # sentencex 1.0 fails on multi-byte white space after an initial, such as "A\u00a0.". Each such character is
    # replaced by one space, so positions in the line stay valid.
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
    """Return a line's text between two positions, and leave out its middle if it is long.

    A line may have thousands of segments that all belong to one sentence. If each test for a sentence end copied the
    whole text before it, the time would grow with the square of the line's length.
    """
    if end - start <= 2 * _CHARACTERS_TO_JUDGE_BY:
        return line[start:end]
    return line[start : start + _CHARACTERS_TO_JUDGE_BY] + line[end - _CHARACTERS_TO_JUDGE_BY : end]


def _split_sentence(sentence: str, fits: Callable[[str], bool]) -> list[Piece]:
    """Convert a sentence into a single piece, or into several parts if the sentence does not fit.

    White space before the sentence becomes a separate piece without text.
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
    """Split a sentence near its middle, and split the halves again until each part fits or cannot be split.

    The sentence is split between clauses if possible, otherwise after a comma or a bracket, otherwise between words,
    and otherwise between any two characters. A number or a URL stays whole even if it does not fit.
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
            # If two breaks are equally near to the middle, the first one is taken.
            nearest = min(breaks, key=lambda position: (abs(position - middle), position))
            return split_at_clauses(sentence[:nearest], fits) + split_at_clauses(sentence[nearest:], fits)
    return [sentence]


def join_texts(pieces: list[Piece], translations: list[str]) -> str:
    """Join the pieces' translations into one text, with the white space of the source text between them."""
    return "".join(translation + piece.space for piece, translation in zip(pieces, translations, strict=True))


def join_translations(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """Join the pieces' translations into a translation of the whole text, including its alternatives.

    The result keeps the white space of the source text. Its alternatives are the next best combinations of the pieces'
    hypotheses, ranked by the sum of the hypotheses' scores.

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
    """One hypothesis for each of a text's first n sentences, stored as a linked list.

    Combinations that begin with the same hypotheses share these nodes, so long texts need no copies of long lists.

    Args:
        score (`float`): the sum of the hypotheses' ranking scores.
        hypothesis (`Translation`, *optional*): the hypothesis for the last sentence; None if there is no sentence yet.
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
    """Return the best combinations of one hypothesis per sentence, best first.

    If the sentence with the most hypotheses has n of them, at most n combinations are returned. Only the n best are
    kept after each sentence, because a combination that scores lower than another one still scores lower after both are
    extended by the same hypotheses.
    """
    count = max(1 + len(translation.alternatives) for translation in translations)
    combinations = [_Combination(0.0)]
    for translation in translations:
        hypotheses = [translation, *translation.alternatives]
        # The search returns truncated hypotheses after all finished ones, even if their scores are higher. To keep this
        # order, no hypothesis gets a higher ranking score than the one before it.
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
    """Join the pieces' translations into a translation of the whole text, and ignore their alternatives.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        translations (`list[Translation]`): a translation of each piece.
        words (`re.Pattern[str]`): matches the words that alignments link.

    Returns:
        `Translation`: the joined translation. Its alignment is None if the alignment of any piece is None.
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
    """Return, for each piece, the index of its first word among the words of the joined text.

    If no white space separates two pieces, the first word of the second piece may begin in the first piece.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        texts (`list[str]`): the text of each piece: either its source or its translation.
        words (`re.Pattern[str]`): matches the words.
    """
    texts_with_space = [text + piece.space for text, piece in zip(texts, pieces, strict=True)]
    word_ends = [word.end() for word in words.finditer("".join(texts_with_space))]
    first_words = []
    start = 0
    for text in texts_with_space:
        first_words.append(bisect_right(word_ends, start))
        start += len(text)
    return first_words
