"""Read a tokenizer's source and target vocabularies, and the length of the longest source seen in training."""

from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of


def vocabularies_of(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], dict[str, int]]:
    """Return the source vocabulary and the target vocabulary, each as a dict from token to id.

    If the tokenizer has a joint vocabulary, the two are equal.
    """
    # Both sides are the tokenizer itself, unless it consists of two tokenizers.
    source_side, target_side = sides_of(tokenizer)
    # MarianTokenizer with two vocabularies and FairseqTokenizer store the target vocabulary in `target_encoder`.
    target_vocabulary = getattr(target_side, "target_encoder", None)
    if not target_vocabulary:
        target_vocabulary = target_side.get_vocab()
    return source_side.get_vocab(), target_vocabulary


def longest_training_source(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the length in tokens of the longest source that a model was trained on.

    `train` stores this number in the tokenizer. If it is missing, the maximum length that the tokenizer allows is
    returned.
    """
    longest = tokenizer.init_kwargs.get("longest_training_source")
    if isinstance(longest, int):
        return longest
    return tokenizer.model_max_length
