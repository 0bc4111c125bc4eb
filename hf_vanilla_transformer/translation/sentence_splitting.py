"""Split texts into sentences, split overlong sentences into parts, and join the translations of these pieces."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import nlargest
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


# Matches the empty string after each line break, but not inside "\r\n". `str.splitlines()` would also split at control
# characters such as U+001E, which tokenizers remove from the middle of words.
_LINE_ENDS = re.compile(r"(?<=[\n\v\f\x85\u2028\u2029])|(?<=\r)(?!\n)")
# Where an overlong sentence may be split, best places first.
_BETWEEN_CLAUSES = re.compile(r"[;:—–…؛；：]\s*")  # noqa: RUF001
_AFTER_COMMAS_AND_BRACKETS = re.compile(r"[,)\]،、，。]\s*")  # noqa: RUF001
_BETWEEN_WORDS = re.compile(r"\s+")
_ANYWHERE = re.compile("(?s:.)")
_BREAKS = (_BETWEEN_CLAUSES, _AFTER_COMMAS_AND_BRACKETS, _BETWEEN_WORDS, _ANYWHERE)
# Text that is never split: numbers such as 1,250,000 or 1 250 000 and times such as 10:30 (the first line), URLs, and
# e-mail addresses (the second line).
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
        coded_sentence = f"{code} {sentence}" if code else sentence
        return len(encode(tokenizer, coded_sentence).input_ids) <= most_tokens

    # The code is not a sentence, so only the text after it is split.
    prefix = _find_code(text, code)
    pieces = split_text(text.removeprefix(prefix), source_language, fits)
    if not pieces:
        pieces = [Piece("", "")]
    if not prefix:
        return pieces
    return _put_code_before(pieces, prefix)


def _find_code(text: str, code: str) -> str:
    """Return the target-language code at the beginning of a text, with the white space before and after the code.

    For example, the result for `" >>fr<< Two dogs."` is `" >>fr<< "`. It is empty if the text does not begin with the
    code.
    """
    text_from_code = text.lstrip()
    if not code or not text_from_code.startswith(code):
        return ""
    text_after_code = text_from_code.removeprefix(code).lstrip()
    return text[: len(text) - len(text_after_code)]


def _put_code_before(pieces: list[Piece], prefix: str) -> list[Piece]:
    """Return the pieces with a target-language code at the beginning of the first piece.

    `prefix` is the code with the white space around it, as [`_find_code`] returns it. White space before the code
    becomes a separate piece without text.
    """
    code_with_space = prefix.lstrip()
    leading_space = prefix.removesuffix(code_with_space)
    coded_pieces = []
    if leading_space:
        coded_pieces.append(Piece(text="", space=leading_space))
    first_piece = pieces[0]
    coded_pieces.append(first_piece._replace(text=code_with_space + first_piece.text))
    coded_pieces += pieces[1:]
    return coded_pieces


def split_text(text: str, language: str | None, fits: Callable[[str], bool]) -> list[Piece]:
    """Split a text into sentences. Sentences for which `fits` returns False are split into parts.

    A line break always ends a sentence, because a line break inside a sentence could not be kept in the translation.
    The period of an abbreviation does not end a sentence.

    Args:
        text (`str`): the text to split.
        language (`str`, *optional*): language code of the text. The default is English.
        fits (`Callable[[str], bool]`): returns True if a sentence or a part is short enough.
    """
    code = (language or "en").lower()
    # For example, "zh-tw" becomes "zh". An unknown code stays as it is.
    short_code = language_of(code) or code
    pieces: list[Piece] = []
    for line in _LINE_ENDS.split(text):
        for sentence in _split_line(line, short_code):
            pieces += _split_sentence(sentence, fits)
    return pieces


def _split_line(line: str, language: str) -> list[str]:
    """Split a line into sentences, each with its white space.

    The library sentencex divides the line into segments, and [`is_sentence_end`] rejects some of its divisions. In this
    case, the sentence continues in the next segment.
    """
    sentences = []
    sentence_start = 0
    segment_start = 0
    for segment in _divide_into_segments(line, language):
        # This is empty before the first segment. The test reads only the two ends of the sentence.
        current_sentence = _without_middle(line, sentence_start, segment_start)
        if current_sentence and is_sentence_end(current_sentence, segment, language):
            sentences.append(line[sentence_start:segment_start])
            sentence_start = segment_start
        # The segments have the line's length in total.
        segment_start += len(segment)

    last_sentence = line[sentence_start:segment_start]
    if last_sentence:
        sentences.append(last_sentence)
    return sentences


def _divide_into_segments(line: str, language: str) -> Iterable[str]:
    """Divide a line where sentencex proposes sentence ends. In the segments, spaces replace all other white space."""
    with needing("text", "split_sentences needs"):
        from sentencex import segment
    # sentencex 1.0 fails on multi-byte white space after an initial, such as "A\u00a0.". Each such character is
    # replaced by one space, so positions in the line stay valid.
    line_with_spaces = re.sub(r"\s", " ", line)
    return segment(language, line_with_spaces)


def _without_middle(line: str, start: int, end: int) -> str:
    """Return the text between two positions of a line. If this text is long, its middle is left out.

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
        return [Piece(text="", space=sentence)]

    pieces = []
    space_before = _leading_space(sentence)
    if space_before:
        pieces.append(Piece(text="", space=space_before))

    parts = split_at_clauses(text, fits)
    is_split = len(parts) > 1
    for part in parts:
        pieces.append(Piece(part.strip(), _trailing_space(part), is_part=is_split))
    # The last part ends where `text` ends, so it lacks the white space after the sentence.
    pieces[-1] = pieces[-1]._replace(space=_trailing_space(sentence))
    return pieces


