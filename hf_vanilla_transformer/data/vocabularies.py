"""Facts about a tokenizer: its two vocabularies, and the longest source that its model was trained on."""

from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of


def vocabularies_of(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], dict[str, int]]:
    """Return the vocabularies of sources and of targets, each a dict from token to id.

    A tokenizer with a joint vocabulary has the same one twice.
    """
    source_side, target_side = sides_of(tokenizer)
    # MarianTokenizer with two vocabularies and FairseqTokenizer have the target's vocabulary in `target_encoder`.
    target_vocabulary = getattr(target_side, "target_encoder", None)
    if not target_vocabulary:
        target_vocabulary = target_side.get_vocab()
    return source_side.get_vocab(), target_vocabulary


def longest_training_source(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of tokens of the longest source that a model was trained on.

    If the tokenizer does not say so, this is the maximum length that the tokenizer allows.
    """
    longest = tokenizer.init_kwargs.get("longest_training_source")
    if isinstance(longest, int):
        return longest
    return tokenizer.model_max_length
