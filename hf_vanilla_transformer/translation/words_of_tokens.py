"""Find the words of a text that each token belongs to, for the output of any tokenizer."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from html import unescape
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..data.target_language import TargetCodes, codes_of
from ..model.input_checks import sides_of


if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer


# Words are separated by white space.
WORDS = re.compile(r"\S+")


def _combining_marks() -> str:
    """Return the combining marks that may follow a letter of `_UNSPACED`, as the content of a regex character class."""
    marks = ""
    # The blocks of Thai, Lao, Burmese and Khmer lie in this range.
    for code_point in range(0x0E00, 0x1800):
        character = chr(code_point)
        is_combining_mark = unicodedata.category(character).startswith("M")
        if is_combining_mark:
            marks += character
    # The sound marks of Japanese, and the variation selectors that may follow any Chinese character.
    marks += "\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef"
    return marks


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
_SENTENCEPIECE_BYTE = re.compile("<0x(?P<hexadecimal>[0-9A-F]{2})>")
# Byte-level vocabularies represent each byte by one printable character.
_BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}
# Stands for text without a token in the vocabulary. UTF-8 never contains this byte.
_UNKNOWN = b"\xff"
# White space in UTF-8, such as the no-break space. `bytes.split()` removes only ASCII white space, so the texts of
# tokens may still contain such characters.
_UNICODE_WHITE_SPACE = re.compile("|".join(filter(str.isspace, map(chr, range(0x1C, 0x3001)))).encode())


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
        side_tokenizer = _select_tokenizer(tokenizer, is_target)
        self.names = _names_of_tokens(side_tokenizer, is_target)
        self._unknown_id = side_tokenizer.unk_token_id
        # Tokens that were added to the vocabulary. They have their text as their name.
        self._added_ids = set(side_tokenizer.get_added_vocab().values())

        # Separates a code from the beginning of a source. None for targets, and for models without codes.
        self._code_reader = _make_code_reader(tokenizer, is_target)
        special_ids = set(side_tokenizer.all_special_ids)
        # The ids of target-language codes, such as `>>fr<<`.
        code_ids = _find_ids_of_codes(self._code_reader, self.names)
        # Tokens that belong to no word.
        self._ids_without_text = special_ids | code_ids

        # Changes a text before it is tokenized, for example to lower case. None if texts are not changed.
        self._normalizer = _find_normalizer(side_tokenizer)
        # Whether each character of a token's name stands for one byte.
        self._is_byte_level = _has_byte_level_names(side_tokenizer)
        # Whether "&amp;" stands for "&".
        self._has_escapes = _escapes_like_moses(side_tokenizer)

    def __call__(self, ids: list[int]) -> list[bytes]:
        """Return the text of each token in UTF-8, without white space. The text of special tokens is empty."""
        return [self._text_without_spaces(token_id) for token_id in ids]

    def find_words(self, text: str, ids: list[int], pattern: re.Pattern[str] = WORDS) -> list[list[int]]:
        """Return, for each token of a text, the indices of the words to which the token belongs.

        A token may span several words; see [`map_tokens_to_words`]. A target-language code, such as `>>fr<<`, belongs
        to no word, even if the text begins with it.

        Args:
            text (`str`): the text.
            ids (`list[int]`): the text's token ids.
            pattern (`re.Pattern[str]`): matches the words of the text.
        """
        if self._code_reader is None:
            return self._find_words_without_code(text, ids, pattern)

        text_without_code = self._code_reader.read(text).text
        words_after_code = self._find_words_without_code(text_without_code, ids, pattern)

        # `words_after_code` counts from the first word after the code, and the result from the first word of the text.
        length_of_code = len(text) - len(text_without_code)
        first_word_after_code = word_at(text, length_of_code, pattern)
        words_of_tokens = []
        for words_of_token in words_after_code:
            words_of_tokens.append([first_word_after_code + word for word in words_of_token])
        return words_of_tokens

    def _find_words_without_code(self, text: str, ids: list[int], pattern: re.Pattern[str]) -> list[list[int]]:
        """Return, for each token of a text, the indices of its words, as [`find_words`] does.

        The text must not begin with a target-language code. For example, the text "two dogs" has the words "two" and
        "dogs". If its tokens are "two", "do" and "gs", the result is [[0], [1], [1]].
        """
        words: list[str] = pattern.findall(text)
        # The texts of tokens are bytes in UTF-8, because a token may end inside a character.
        token_texts = [self._text_without_spaces(token_id) for token_id in ids]
        # Usually, the tokens contain exactly the bytes of the words, and nothing has to be normalized.
        tokens_equal_words = b"".join(token_texts) == "".join(words).encode()
        if tokens_equal_words or self._normalizer is None:
            return map_tokens_to_words(words, token_texts)

        # The tokens were made from the normalized text, so they are easier to match with normalized words.
        normalized_words = []
        for word in words:
            normalized_word = self._normalizer.normalize_str(word)
            # Normalization may add white space, which the texts of the tokens do not have.
            normalized_words.append("".join(normalized_word.split()))
        return map_tokens_to_words(normalized_words, token_texts)

    def _text_without_spaces(self, token_id: int) -> bytes:
        """Return the text of a token without white space. The text of a special token is empty."""
        # The unknown token may also be a special token, so it must be tested first. Unlike other special tokens, it
        # stands for text.
        if token_id == self._unknown_id:
            # This is a byte that no text contains, so it is never equal to a byte of a word.
            return _UNKNOWN
        if token_id in self._ids_without_text:
            return b""
        text = self.text_with_spaces(token_id)
        if self._has_escapes:
            # For example, `unescape` converts "&amp;" to "&".
            text = unescape(text.decode()).encode()
        return b"".join(text.split())

    def text_with_spaces(self, token_id: int) -> bytes:
        """Return the text of a token in UTF-8, with spaces instead of word-boundary markers such as `</w>`.

        The text of a special token is its name, such as `</s>`.
        """
        name = self.names.get(token_id, "")

        # Added tokens, such as special tokens, have their text as their name even in a byte-level vocabulary.
        if self._is_byte_level and token_id not in self._added_ids:
            # Each character of the name stands for one byte. For example, "Ġ" stands for a space.
            return bytes(_BYTE_OF_CHARACTER[character] for character in name)

        # For example, the name "<0xE2>" stands for the byte E2.
        byte_token = _SENTENCEPIECE_BYTE.fullmatch(name)
        if byte_token is not None:
            return bytes.fromhex(byte_token["hexadecimal"])

        text = name
        for marker in _WORD_MARKERS:
            text = text.replace(marker, " ")
        return text.encode()


def _select_tokenizer(tokenizer: PreTrainedTokenizerBase, is_target: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the sources or of the targets."""
    source_tokenizer, target_tokenizer = sides_of(tokenizer)
    if is_target:
        return target_tokenizer
    return source_tokenizer


