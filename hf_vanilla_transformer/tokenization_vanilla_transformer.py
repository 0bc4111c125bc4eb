"""The joint byte-pair encoding of section 5.1 ("a shared source-target vocabulary"), by the tokenizers library.

It works on bytes, so no character is unknown, and every text comes back exactly as it went in.
"""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import TokenizersBackend


# In the order of their ids, which are the defaults of VanillaTransformerConfig.
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = SPECIAL_TOKENS


class VanillaTransformerTokenizer(TokenizersBackend):
    """Sentences to token ids ending in `</s>`, and back. Everything it knows is in `tokenizer.json`.

    `tokenizer(sentences)` encodes sources, `tokenizer(text_target=sentences)` targets; a text that spells a special
    token is encoded as the text it is.
    """

    model_input_names = ["input_ids", "attention_mask"]


def _only_strings(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts holds {text!r}, a {type(text).__name__}; give sentences, each a string.")
        yield text


def _cut_at_blanks(tokenizer: Tokenizer) -> None:
    """A word is a blank and all up to the next one; the first word is given a blank, which decoding takes off."""
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
    """Learn a joint byte-pair encoding from sentences of both languages.

    Args:
        texts (`Iterable[str]`): sentences, sources and targets alike.
        vocab_size (`int`, defaults to 37000): the most tokens, with the special ones and the 256 bytes; a small corpus
            gives fewer: `len(tokenizer)` is what a model's `vocab_size` must be.
        min_frequency (`int`, defaults to 2): how often a pair must occur to become a token.
        show_progress (`bool`): whether to show a progress bar.
        whitespace_words (`bool`, defaults to `False`): cut texts into words at blanks alone, for text that is tokenised
            already: `&apos;` or `t-shirt` may become one token, as in Sennrich et al. 2016, and a word has the same
            tokens at the beginning of a sentence as elsewhere. Otherwise letters, digits and signs are told apart.

    Returns:
        `VanillaTransformerTokenizer`: with `<pad>`, `<s>`, `</s>` as ids 0, 1, 2.

    Raises:
        ValueError: if `vocab_size` leaves no room for the special tokens and the 256 bytes.
        TypeError: if `texts` is one string, or holds something else than strings.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size is {vocab_size}; it must be at least {smallest}: {len(SPECIAL_TOKENS)} special tokens and "
            f"{len(alphabet)} bytes."
        )
    if isinstance(texts, str):
        raise TypeError("texts is one string; give an iterable of sentences.")

    tokenizer = Tokenizer(models.BPE())
    if whitespace_words:
        _cut_at_blanks(tokenizer)
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
    tokenizer.train_from_iterator(_only_strings(texts), trainer)
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
