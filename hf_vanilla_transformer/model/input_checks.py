"""Checks of the tensors, caches, tokenizers and texts that a caller passes. Every error says what to do about it.

The values of labels are checked in eager mode on CPUs only, because reading them would synchronize a GPU.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput


# A text without a visible character: white space, control characters, and Unicode's default-ignorable characters.
_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)
# The field of tokenizer_config.json in which `train` saves the share of training pairs that translate a text without
# letters: the source has no letter, and the target is a different text.
LETTERLESS_SHARE_FIELD = "translated_letterless_share"
# From this share on, a model has learned to translate texts without letters, for example numbers into words. A smaller
# share is noise, or consists of pairs that only change the punctuation of a number.
_TEACHING_SHARE = 0.01


class InputError(ValueError):
    """The error for input that the user can correct. The command line prints its message without a traceback.

    The message says what was passed, what is allowed, and what to do.
    """


def can_read_values(x: Tensor) -> bool:
    """Return True if a check may read the values of x.

    Reading values would synchronize a GPU, and it would break functions that are compiled, traced or transformed.
    """
    is_ordinary = type(x) in (Tensor, nn.Parameter) and not torch._C._are_functorch_transforms_active()
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return x.device.type == "cpu" and is_ordinary and not is_traced


def check_ids_or_embeds(stack: nn.Module, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Raise ValueError if a stack gets both token ids and embeddings, or neither, or sequences without a token."""
    name = type(stack).__name__
    if input_ids is not None and inputs_embeds is not None:
        raise InputError(f"token ids and embeddings were both given to {name}; give one of them.")
    if input_ids is None and inputs_embeds is None:
        raise InputError(
            f"neither token ids nor embeddings were given to {name}; give one of them. To compute a loss, give labels "
            "to VanillaTransformerForConditionalGeneration. To translate, call its generate()."
        )
    if input_ids is not None and input_ids.shape[-1] == 0:
        raise InputError(
            f"token ids of shape {tuple(input_ids.shape)} have no token; give at least one token per sequence."
        )


def vocabulary_error(stack: nn.Module, vocab_size: int, input_ids: Any) -> InputError:
    """Make the error for token ids that have no row in a stack's embedding matrix, which has `vocab_size` rows."""
    return InputError(
        f"token ids range from {int(input_ids.min())} to {int(input_ids.max())}, but the vocabulary of "
        f"{type(stack).__name__} has ids 0 to {vocab_size - 1}; use the tokenizer that the model was trained with, or "
        "resize_token_embeddings()."
    )


def learned_positions_error(position_ids: Tensor, num_positions: int) -> InputError:
    """Make the error for a sequence that is longer than the table of learned positions."""
    return InputError(
        f"a sequence of {int(position_ids.max()) + 1} tokens was given, but this model has learned {num_positions} "
        "positions (max_position_embeddings); truncate or split it, or train a model with sinusoidal positions, which "
        "have no limit."
    )


def check_source(encoder_states: Tensor | None, attention_mask: Tensor | None) -> None:
    """Raise ValueError if the encoder's output is missing, or if it differs in length from its mask."""
    if encoder_states is None:
        raise InputError("the decoder attends to the encoder's output; give it as encoder_hidden_states.")
    source_length = encoder_states.shape[1]
    if attention_mask is not None and attention_mask.shape[-1] != source_length:
        raise InputError(
            f"the source's mask has length {attention_mask.shape[-1]}, but the encoder's output has length "
            f"{source_length}; give the mask of the encoder's input."
        )


