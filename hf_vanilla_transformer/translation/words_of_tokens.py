"""Find the words of a text that each token belongs to, for the output of any tokenizer."""

import re
import unicodedata
from bisect import bisect_right
from difflib import SequenceMatcher
from functools import lru_cache
from html import unescape

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data.target_language import TargetCodes, codes_of
from ..model.input_checks import sides_of


# Words are separated by white space.
WORDS = re.compile(r"\S+")


def _combining_marks() -> str:
    """Return the combining marks that may follow a letter of `_UNSPACED`, as the content of a regex character class."""
    marks = ""
    for character in map(chr, range(0xE00, 0x1800)):
        if unicodedata.category(character).startswith("M"):
            marks += character
    return marks + "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"


# Letters of scripts that are written without spaces between words: Thai and Lao, Burmese, Khmer, and then Chinese and
# Japanese.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSPACED += "\u3005-\u3007\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_UNSPACED += "\U00020000-\U0003ffff"
UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
# Words are separated by white space, and each letter of a script without spaces, with its combining marks, is a word.
WORDS_AND_LETTERS = re.compile(rf"[{_UNSPACED}][{_combining_marks()}]*|[^\s{_UNSPACED}]+")

# Markers in the names of tokens: a word begins here (SentencePiece), ends here, or continues (byte-pair encodings).
_WORD_MARKERS = ("\N{LOWER ONE EIGHTH BLOCK}", "</w>", "@@")
# SentencePiece represents the bytes of characters that are not in the vocabulary by tokens such as <0xE2>.
_SENTENCEPIECE_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Byte-level vocabularies represent each byte by one printable character.
_BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}
# Stands for text without a token in the vocabulary. UTF-8 never contains this byte.
_UNKNOWN = b"\xff"
# White space in UTF-8 that `bytes.split()` does not remove, because it splits only at ASCII white space.
_OTHER_WHITE_SPACE = re.compile("|".join(filter(str.isspace, map(chr, range(0x1C, 0x3001)))).encode())


