"""The joint byte-pair encoding of section 5.1 ("a shared source-target vocabulary"), by the tokenizers library.

It is byte-level: no character is unknown, and decoding restores every text exactly.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import TokenizersBackend

from ..support.argument_checks import check_number, check_strings


# In the order of their ids, which are the defaults of VanillaTransformerConfig.
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = SPECIAL_TOKENS


class VanillaTransformerTokenizer(TokenizersBackend):
    """Encodes sentences as token ids that end in `</s>`, and decodes them. `tokenizer.json` holds all of its state.

    `tokenizer(sentences)` encodes sources and `tokenizer(text_target=sentences)` targets. The name of a special token
    inside a text is encoded as ordinary text.
    """

    model_input_names = ["input_ids", "attention_mask"]


def _split_at_spaces(tokenizer: Tokenizer) -> None:
    """Make words of a space and all up to the next space; the first word gets a space, which decoding removes."""
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 37000,
    min_frequency: int = 2,
    show_progress: bool = True,
    whitespace_words: bool = False,
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

    Returns:
        `VanillaTransformerTokenizer`: with `<pad>`, `<s>`, `</s>` as ids 0, 1, 2.

    Raises:
        ValueError: if `vocab_size` is smaller than the number of special tokens plus 256 bytes.
        TypeError: if it is not a whole number, or `texts` is one string or contains anything but strings.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_number("vocab_size", vocab_size, len(SPECIAL_TOKENS) + len(alphabet))
    tokenizer = Tokenizer(models.BPE())
    if whitespace_words:
        _split_at_spaces(tokenizer)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
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