def check_shape_of_labels(labels: Tensor, states: Tensor) -> None:
    """Raise ValueError unless there is one label `(batch, target)` for each state `(batch, target, d_model)`."""
    if labels.shape != states.shape[:2]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)}, but the decoder's inputs have shape {tuple(states.shape[:2])}; "
            "give one label per position, and -100 where there is no target."
        )


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Raise ValueError if a label is outside the vocabulary. Labels are read in eager mode on CPUs only."""
    if not can_read_values(labels) or labels.numel() == 0:
        return
    lowest, highest = labels.masked_fill(labels == -100, 0).aminmax()
    if lowest < 0 or highest >= vocab_size:
        raise InputError(
            f"labels range from {int(lowest)} to {int(highest)}, but the target vocabulary has ids 0 to "
            f"{vocab_size - 1}; use the tokenizer that the model was trained with, and -100 where there is no target."
        )


def check_right_padding(labels: Tensor) -> None:
    """Raise ValueError if labels `(batch, target)` have -100 before a token.

    Labels are read in eager mode on CPUs only, where a Trainer's collator runs.
    """
    if not can_read_values(labels):
        return
    is_ignored = labels == -100
    precedes_token = is_ignored[:, :-1] & ~is_ignored[:, 1:]
    if precedes_token.any():
        raise InputError(
            "labels are padded on the left or have gaps; pad targets on the right (tokenizer.padding_side), or give "
            "decoder_input_ids and decoder_attention_mask yourself."
        )


def either_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """Return the cache that the caller passes, by its present name or by its name before transformers 5.24.

    The earlier name causes the same warning as in transformers.

    Raises:
        ValueError: if both are passed.
    """
    if past_key_values is None:
        return cache
    if cache is not None:
        raise InputError("cache and past_key_values are two names of one argument; give one of them.")
    if not torch.compiler.is_compiling():
        message = "`past_key_values` is deprecated since transformers 5.24; call the argument `cache`."
        warnings.warn(message, FutureWarning, stacklevel=2)
    return past_key_values


def as_encoder_output(output: Mapping | tuple) -> BaseModelOutput:
    """Make a new `BaseModelOutput` of an encoder's output, with the fields that the decoder needs.

    They are taken by name from a mapping such as a `ModelOutput`, and by position from a tuple.
    """
    if isinstance(output, Mapping):
        return BaseModelOutput(
            last_hidden_state=output.get("last_hidden_state"),
            hidden_states=output.get("hidden_states"),
            attentions=output.get("attentions"),
        )
    return BaseModelOutput(*output)


def sides_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """Return the tokenizers of sources and of targets.

    Both are the tokenizer itself, unless it has two vocabularies.
    """
    source_tokenizer = getattr(tokenizer, "source_tokenizer", tokenizer)
    target_tokenizer = getattr(tokenizer, "target_tokenizer", tokenizer)
    return source_tokenizer, target_tokenizer


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer does not belong to a model.

    The tokenizer must not have more tokens than the model has embeddings, and its pad and EOS tokens must be the
    model's. Models of other types are not compared, because their configurations have other fields.
    """
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise InputError(
            f"model_max_length of the tokenizer is {tokenizer.model_max_length!r}; it must be a number, so correct it "
            "in tokenizer_config.json."
        )
    if config.model_type != "vanilla_transformer":
        return

    source_tokenizer, target_tokenizer = sides_of(tokenizer)
    if config.source_vocab_size is None:
        _check_vocab_size("vocabulary", config.vocab_size, len(source_tokenizer))
        target_vocabulary = "vocabulary"
    else:
        _check_vocab_size("source vocabulary", config.source_vocab_size, len(source_tokenizer))
        target_vocabulary = "target vocabulary"
    # `len` of a FairseqTokenizer counts the source's tokens; the target's are in `target_encoder`.
    target_tokens = getattr(target_tokenizer, "target_encoder", target_tokenizer)
    _check_vocab_size(target_vocabulary, config.vocab_size, len(target_tokens))

    for name in ("pad_token_id", "eos_token_id"):
        tokenizer_id = getattr(tokenizer, name)
        model_ids = getattr(config, name)
        if tokenizer_id not in (model_ids if isinstance(model_ids, list) else [model_ids]):
            raise InputError(
                f"{name} is {tokenizer_id} in the tokenizer and {model_ids} in the model; use a model with the "
                "tokenizer that it was trained with."
            )


def _check_vocab_size(vocabulary: str, vocab_size: int, num_tokens: int) -> None:
    """Raise ValueError if a tokenizer has more tokens than the model has embeddings for."""
    if num_tokens > vocab_size:
        raise InputError(
            f"the tokenizer has {num_tokens} tokens, but the model's {vocabulary} has {vocab_size}; use a model with "
            "the tokenizer that it was trained with."
        )


def check_generated(model: Any, tokenizer: PreTrainedTokenizerBase, sequences: Tensor) -> None:
    """Raise ValueError if a sequence is empty because the model has weights that are NaN or infinite.

    Only weights of a model that generated a sequence of special tokens are read, because reading them takes time.

    Args:
        model (`PreTrainedModel`, or an engine): the model that generated the sequences.
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer that knows the special tokens.
        sequences (`torch.Tensor` of shape `(..., target)`): generated token ids.
    """
    # A special token that the vocabulary lacks has no id.
    special_ids = [token_id for token_id in tokenizer.all_special_ids if token_id is not None]
    is_special = torch.isin(sequences, torch.tensor(special_ids, device=sequences.device))
    if is_special.all(dim=-1).any():
        check_weights(model)


def check_weights(model: Any) -> None:
    """Raise ValueError if a weight is NaN or infinite."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise InputError(f"{name} has values that are NaN or infinite; use an earlier checkpoint.")


def is_blank(text: str) -> bool:
    """Return True if a text has no visible character. Such a text is its own translation."""
    return _BLANK.fullmatch(text) is not None


def has_letters(text: str) -> bool:
    """Return True if a text has a letter of any script, that is, a character of Unicode's categories L.

    Digits, Roman numerals such as U+216B, punctuation, symbols, emoji and combining marks are not letters.
    """
    return any(map(str.isalpha, text))


def copies_letterless(tokenizer: PreTrainedTokenizerBase, otherwise: bool) -> bool:
    """Return True if texts without letters, such as numbers, should be copied instead of translated.

    They should if hardly any training pair of the tokenizer's model translates such a text. `train` saves their share
    with the tokenizer. For a model that was not trained with `train`, the result is `otherwise`.
    """
    share = saved_letterless_share(tokenizer)
    if share is None:
        return otherwise
    return not teaches_letterless(share)


def saved_letterless_share(tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Return the share of [`teaches_letterless`] that `train` saved with a tokenizer, or None if it saved none."""
    share = getattr(tokenizer, "init_kwargs", {}).get(LETTERLESS_SHARE_FIELD)
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        return None
    return float(share)


def teaches_letterless(share: float) -> bool:
    """Return True if a share of the training pairs is enough to teach a model to translate texts without letters.

    The share counts the pairs whose source has no letter and whose target is a different text.
    """
    return share >= _TEACHING_SHARE