def _make_code_reader(tokenizer: PreTrainedTokenizerBase, is_target: bool) -> TargetCodes | None:
    """Return an object that separates target-language codes from sources; None for targets or without codes."""
    if is_target or not codes_of(tokenizer):
        return None
    return TargetCodes(tokenizer)


def _find_ids_of_codes(code_reader: TargetCodes | None, names: Mapping[int, str]) -> set[int]:
    """Return the token ids of target-language codes; none if there is no code reader."""
    if code_reader is None:
        return set()
    return _find_ids(code_reader.codes, names)


def _find_normalizer(side_tokenizer: PreTrainedTokenizerBase) -> "Normalizer | None":
    """Return the normalizer of a fast tokenizer; None if it has none, or if the tokenizer is a slow one."""
    # Slow tokenizers have no backend.
    backend = getattr(side_tokenizer, "backend_tokenizer", None)
    return getattr(backend, "normalizer", None)


def _has_byte_level_names(side_tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if each character of a token's name stands for one byte, as in the vocabulary of GPT-2."""
    # Slow tokenizers have no backend.
    backend = getattr(side_tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    # The decoder is a `ByteLevel`, or a sequence that contains one, and the repr shows both cases.
    return "ByteLevel" in repr(backend.decoder)


def _escapes_like_moses(side_tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if a tokenizer escapes text by the rules of the Moses tokenizer, as FSMTTokenizer does."""
    # Only tokenizers that split text by these rules have this method.
    return hasattr(side_tokenizer, "moses_tokenize")


def _find_ids(wanted_names: Sequence[str], names: Mapping[int, str]) -> set[int]:
    """Return the ids of the tokens with the given names. `names` maps each token id to the token's name."""
    return {token_id for token_id, name in names.items() if name in wanted_names}


def _names_of_tokens(tokenizer: PreTrainedTokenizerBase, is_target: bool) -> dict[int, str]:
    """Map each token id to the token's name in the vocabulary.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer of sources or of targets, as `sides_of` returns it.
        is_target (`bool`): whether it is the tokenizer of targets.
    """
    # MarianTokenizer and FSMTTokenizer are one object for sources and targets, which may have different vocabularies:
    # `get_vocab()` returns the vocabulary of sources, and the attribute `decoder` maps ids to names for targets,
    # without the added tokens. In the other slow tokenizers of transformers that have this attribute, it is the only
    # vocabulary. Fast tokenizers have an unrelated attribute of the same name, so they are excluded.
    has_decoder_dict = not tokenizer.is_fast and hasattr(tokenizer, "decoder")
    if is_target and has_decoder_dict:
        target_names: dict[int, str] = dict(tokenizer.decoder)
        for token_id, added_token in tokenizer.added_tokens_decoder.items():
            target_names[token_id] = str(added_token)
        return target_names

    return {token_id: name for name, token_id in tokenizer.get_vocab().items()}


def word_at(text: str, position: int, pattern: re.Pattern[str] = WORDS) -> int:
    """Return the index of the first word of a text that ends after a position."""
    # `word_ends` is sorted, so this is the number of words that end at or before the position. The next word has this
    # index.
    word_ends = [word.end() for word in pattern.finditer(text)]
    return bisect_right(word_ends, position)


def map_tokens_to_words(words: list[str], tokens: list[bytes]) -> list[list[int]]:
    """Return, for each token, the indices of the words to which the token belongs. A token may span several words.

    For example, the words "two" and "dogs" have the tokens "two", "do" and "gs". The result is [[0], [1], [1]].

    A tokenizer may change the text, for example by Unicode normalization, lowercasing or escaping. In this case, the
    texts of the tokens are compared with the original text to find the words that correspond to each token.

    Args:
        words: the words of the text.
        tokens: the texts of its tokens, as returned by [`TokenTexts`].
    """
    joined_tokens = b"".join(tokens)
    joined_words = "".join(words).encode()
    # For each byte of the joined tokens, the slice of the joined words that corresponds to it.
    matching_slices = _match_bytes(joined_tokens, joined_words)
    word_of_byte = _find_word_of_each_byte(words)

    words_of_tokens = []
    token_start = 0
    for token in tokens:
        token_end = token_start + len(token)
        words_of_token = _collect_words(matching_slices[token_start:token_end], word_of_byte)
        words_of_tokens.append(words_of_token)
        token_start = token_end
    return words_of_tokens


def _collect_words(slices_of_bytes: list[slice], word_of_byte: list[int]) -> list[int]:
    """Return the sorted indices of the words that have bytes in one of the slices."""
    words: set[int] = set()
    for slice_of_bytes in slices_of_bytes:
        words.update(word_of_byte[slice_of_bytes])
    return sorted(words)


def _find_word_of_each_byte(words: list[str]) -> list[int]:
    """Return, for each byte of the joined words, the index of its word: [0, 0, 1] for the words "an" and "a"."""
    word_of_byte: list[int] = []
    for index, word in enumerate(words):
        num_bytes = len(word.encode())
        word_of_byte += [index] * num_bytes
    return word_of_byte


# Results are cached, because all hypotheses for a sentence need the slices of the same source, and the comparison of
# different texts is slow.
@lru_cache(maxsize=8)
def _match_bytes(tokens: bytes, text: bytes) -> list[slice]:
    """Find the slice of a text that corresponds to each byte of the text's tokens.

    Args:
        tokens (`bytes`): the joined tokens. They may differ from the text, because a tokenizer may change it.
        text (`bytes`): the text, without white space.

    Returns:
        `list[slice]`: one slice of `text` per byte of `tokens`. It is empty if nothing corresponds to the byte.
    """
    if tokens == text:
        return [slice(position, position + 1) for position in range(len(text))]
    # The tokens contain no ASCII white space, but a no-break space, for example, may be left.
    if _UNICODE_WHITE_SPACE.search(tokens) is not None:
        return _match_without_white_space(tokens, text)
    return _match_different_bytes(tokens, text)


def _match_without_white_space(tokens: bytes, text: bytes) -> list[slice]:
    """Do the work of [`_match_bytes`] for tokens that contain white space, such as a no-break space.

    The text has no white space, so nothing in the text corresponds to the white space of the tokens. Therefore, the
    white space is removed, the remaining bytes are matched with the text, and each removed byte gets an empty slice.
    Without their white space, the tokens are probably equal to the text, which saves a slow comparison.
    """
    white_space_positions: set[int] = set()
    for match in _UNICODE_WHITE_SPACE.finditer(tokens):
        white_space_positions.update(range(match.start(), match.end()))
    visible_positions = [position for position in range(len(tokens)) if position not in white_space_positions]
    visible_bytes = bytes(tokens[position] for position in visible_positions)

    # `_match_bytes` has called this function, and usually does not call it again. It does so only if the removal has
    # put bytes next to each other that form white space. The bytes become fewer each time, so the recursion ends.
    slices_of_visible_bytes = _match_bytes(visible_bytes, text)
    # Bytes of white space keep this empty slice.
    slices_of_text = [slice(0, 0)] * len(tokens)
    for position, slice_of_text in zip(visible_positions, slices_of_visible_bytes, strict=True):
        slices_of_text[position] = slice_of_text
    return slices_of_text


def _match_different_bytes(tokens: bytes, text: bytes) -> list[slice]:
    """Do the work of [`_match_bytes`] for tokens that differ from the text, with a general comparison of sequences.

    In the worst case, the time grows with the cube of the length.
    """
    slices_of_text = []
    # With `autojunk`, SequenceMatcher would ignore elements that are frequent in a long text, such as most letters.
    matcher = SequenceMatcher(None, tokens, text, autojunk=False)
    # Each operation turns a range of the tokens into a range of the text. Together, the operations cover both.
    for operation, tokens_start, tokens_end, text_start, text_end in matcher.get_opcodes():
        if operation == "equal":
            for position in range(text_start, text_end):
                slices_of_text.append(slice(position, position + 1))
        else:
            # The operation replaces, deletes or inserts bytes. It does not say which bytes correspond, so each byte of
            # the tokens gets the whole range of the text. This range is empty for a deletion. For an insertion,
            # `num_bytes` is 0.
            num_bytes = tokens_end - tokens_start
            slices_of_text += [slice(text_start, text_end)] * num_bytes
    return slices_of_text