class TokenTexts:
    """Converts token ids of the source or target language into the text of each token, as UTF-8 bytes.

    The texts come from the names of the tokens in the vocabulary. `offset_mapping` would not be enough, because slow
    tokenizers do not provide it, and it does not exist for generated tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        is_target (`bool`): whether the token ids belong to targets, because some tokenizers have a separate target
            vocabulary.

    Attributes:
        names (`dict[int, str]`): maps each token id to the token's name in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, is_target: bool):
        source_side, target_side = sides_of(tokenizer)
        side = target_side if is_target else source_side
        self.names: dict[int, str] = {token: name for name, token in side.get_vocab().items()}
        if is_target and not side.is_fast and hasattr(side, "decoder"):
            # If there are two vocabularies, MarianTokenizer and FSMTTokenizer keep the target's here.
            self.names = dict(side.decoder)
            for token, added_token in side.added_tokens_decoder.items():
                self.names[token] = str(added_token)
        self._special = set(side.all_special_ids)
        self._unknown = side.unk_token_id
        self._added = set(side.get_added_vocab().values())

        # Only sources begin with target-language codes. Like special tokens, these tokens have no text.
        self._codes: TargetCodes | None = None
        if not is_target and codes_of(tokenizer):
            self._codes = TargetCodes(tokenizer)
            for token, name in self.names.items():
                if name in self._codes.codes:
                    self._special.add(token)

        backend = getattr(side, "backend_tokenizer", None)
        self._normalizer = getattr(backend, "normalizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        # FSMTTokenizer splits and escapes text by the rules of the Moses tokenizer.
        self._is_moses = hasattr(side, "moses_tokenize")

    def __call__(self, ids: list[int]) -> list[bytes]:
        """Return the text of each token in UTF-8, without white space. The text of special tokens is empty."""
        return [self._text_without_space(token) for token in ids]

    def words(self, text: str, ids: list[int], pattern: re.Pattern[str] = WORDS) -> list[list[int]]:
        """Return, for each token of a text, the indices of the words that it belongs to.

        A token may span several words; see [`map_tokens_to_words`]. A target-language code, such as `>>fr<<`, belongs
        to no word, even if the text begins with it.

        Args:
            text (`str`): the text.
            ids (`list[int]`): the text's token ids.
            pattern (`re.Pattern[str]`): matches the words of the text.
        """
        if self._codes is None:
            return self._words_without_code(text, ids, pattern)
        text_without_code = self._codes.read(text).text
        end_of_code = len(text) - len(text_without_code)
        first_word = word_at(text, end_of_code, pattern)
        words_of_tokens = []
        for words in self._words_without_code(text_without_code, ids, pattern):
            words_of_tokens.append([first_word + word for word in words])
        return words_of_tokens

    def _words_without_code(self, text: str, ids: list[int], pattern: re.Pattern[str]) -> list[list[int]]:
        """Find the words of each token, as [`words`] does, for a text that does not begin with a language code."""
        words = pattern.findall(text)
        tokens = self(ids)
        if self._normalizer is not None and "".join(words).encode() != b"".join(tokens):
            # The tokens were made from the normalized text, so they are easier to match with its normalized words.
            words = ["".join(self._normalizer.normalize_str(word).split()) for word in words]
        return map_tokens_to_words(words, tokens)

    def _text_without_space(self, token: int) -> bytes:
        """Return the text of a token without white space, which is empty for special tokens."""
        if token == self._unknown:
            return _UNKNOWN
        if token in self._special:
            return b""
        text = self.spelled(token)
        if self._is_moses:
            text = unescape(text.decode()).encode()
        return b"".join(text.split())

    def spelled(self, token: int) -> bytes:
        """Return the text of a token in UTF-8, in which spaces replace word-boundary markers such as `</w>`.

        The text of a special token is its name, such as `</s>`.
        """
        name = self.names.get(token, "")
        if self._is_byte_level and token not in self._added:
            return bytes(map(_BYTE_OF_CHARACTER.__getitem__, name))
        sentencepiece_byte = _SENTENCEPIECE_BYTE.fullmatch(name)
        if sentencepiece_byte:
            return bytes.fromhex(sentencepiece_byte[1])
        for marker in _WORD_MARKERS:
            name = name.replace(marker, " ")
        return name.encode()


def word_at(text: str, position: int, pattern: re.Pattern[str] = WORDS) -> int:
    """Return the index of the first word of a text that ends after a position."""
    word_ends = [word.end() for word in pattern.finditer(text)]
    return bisect_right(word_ends, position)


def map_tokens_to_words(words: list[str], tokens: list[bytes]) -> list[list[int]]:
    """Return, for each token, the indices of the words that it belongs to. A token may span several words.

    A tokenizer may change the text, for example by Unicode normalization, lowercasing or escaping. In this case, the
    texts of the tokens are compared with the original text to find the words that correspond to each token.

    Args:
        words (`list[str]`): the words of the text.
        tokens (`list[bytes]`): the texts of its tokens, as returned by [`TokenTexts`].
    """
    word_of_byte: list[int] = []
    for index, word in enumerate(words):
        word_of_byte += [index] * len(word.encode())
    text = "".join(words).encode()

    ranges = iter(_match_bytes(b"".join(tokens), text))
    words_of_tokens = []
    for token in tokens:
        words_of_token: set[int] = set()
        for _ in token:
            start, end = next(ranges)
            words_of_token.update(word_of_byte[start:end])
        words_of_tokens.append(sorted(words_of_token))
    return words_of_tokens


# Results are cached, because all hypotheses for a sentence need the ranges of the same source, and the comparison of
# different texts is slow.
@lru_cache(maxsize=8)
def _match_bytes(tokens: bytes, text: bytes) -> list[tuple[int, int]]:
    """Find the byte range `(start, end)` of the text that corresponds to each byte of the joined tokens."""
    if tokens == text:
        return [(position, position + 1) for position in range(len(text))]

    if _OTHER_WHITE_SPACE.search(tokens):
        # The text has no white space, so white space in the tokens corresponds to nothing. Without it, the two are
        # probably equal, which saves the comparison below.
        return _match_without_white_space(tokens, text)

    # The time of this comparison grows with the cube of the length in the worst case.
    matcher = SequenceMatcher(None, tokens, text, autojunk=False)
    ranges = []
    for operation, tokens_start, tokens_end, text_start, text_end in matcher.get_opcodes():
        for offset in range(tokens_end - tokens_start):
            if operation == "equal":
                ranges.append((text_start + offset, text_start + offset + 1))
            else:
                ranges.append((text_start, text_end))
    return ranges


def _match_without_white_space(tokens: bytes, text: bytes) -> list[tuple[int, int]]:
    """Find byte ranges, as [`_match_bytes`] does, for tokens that contain white space.

    The bytes of the white space get the empty range (0, 0).
    """
    white_space: set[int] = set()
    for match in _OTHER_WHITE_SPACE.finditer(tokens):
        white_space.update(range(match.start(), match.end()))

    other_ranges = iter(_match_bytes(_OTHER_WHITE_SPACE.sub(b"", tokens), text))
    ranges = []
    for position in range(len(tokens)):
        if position in white_space:
            ranges.append((0, 0))
        else:
            ranges.append(next(other_ranges))
    return ranges
