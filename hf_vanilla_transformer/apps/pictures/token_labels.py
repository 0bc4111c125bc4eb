"""Tokens as a reader sees them: decoded text, without the marks of byte-level BPE, SentencePiece or fairseq."""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from transformers import PreTrainedTokenizerBase

from ...support.figure_style import VISIBLE
from ...translation.words_of_tokens import TokenTexts


# Of UTF-8, or a byte that belongs to none: a model may write any bytes.
_CHARACTER = re.compile(rb"[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.", re.DOTALL)
# A token that is only space would have an empty label.
_SPACE = "\N{OPEN BOX}"
SPLIT = "\N{HORIZONTAL ELLIPSIS}"


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, of_target: bool = False) -> list[str]:
    """The text of each token, as it is in the sentence, without spaces around it.

    A character whose bytes belong to several tokens is in the text of each of them, with an ellipsis on the side where
    it goes on: the two bytes of "ü" are "ü…" and "…ü".

    Args:
        tokenizer (`PreTrainedTokenizerBase`): of one vocabulary, or of two.
        ids (`Sequence[int]`): the tokens of one sentence, in order.
        of_target (`bool`): whether the ids are of the target's vocabulary.

    Returns:
        `list[str]`: one text for each id, never empty; special tokens have their names.
    """
    spelled = TokenTexts(tokenizer, of_target).spelled
    parts = [spelled(int(token)) for token in ids]
    text, ends = b"".join(parts), [*accumulate(map(len, parts), initial=0)]
    characters = [found.span() for found in _CHARACTER.finditer(text)]
    return [_text_between(text, characters, start, end) for start, end in pairwise(ends)]


def _text_between(text: bytes, characters: Sequence[tuple[int, int]], start: int, end: int) -> str:
    """The characters of which at least one byte lies between two places."""
    touched = [span for span in characters if span[0] < end and span[1] > start]
    if not touched:
        return _SPACE
    first, last = touched[0][0], touched[-1][1]
    found = text[first:last].decode(errors="replace")
    shown = (found.strip() or found.replace(" ", _SPACE)).translate(VISIBLE)
    return f"{SPLIT * (first < start)}{shown}{SPLIT * (last > end)}"
