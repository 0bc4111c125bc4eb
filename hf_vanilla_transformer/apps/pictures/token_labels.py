"""Convert tokens into readable labels, without the markers of byte-level BPE, SentencePiece or fairseq."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from ...support.figure_style import VISIBLE
from ...translation.words_of_tokens import TokenTexts


# A UTF-8 sequence of two, three or four bytes, or else a single byte. This is an ASCII character, or a stray byte,
# because models can generate invalid UTF-8.
_CHARACTER = re.compile(rb"[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL)
# Shown for each space of a token that consists of spaces only, because its label would be empty otherwise.
_SPACE = "\N{OPEN BOX}"
# Shown where a token begins or ends inside a character.
SPLIT = "\N{HORIZONTAL ELLIPSIS}"


class _Span(NamedTuple):
    """A range of bytes in the UTF-8 text of a sentence, from `start` to `end` (exclusive)."""

    start: int
    end: int


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, of_target: bool = False) -> list[str]:
    """Return the text of each token in its sentence, without surrounding spaces; the name of a special token.

    If a character is divided among several tokens, each shows it with an ellipsis where it continues. For example, two
    tokens for the two bytes of "ü" become "ü…" and "…ü".

    Args:
        tokenizer (`PreTrainedTokenizerBase`): a tokenizer with one vocabulary or with two.
        ids (`Sequence[int]`): the tokens of one sentence, in order.
        of_target (`bool`): whether the ids belong to the target's vocabulary.

    Returns:
        `list[str]`: one nonempty text per id.
    """
    utf8_of_tokens = _encode_tokens(TokenTexts(tokenizer, of_target), ids)
    sentence = b"".join(utf8_of_tokens)
    # The range of bytes in the sentence for each token, and for each character.
    token_spans = _find_token_spans(utf8_of_tokens)
    character_spans = _find_character_spans(sentence)
    return [_label_token(sentence, character_spans, token_span) for token_span in token_spans]


def _encode_tokens(vocabulary: TokenTexts, ids: Sequence[int]) -> list[bytes]:
    """Return the text of each token in UTF-8, with spaces."""
    return [vocabulary.text_with_spaces(int(token_id)) for token_id in ids]


def _find_token_spans(utf8_of_tokens: Sequence[bytes]) -> list[_Span]:
    """Return the range of bytes of each token in the sentence that the tokens form."""
    spans: list[_Span] = []
    start = 0
    for utf8 in utf8_of_tokens:
        end = start + len(utf8)
        spans.append(_Span(start, end))
        start = end
    return spans


def _find_character_spans(sentence: bytes) -> list[_Span]:
    """Return the range of bytes of each character of a sentence in UTF-8."""
    spans: list[_Span] = []
    for match in _CHARACTER.finditer(sentence):
        spans.append(_Span(match.start(), match.end()))
    return spans


def _label_token(sentence: bytes, characters: Sequence[_Span], token: _Span) -> str:
    """Return the characters that a token contains in whole or in part, with an ellipsis where a character continues.

    `characters` and `token` are ranges of bytes of the sentence, which is in UTF-8.
    """
    token_characters = _select_overlapping(characters, token)
    if not token_characters:
        # The text of the token is empty.
        return _SPACE

    # The text consists of whole characters, so it may begin before the token and end after it.
    start = token_characters[0].start
    end = token_characters[-1].end
    text = sentence[start:end].decode(errors="replace")
    split_before = SPLIT if start < token.start else ""
    split_after = SPLIT if end > token.end else ""
    return split_before + _make_visible(text) + split_after


def _select_overlapping(characters: Sequence[_Span], token: _Span) -> list[_Span]:
    """Return the characters that a token contains in whole or in part."""
    overlapping = []
    for character in characters:
        # Both ranges exclude their end, so ranges that only touch do not overlap.
        if character.start < token.end and character.end > token.start:
            overlapping.append(character)
    return overlapping


def _make_visible(text: str) -> str:
    """Return a text without surrounding spaces, but with symbols for invisible characters and for spaces alone."""
    label = text.strip()
    if not label:
        label = text.replace(" ", _SPACE)
    return label.translate(VISIBLE)
