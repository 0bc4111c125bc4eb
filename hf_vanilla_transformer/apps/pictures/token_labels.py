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
    """Return each token's text as it appears in the sentence, without surrounding spaces.

    If the bytes of a character are divided among several tokens, each token's text contains the character, with an
    ellipsis on the side where it continues. For example, two tokens for the two bytes of "ü" become "ü…" and "…ü".

    Args:
        tokenizer (`PreTrainedTokenizerBase`): a tokenizer with one vocabulary or with two.
        ids (`Sequence[int]`): the tokens of one sentence, in order.
        of_target (`bool`): whether the ids belong to the target's vocabulary.

    Returns:
        `list[str]`: one nonempty text per id. The text of a special token is its name.
    """
    vocabulary = TokenTexts(tokenizer, of_target)
    # The sentence in UTF-8, and the range of its bytes for each token.
    sentence = b""
    tokens: list[_Span] = []
    for token_id in ids:
        start = len(sentence)
        sentence += vocabulary.text_with_spaces(int(token_id))
        tokens.append(_Span(start, len(sentence)))
    # The range of bytes for each character.
    characters: list[_Span] = []
    for match in _CHARACTER.finditer(sentence):
        characters.append(_Span(match.start(), match.end()))
    return [_label_token(sentence, characters, token) for token in tokens]


def _label_token(sentence: bytes, characters: Sequence[_Span], token: _Span) -> str:
    """Return the characters that a token contains in whole or in part, with an ellipsis where a character continues.

    Args:
        sentence (`bytes`): the sentence in UTF-8.
        characters (`Sequence[_Span]`): the range of bytes of each character of the sentence.
        token (`_Span`): the range of bytes of the token.
    """
    token_characters = []
    for character in characters:
        # Both ranges exclude their end, so ranges that only touch do not overlap.
        overlaps_token = character.start < token.end and character.end > token.start
        if overlaps_token:
            token_characters.append(character)
    if not token_characters:
        # The text of the token is empty.
        return _SPACE

    # The text consists of whole characters, so it may begin before the token and end after it.
    first_character = token_characters[0]
    last_character = token_characters[-1]
    text = sentence[first_character.start : last_character.end].decode(errors="replace")
    label = text.strip()
    if not label:
        # The token consists of spaces.
        label = text.replace(" ", _SPACE)
    # Invisible characters, such as line breaks, get visible symbols.
    label = label.translate(VISIBLE)
    if first_character.start < token.start:
        label = SPLIT + label
    if last_character.end > token.end:
        label = label + SPLIT
    return label
