"""Train the tokenizer of section 5.1: a byte-pair encoding with "a shared source-target vocabulary".

The byte-pair encoding is trained with the tokenizers library. It is byte-level, so there are no unknown characters, and
decoding restores every normalized text exactly.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import TokenizersBackend

from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError
from .long_texts import MOST_BYTES, is_long


Normalization = Literal["nfc", "nfkc", "none"]
# Special tokens in the order of their ids. VanillaTransformerConfig has the same ids as defaults.
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = SPECIAL_TOKENS
# Runs of characters that do not change a text's meaning: control characters, soft hyphens, directional marks,
# zero-width spaces and byte order marks. They do not include the joiners in emoji and in Indic and Arabic scripts,
# number signs, or the tags in flag emoji.
_IGNORED = (
    r"[\u0000-\u0008\u000E-\u001F\u007F-\u0084\u0086-\u009F\u00AD\u061C\u180E\u200B\u200E\u200F"
    r"\u202A-\u202E\u2060-\u2064\u2066-\u206F\uFEFF]+"
)
# The characters with Unicode's White_Space property, except for the space itself, as regular-expression ranges.
_SPACES = r"\u0009-\u000D\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"


class VanillaTransformerTokenizer(TokenizersBackend):
    """A tokenizer that encodes sentences as token ids ending in `</s>`, and decodes them.

    `tokenizer(sentences)` encodes sources, and `tokenizer(text_target=sentences)` encodes targets. If the name of a
    special token occurs in a text, it is encoded as ordinary text. The file `tokenizer.json` contains the tokenizer's
    whole state.
    """

    model_input_names = ["input_ids", "attention_mask"]

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens to the vocabulary, and return how many of them are new.

        The byte-pair encoding may already have a token with the same name as a new special token. Then an ordinary text
        that contains the name would be encoded as the special token. To prevent this, the tokenizer splits the name in
        texts after its first character.

        Raises:
            ValueError: if a special token is a single character that stands for a byte.
        """
        if special_tokens:
            # The byte-pair encoding's vocabulary contains the bytes, the merged tokens such as "the", and the special
            # tokens that it was trained with, such as "</s>". The latter are no ordinary tokens.
            vocabulary = self.backend_tokenizer.get_vocab(with_added_tokens=False)
            ordinary_tokens = vocabulary.keys() - self.added_tokens_encoder.keys()
            names_of_new_tokens = [str(new_token) for new_token in new_tokens]
            ambiguous_names = ordinary_tokens.intersection(names_of_new_tokens)
            for name in ambiguous_names:
                # A name of one character, which stands for a byte, cannot be split. This raises ValueError for it.
                self._split_in_texts(name)
        return super()._add_tokens(new_tokens, special_tokens)

    def _split_in_texts(self, name: str) -> None:
        """Make the tokenizer split the name of a special token after its first character if a text contains the name.

        The text then consists of other tokens, and is not mistaken for the special token.

        Raises ValueError if the name has only one character.
        """
        if len(name) == 1:
            raise InputError(f"{name!r} stands for a byte of text, so it is no special token; give a longer name.")
        # For example, the name "<sep>" gives the regular expression "<(?=sep>)".
        first_character = re.escape(name[0])
        following_characters = re.escape(name[1:])
        first_character_of_name = Regex(f"{first_character}(?={following_characters})")
        split = pre_tokenizers.Split(first_character_of_name, "isolated")
        # The tokenizer splits texts as before, and then applies the new split.
        backend = self.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, split])


def _normalizer_steps(normalization: Normalization) -> list[normalizers.Normalizer]:
    """Return the steps that normalize a text before it is tokenized; see `train_tokenizer` for what they do."""
    if normalization == "none":
        return []
    unicode_steps: list[normalizers.Normalizer]
    if normalization == "nfc":
        unicode_steps = [normalizers.NFC()]
    elif normalization == "nfkc":
        # SentencePiece's default, nmt_nfkc, also consists of these two steps.
        unicode_steps = [normalizers.Nmt(), normalizers.NFKC()]
    else:
        raise InputError(f"normalization is {normalization!r}; choose one of {', '.join(get_args(Normalization))}.")

    # Two or more white-space characters, or a single one that is not a space.
    uneven_spaces = Regex(f"[{_SPACES} ]{{2,}}|[{_SPACES}]")
    return [
        # Ignored characters are removed first, because one of them may stand between a letter and its accent.
        normalizers.Replace(Regex(_IGNORED), ""),
        *unicode_steps,
        # NFKC turns other characters into spaces, so white space is collapsed after it.
        normalizers.Replace(uneven_spaces, " "),
        normalizers.Strip(),
    ]


def _split_at_spaces(tokenizer: Tokenizer) -> None:
    """Make a tokenizer split texts into words only at spaces.

    A word consists of a space and everything up to the next space. The first word of a text needs a space as well: the
    normalizer adds it, and decoding removes it.

    If a text contains the name of a special token, the `<` at its beginning becomes a separate word. Otherwise, merges
    could form the whole name, and it would be encoded as the special token.
    """
    # The regular expression matches a "<" before the rest of such a name: <(?=pad>|s>|/s>).
    names_after_bracket = "|".join(token.removeprefix("<") for token in SPECIAL_TOKENS)
    # The order of the steps matters: the last one replaces spaces, for which the first one looks.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # For example, " a new day" is split into " a", " new" and " day".
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.Split(Regex(f"<(?={names_after_bracket})"), "isolated"),
            # This replaces each byte by a character, and with these settings it neither adds spaces nor splits.
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    # Strip removes at most 1 space at the beginning, and none at the end. It comes after ByteLevel, which restores the
    # spaces.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)])


