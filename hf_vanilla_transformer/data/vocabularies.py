"""What the vocabularies of a tokenizer have, and the longest source that its model was trained on."""

from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of


def vocabularies_of(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], dict[str, int]]:
    """The vocabularies of sources and of targets, token to id: one twice, unless there are two."""
    source, target = sides_of(tokenizer)
    # MarianTokenizer with two vocabularies and FairseqTokenizer have the target's in `target_encoder`.
    return source.get_vocab(), getattr(target, "target_encoder", None) or target.get_vocab()


def longest_training_source(tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens of the longest source that a model was trained on, or else the most that its tokenizer allows."""
    longest = tokenizer.init_kwargs.get("longest_training_source")
    return longest if isinstance(longest, int) else tokenizer.model_max_length
