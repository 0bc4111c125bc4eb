"""The joint byte-pair encoding of section 5.1 ("a shared source-target vocabulary"), by the tokenizers library.

It is byte-level: no character is unknown, and decoding restores every normalized text exactly.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import TokenizersBackend

from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError


Normalization = Literal["nfc", "nfkc", "none"]
# In the order of their ids, which are the defaults of VanillaTransformerConfig.
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = SPECIAL_TOKENS
# Characters without effect on a text's meaning: controls, soft hyphens, marks of direction, zero-width spaces, byte
# order marks. Joiners of emoji and of Indic and Arabic scripts stay, and so do number signs and tags of flags.
_IGNORED = (
    r"[\u0000-\u0008\u000E-\u001F\u007F-\u0084\u0086-\u009F\u00AD\u061C\u180E\u200B\u200E\u200F"
    r"\u202A-\u202E\u2060-\u2064\u2066-\u206F\uFEFF]+"
)
# Unicode's White_Space without the space.
_SPACES = r"\u0009-\u000D\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"


class VanillaTransformerTokenizer(TokenizersBackend):
    """Encodes sentences as token ids that end in `</s>`, and decodes them. `tokenizer.json` holds all of its state.

    `tokenizer(sentences)` encodes sources and `tokenizer(text_target=sentences)` targets. The name of a special token
    inside a text is encoded as ordinary text.
    """

    model_input_names = ["input_ids", "attention_mask"]

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens; a special token that merges spell is split in text, which would be encoded as it otherwise."""
        backend = self.backend_tokenizer
        spelled = backend.get_vocab(with_added_tokens=False).keys() - self.added_tokens_encoder.keys()
        for token in spelled.intersection(map(str, new_tokens)) if special_tokens else ():
            if len(token) == 1:
                raise InputError(f"{token!r} stands for a byte of text, so it is no special token; give a longer name.")
            parts = Regex(f"{re.escape(token[0])}(?={re.escape(token[1:])})")
            splits = [backend.pre_tokenizer, pre_tokenizers.Split(parts, "isolated")]
            backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
        return super()._add_tokens(new_tokens, special_tokens)


def _normalizer_steps(normalization: Normalization) -> list[Any]:
    if normalization == "none":
        return []
    forms: dict[str, list[Any]] = {"nfc": [normalizers.NFC()], "nfkc": [normalizers.Nmt(), normalizers.NFKC()]}
    if normalization not in forms:
        raise InputError(f"normalization is {normalization!r}; choose one of {', '.join(get_args(Normalization))}.")
    to_one_space = normalizers.Replace(Regex(f"[{_SPACES} ]{{2,}}|[{_SPACES}]"), " ")
    # The first step joins letters and their accents, the last but one finds the spaces that NFKC makes.
    return [normalizers.Replace(Regex(_IGNORED), ""), *forms[normalization], to_one_space, normalizers.Strip()]


def _split_at_spaces(tokenizer: Tokenizer) -> None:
    """Make words of a space and all up to the next space; the first word gets a space, which decoding removes.

    A `<` that begins a special token is a word of its own, because merges could spell the token otherwise.
    """
    names = "|".join(token.removeprefix("<") for token in SPECIAL_TOKENS)
    splits = [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Split(Regex(f"<(?={names})"), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 37000,
    min_frequency: int = 2,
    show_progress: bool = True,
    whitespace_words: bool = False,
    normalization: Normalization = "nfc",
    characters: bool = False,
) -> VanillaTransformerTokenizer:
    """Train a joint byte-pair encoding on sentences of both languages.

    Args:
        texts (`Iterable[str]`): sentences, sources and targets alike.
        vocab_size (`int`, defaults to 37000): maximum number of tokens, including special tokens and the 256 bytes; a
            small corpus gives fewer. Set a model's `vocab_size` to `len(tokenizer)`.
        min_frequency (`int`, defaults to 2): minimum number of occurrences for a pair to be merged.
        show_progress (`bool`): whether to show a progress bar.
        whitespace_words (`bool`, defaults to `False`): split texts into words at spaces only, for pre-tokenized text:
            `&apos;` or `t-shirt` may become one token, as in Sennrich et al. 2016, and a word has the same tokens at
            the beginning of a sentence as elsewhere. Otherwise letters, digits and punctuation are split.
        characters (`bool`, defaults to `False`): make each character a token, instead of pieces of words; a character
            that is rarer than `min_frequency`, or that the texts lack, is encoded as its bytes.
        normalization (`str`, defaults to `"nfc"`): changes of texts before they are tokenized, saved in
            `tokenizer.json`; decoding restores the changed text. `"nfc"` removes controls, soft hyphens, marks of
            direction, zero-width spaces and byte order marks, applies Unicode's NFC, makes one space of every run of
            white space, and strips both ends. `"nfkc"` is the same with `Nmt` and `NFKC` of the tokenizers library,
            which are close to SentencePiece's default, not equal. `"none"` changes nothing.

    Returns:
        `VanillaTransformerTokenizer`: with `<pad>`, `<s>`, `</s>` as ids 0, 1, 2.

    Raises:
        ValueError: if `vocab_size` is smaller than the number of special tokens plus 256 bytes, or `normalization` is
            unknown.
        TypeError: if it is not a whole number, or `texts` is one string or contains anything but strings.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_number("vocab_size", vocab_size, len(SPECIAL_TOKENS) + len(alphabet))
    tokenizer = Tokenizer(models.BPE())
    steps = _normalizer_steps(normalization)
    if whitespace_words:
        steps.append(normalizers.Prepend(" "))
        _split_at_spaces(tokenizer)
    else:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not characters)
        splits = [pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")] if characters else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes]) if splits else to_bytes
        tokenizer.decoder = decoders.ByteLevel()
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(check_strings("texts", texts), trainer)
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