def _leading_space(text: str) -> str:
    """Return the white space at the beginning of a text."""
    return text[: len(text) - len(text.lstrip())]


def _trailing_space(text: str) -> str:
    """Return the white space at the end of a text."""
    return text[len(text.rstrip()) :]


def split_at_clauses(sentence: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a sentence near its middle, and split the halves again until each part fits or cannot be split.

    The sentence is split between clauses if possible, otherwise after a comma or a bracket, otherwise between words,
    and otherwise between any two characters. A number or a URL stays whole even if it does not fit.
    """
    stripped = sentence.strip()
    if len(stripped) < 2 or fits(stripped):
        return [sentence]
    position = _find_split(sentence)
    if position is None:
        return [sentence]
    # `_find_split` returns neither 0 nor the end, so both halves are shorter, and the recursion ends.
    return split_at_clauses(sentence[:position], fits) + split_at_clauses(sentence[position:], fits)


def _find_forbidden_positions(sentence: str) -> set[int]:
    """Return the positions inside numbers and URLs, and the end of the sentence, at which it must not be split.

    A split at the end would leave an empty part. For "a 250", the positions are 3, 4 and 5. A split at 2, before the
    number, is allowed.
    """
    forbidden_positions = {len(sentence)}
    for number_or_url in _UNBREAKABLE.finditer(sentence):
        positions_inside = range(number_or_url.start() + 1, number_or_url.end())
        forbidden_positions.update(positions_inside)
    return forbidden_positions


def _find_split(sentence: str) -> int | None:
    """Return the best position at which to split a sentence, or None if it cannot be split.

    A position between clauses is better than one between words, and so on. Among equally good positions, the best one
    is the nearest to the middle.
    """
    forbidden_positions = _find_forbidden_positions(sentence)
    middle = len(sentence) // 2
    # Patterns of the text after which a sentence may be split, best ones first.
    for pattern in _BREAKS:
        positions = []
        for match in pattern.finditer(sentence):
            if match.end() not in forbidden_positions:
                positions.append(match.end())
        if positions:
            # If two positions are equally near to the middle, `min` returns the first one.
            return min(positions, key=lambda position: abs(position - middle))
    return None


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
    # Each combination has one hypothesis per piece. The best combination comes first.
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
        hypotheses: list[Translation] = []
        combination: _Combination | None = self
        # The first combination of each linked list has no sentence, and so no hypothesis.
        while combination is not None and combination.hypothesis is not None:
            hypotheses.append(combination.hypothesis)
            combination = combination.previous
        # They were collected from the last sentence to the first.
        hypotheses.reverse()
        return hypotheses


def _best_combinations(translations: list[Translation]) -> list[list[Translation]]:
    """Return the best combinations of one hypothesis per sentence, best first.

    If the sentence with the most hypotheses has n of them, at most n combinations are returned. Only the n best are
    kept after each sentence, because a combination that scores lower than another one still scores lower after both are
    extended by the same hypotheses.
    """
    hypotheses_per_sentence = [1 + len(translation.alternatives) for translation in translations]
    most_combinations = max(hypotheses_per_sentence)
    no_hypotheses_yet = _Combination(score=0.0)
    best_combinations = [no_hypotheses_yet]
    for translation in translations:
        extended_combinations = _extend(best_combinations, translation)
        # `nlargest` returns the combinations by decreasing score.
        best_combinations = nlargest(
            most_combinations, extended_combinations, key=lambda combination: combination.score
        )
    return [combination.hypotheses() for combination in best_combinations]


def _extend(combinations: list[_Combination], translation: Translation) -> list[_Combination]:
    """Extend each combination by each hypothesis for the next sentence: the translation and its alternatives."""
    hypotheses = [translation, *translation.alternatives]
    ranking_scores = _ranking_scores(hypotheses)
    extended_combinations = []
    for combination in combinations:
        for hypothesis, ranking_score in zip(hypotheses, ranking_scores, strict=True):
            score = combination.score + ranking_score
            extended_combinations.append(_Combination(score, hypothesis, previous=combination))
    return extended_combinations


def _ranking_scores(hypotheses: list[Translation]) -> list[float]:
    """Return a score for each hypothesis, lowered where necessary so that the scores never increase along the list.

    For example, the scores -1, -3 and -2 become -1, -3 and -3. The search returns truncated hypotheses after all
    finished ones, even if their scores are higher. With the lowered scores, the best combinations keep this order.
    """
    ranking_scores = []
    lowest_score = hypotheses[0].score
    for hypothesis in hypotheses:
        lowest_score = min(lowest_score, hypothesis.score)
        ranking_scores.append(lowest_score)
    return ranking_scores


def join_without_alternatives(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str] = WORDS
) -> Translation:
    """Join the pieces' translations into a translation of the whole text, and ignore their alternatives.

    Its alignment is None if the alignment of any piece is None. It has the flags of all pieces, and also the flag
    "split" if a sentence was split into parts.

    Args:
        translations: a translation of each piece.
        words: matches the words that alignments link.
    """
    tokens: list[str] = []
    log_probs: list[float] = []
    for translation in translations:
        tokens += translation.tokens
        log_probs += translation.log_probs

    return Translation(
        text=join_texts(pieces, [translation.text for translation in translations]),
        score=sum(translation.score for translation in translations),
        tokens=tokens,
        log_probs=log_probs,
        alignment=_join_alignments(pieces, translations, words),
        flags=_join_flags(pieces, translations),
    )


def _join_flags(pieces: list[Piece], translations: list[Translation]) -> frozenset[str]:
    """Return the flags of all translations, and the flag "split" if a sentence was split into parts."""
    flags: set[str] = set()
    for translation in translations:
        flags |= translation.flags
    if any(piece.is_part for piece in pieces):
        flags.add("split")
    return frozenset(flags)


def _join_alignments(
    pieces: list[Piece], translations: list[Translation], words: re.Pattern[str]
) -> list[tuple[int, int]] | None:
    """Join the alignments of the pieces' translations, or return None if any of them has no alignment.

    In the links of a piece, words are counted from the beginning of the piece. In the result, they are counted from the
    beginning of the text.
    """
    first_source_words = _find_first_words(pieces, [piece.text for piece in pieces], words)
    first_target_words = _find_first_words(pieces, [translation.text for translation in translations], words)

    links: set[tuple[int, int]] = set()
    for index, translation in enumerate(translations):
        if translation.alignment is None:
            return None
        for source_word, target_word in translation.alignment:
            links.add((first_source_words[index] + source_word, first_target_words[index] + target_word))
    return sorted(links)


def _find_first_words(pieces: list[Piece], texts: list[str], words: re.Pattern[str]) -> list[int]:
    """Return, for each piece, the index of its first word among the words of the joined text.

    For example, the result for "two dogs. " and "one cat" is [0, 2]. If no white space separates two pieces, the first
    word of the second piece may begin in the first piece.

    Args:
        pieces (`list[Piece]`): the pieces of the text.
        texts (`list[str]`): the text of each piece: either its source or its translation.
        words (`re.Pattern[str]`): matches the words.
    """
    texts_with_space = [text + piece.space for text, piece in zip(texts, pieces, strict=True)]
    joined_text = "".join(texts_with_space)
    word_ends = [word.end() for word in words.finditer(joined_text)]
    first_words = []
    piece_start = 0
    for text in texts_with_space:
        # `word_ends` is sorted, so this is the number of words that end before the piece or where it starts. The next
        # word, which has this index, is the first one of the piece.
        num_words_before = bisect_right(word_ends, piece_start)
        first_words.append(num_words_before)
        piece_start += len(text)
    return first_words
