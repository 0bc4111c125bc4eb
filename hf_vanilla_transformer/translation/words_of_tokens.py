"""Map tokens to the words of their text, for any tokenizer."""

import re
import unicodedata
from bisect import bisect_right
from difflib import SequenceMatcher
from functools import lru_cache
from html import unescape
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data.target_language import TargetCodes, codes_of
from ..model.input_checks import sides_of


WORDS = re.compile(r"\S+")
# Letters of Thai, Lao, Burmese, Khmer, and of Chinese and Japanese, which no spaces divide into words.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSPACED += "\u3005-\u3007\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_UNSPACED += "\U00020000-\U0003ffff"
_MARKS = "".join(mark for mark in map(chr, range(0xE00, 0x1800)) if unicodedata.category(mark).startswith("M"))
_MARKS += "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"
UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
# The same, where each of these letters is a word, with its marks.
WORDS_AND_LETTERS = re.compile(rf"[{_UNSPACED}][{_MARKS}]*|[^\s{_UNSPACED}]+")
# What byte-pair encodings and SentencePiece add to a token where a word begins or ends.
_MARKERS = ("\N{LOWER ONE EIGHTH BLOCK}", "</w>", "@@")
_BYTE_OF_SENTENCEPIECE = re.compile("<0x([0-9A-F]{2})>")
# The byte of each character with which byte-level vocabularies spell it.
_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}
# Stands for a token that the vocabulary lacks; no text contains this byte.
_UNKNOWN = b"\xff"
# White space that `bytes.split()` keeps.
_SPACE = re.compile("|".join(filter(str.isspace, map(chr, range(0x1C, 0x3001)))).encode())


class TokenTexts:
    """The bytes of text that each token of one side of a tokenizer stands for; `names` are as the vocabulary has them.

    Tokens are read instead of `offset_mapping`, which slow tokenizers lack, and generated tokens too.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, is_target: bool):
        side: Any = sides_of(tokenizer)[is_target]
        self.names = {token: name for name, token in side.get_vocab().items()}
        if is_target and not side.is_fast and hasattr(side, "decoder"):
            # MarianTokenizer and FSMTTokenizer have the target's vocabulary here, if there are two.
            self.names = {**side.decoder, **{token: str(name) for token, name in side.added_tokens_decoder.items()}}
        self._special, self._unknown = set(side.all_special_ids), side.unk_token_id
        # Only sources have codes of target languages.
        self._codes = None if is_target or not codes_of(tokenizer) else TargetCodes(tokenizer)
        if self._codes is not None:
            self._special.update(token for token, name in self.names.items() if name in self._codes.codes)
        self._added = set(side.get_added_vocab().values())
        backend = getattr(side, "backend_tokenizer", None)
        self._normalizer = getattr(backend, "normalizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        # FSMTTokenizer splits and escapes text by Moses' rules.
        self._is_moses = hasattr(side, "moses_tokenize")

    def __call__(self, ids: list[int]) -> list[bytes]:
        """The bytes of each token, without whitespace; none for special tokens."""
        return [b"".join(self._bytes(token).split()) for token in ids]

    def words(self, text: str, ids: list[int], pattern: re.Pattern[str] = WORDS) -> list[list[int]]:
        """The indices of the words of a text that each of its tokens belongs to; see [`map_tokens_to_words`].

        The code of a target language, such as `>>fr<<`, belongs to none, whether the text begins with it or only the
        tokens do.
        """
        if self._codes is None:
            return self._words(text, ids, pattern)
        text_without_code = self._codes.read(text).text
        first_word = word_at(text, len(text) - len(text_without_code), pattern)
        words_of_rest = self._words(text_without_code, ids, pattern)
        return [[first_word + index for index in indices] for indices in words_of_rest]

    def _words(self, text: str, ids: list[int], pattern: re.Pattern[str]) -> list[list[int]]:
        words, tokens = pattern.findall(text), self(ids)
        if self._normalizer is not None and "".join(words).encode() != b"".join(tokens):
            words = ["".join(self._normalizer.normalize_str(word).split()) for word in words]
        return map_tokens_to_words(words, tokens)

    def _bytes(self, token: int) -> bytes:
        if token == self._unknown:
            return _UNKNOWN
        spelled = b"" if token in self._special else self.spelled(token)
        return unescape(spelled.decode()).encode() if self._is_moses else spelled

    def spelled(self, token: int) -> bytes:
        """The bytes of a token, also of a special one, with spaces in the place of what marks the edges of words."""
        name = self.names.get(token, "")
        if self._is_byte_level and token not in self._added:
            return bytes(map(_BYTE_OF.__getitem__, name))
        if byte := _BYTE_OF_SENTENCEPIECE.fullmatch(name):
            return bytes.fromhex(byte[1])
        for marker in _MARKERS:
            name = name.replace(marker, " ")
        return name.encode()


def word_at(text: str, place: int, pattern: re.Pattern[str] = WORDS) -> int:
    """The index of the first word of a text that ends after a place."""
    ends = [word.end() for word in pattern.finditer(text)]
    return bisect_right(ends, place)


def map_tokens_to_words(words: list[str], tokens: list[bytes]) -> list[list[int]]:
    """The indices of the words that each token of [`TokenTexts`] belongs to; several if it reaches across their border.

    Where a tokenizer changes the text (Unicode normalization, lower case, escapes), tokens are matched with what the
    text has in their place.
    """
    word_of = [index for index, word in enumerate(words) for _ in word.encode()]
    positions = iter(_positions(b"".join(tokens), "".join(words).encode()))
    found = []
    for token in tokens:
        ranges = [next(positions) for _ in token]
        found.append(sorted({word_of[place] for first, last in ranges for place in range(first, last)}))
    return found


# Each hypothesis of a sentence asks for the same positions in the source, which take long where texts differ.
@lru_cache(maxsize=8)
def _positions(tokens: bytes, text: bytes) -> list[tuple[int, int]]:
    """For each byte of the tokens, the range of the bytes of the text in its place."""
    if tokens == text:
        return [(place, place + 1) for place in range(len(text))]
    spaces = {place for match in _SPACE.finditer(tokens) for place in range(*match.span())}
    if spaces:
        found = iter(_positions(_SPACE.sub(b"", tokens), text))
        return [(0, 0) if place in spaces else next(found) for place in range(len(tokens))]
    positions = [(0, 0)] * len(tokens)
    for kind, start, end, first, last in SequenceMatcher(None, tokens, text, autojunk=False).get_opcodes():
        for index, place in enumerate(range(start, end)):
            positions[place] = (first + index, first + index + 1) if kind == "equal" else (first, last)
    return positions