def _split_into_characters(tokenizer: Tokenizer) -> None:
    """Make a tokenizer treat each character as a separate word, so that merges never join two characters."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 37000,
    min_frequency: int = 2,
    show_progress: bool = True,
    whitespace_words: bool = False,
    normalization: Normalization = "nfc",
    characters: bool = False,
) -> VanillaTransformerTokenizer:
    """Train a byte-pair encoding on sentences in both languages, and return a tokenizer with a joint vocabulary.

    Args:
        texts (`Iterable[str]`): sentences, both sources and targets. Texts of more than 4,192 bytes are ignored, as in
            SentencePiece, because they are rarely sentences, and a single encoded file would take many tokens.
        vocab_size (`int`, defaults to 37000): maximum number of tokens, including special tokens and the 256 bytes. A
            small corpus gives fewer tokens, so set a model's `vocab_size` to `len(tokenizer)`.
        min_frequency (`int`, defaults to 2): how often a pair of tokens must occur in order to be merged.
        show_progress (`bool`): whether to show a progress bar.
        whitespace_words (`bool`, defaults to `False`): split texts into words at spaces only, for pre-tokenized text.
            Then `&apos;` or `t-shirt` may become one token, as in Sennrich et al. 2016, and a word has the same tokens
            at the beginning of a sentence as elsewhere. By default, letters, digits and punctuation are also separated
            from each other.
        normalization (`str`, defaults to `"nfc"`): how to change texts before they are tokenized. The setting is saved
            in `tokenizer.json`. Decoding restores the normalized text, not the original one.

            - `"nfc"` removes control characters, soft hyphens, directional marks, zero-width spaces and byte order
              marks, applies Unicode's NFC, replaces every run of white space by one space, and strips both ends.
            - `"nfkc"` does the same, but applies `Nmt` and `NFKC` of the tokenizers library instead of NFC. The result
              is close to SentencePiece's default, but not equal to it.
            - `"none"` changes nothing.
        characters (`bool`, defaults to `False`): make each character a token, instead of learning pieces of words. A
            character that is rarer than `min_frequency`, or that does not occur in the texts, is encoded as its bytes.

    Returns:
        `VanillaTransformerTokenizer`: a tokenizer in which `<pad>`, `<s>` and `</s>` have the ids 0, 1 and 2.

    Raises:
        ValueError: if `vocab_size` is smaller than the number of special tokens plus 256 bytes, if `normalization` is
            unknown, or if all texts have more than 4,192 bytes.
        TypeError: if `vocab_size` is not a whole number, or if `texts` is one string or contains anything but strings.
    """
    # The 256 characters by which a byte-level encoding represents the bytes.
    byte_characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_number("vocab_size", vocab_size, len(SPECIAL_TOKENS) + len(byte_characters))
    tokenizer = _new_tokenizer(whitespace_words, normalization, characters)

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=byte_characters,
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(_leave_out_long_texts(texts), trainer)

    # This comes after the training, before which `</s>` has no id. Each text gets </s> at its end. "$A" stands for a
    # text, and "$B" for the second text of a pair.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return VanillaTransformerTokenizer(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="right",
        split_special_tokens=True,
    )


def _leave_out_long_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that have at most 4,192 bytes.

    Raises TypeError or ValueError if `texts` contains anything but strings, or if all texts are longer. It is not an
    error if there are no texts.
    """
    has_short_text = False
    has_long_text = False
    for text in check_strings("texts", texts):
        if is_long(text):
            has_long_text = True
        else:
            has_short_text = True
            yield text
    has_only_long_texts = has_long_text and not has_short_text
    if has_only_long_texts:
        raise InputError(
            f"all texts have more than {MOST_BYTES:,} bytes, so a tokenizer cannot be trained on them; split them into "
            "sentences."
        )


def _new_tokenizer(whitespace_words: bool, normalization: Normalization, characters: bool) -> Tokenizer:
    """Create a byte-pair tokenizer that is not trained yet; see [`train_tokenizer`] for the arguments.

    `characters` has no effect if `whitespace_words` is True.
    """
    tokenizer = Tokenizer(models.BPE())
    normalizer_steps = _normalizer_steps(normalization)
    if whitespace_words:
        # A space is put before the first word, so that it has the same tokens as in the middle of a sentence. This step
        # must be the last one, because earlier ones strip spaces.
        normalizer_steps.append(normalizers.Prepend(" "))
        _split_at_spaces(tokenizer)
    elif characters:
        _split_into_characters(tokenizer)
    else:
        _split_like_gpt2(tokenizer)
    if normalizer_steps:
        tokenizer.normalizer = normalizers.Sequence(normalizer_steps)
    return tokenizer


def _split_like_gpt2(tokenizer: Tokenizer) -> None:
    """Make a tokenizer split texts by GPT-2's regular expression, which separates letters, digits and punctuation."""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
