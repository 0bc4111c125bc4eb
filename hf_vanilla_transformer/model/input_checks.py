"""Check the tensors, caches, tokenizers and texts that a caller passes, and raise errors that say what to change.

The values of labels are checked only in eager mode on CPUs, because reading them would synchronize a GPU.
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


# This pattern matches a text without visible characters, which has only white space, control characters and Unicode's
# default-ignorable characters.
_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)
# `train` saves the share of training pairs that translate a text without letters in this field of
# tokenizer_config.json. The source of such a pair has no letter, and its target is a different text.
LETTERLESS_SHARE_FIELD = "translated_letterless_share"
# With at least this share, a model learns to translate texts without letters, for example numbers into words. A smaller
# share is noise, or consists of pairs that only change the punctuation of a number.
_TEACHING_SHARE = 0.01


class InputError(ValueError):
    """The error for input that the user can correct.

    The message says what was passed, what is allowed, and what to do. The command line prints it without a traceback.
    """


def can_read_values(x: Tensor) -> bool:
    """Return True if x is an ordinary CPU tensor in eager mode, so that a check may read its values.

    Reading values would synchronize a GPU, and would break functions that torch compiles, traces or transforms.
    """
    # A derived class such as FakeTensor may have no values, and transforms of torch.func such as vmap hide the values.
    is_ordinary = type(x) in (Tensor, nn.Parameter) and not torch._C._are_functorch_transforms_active()
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return x.device.type == "cpu" and is_ordinary and not is_traced


def check_ids_or_embeds(stack: nn.Module, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Raise ValueError unless the encoder or decoder, `stack`, gets either token ids or embeddings.

    Token ids must have at least one token.
    """
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
    """Create the error for token ids that are outside the vocabulary of the encoder or decoder.

    The embedding matrix of `stack` has `vocab_size` rows.
    """
    return InputError(
        f"token ids range from {int(input_ids.min())} to {int(input_ids.max())}, but the vocabulary of "
        f"{type(stack).__name__} has ids 0 to {vocab_size - 1}; use the tokenizer that the model was trained with, or "
        "resize_token_embeddings()."
    )


def learned_positions_error(position_ids: Tensor, num_positions: int) -> InputError:
    """Create the error for a sequence that is longer than the table of learned positions."""
    return InputError(
        f"a sequence of {int(position_ids.max()) + 1} tokens was given, but this model has learned {num_positions} "
        "positions (max_position_embeddings); truncate or split it, or train a model with sinusoidal positions, which "
        "have no limit."
    )


def check_source(encoder_states: Tensor | None, attention_mask: Tensor | None) -> None:
    """Raise ValueError if the encoder's output is missing, or if its length differs from the length of its mask."""
    if encoder_states is None:
        raise InputError("the decoder attends to the encoder's output; give it as encoder_hidden_states.")
    source_length = encoder_states.shape[1]
    if attention_mask is not None and attention_mask.shape[-1] != source_length:
        raise InputError(
            f"the source's mask has length {attention_mask.shape[-1]}, but the encoder's output has length "
            f"{source_length}; give the mask of the encoder's input."
        )


def check_shape_of_labels(labels: Tensor, states: Tensor) -> None:
    """Raise ValueError unless there is one label for each of the decoder's output states.

    Labels have the shape `(batch, target)`, and states have the shape `(batch, target, d_model)`.
    """
    if labels.shape != states.shape[:2]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)}, but the decoder's inputs have shape {tuple(states.shape[:2])}; "
            "give one label per position, and -100 where there is no target."
        )


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Raise ValueError if a label is outside the vocabulary. Labels are checked only in eager mode on CPUs."""
    if not can_read_values(labels) or labels.numel() == 0:
        return
    # Token 0 takes the place of -100, which marks positions without a target, because it is in every vocabulary.
    lowest, highest = labels.masked_fill(labels == -100, 0).aminmax()
    if lowest < 0 or highest >= vocab_size:
        raise InputError(
            f"labels range from {int(lowest)} to {int(highest)}, but the target vocabulary has ids 0 to "
            f"{vocab_size - 1}; use the tokenizer that the model was trained with, and -100 where there is no target."
        )


def check_right_padding(labels: Tensor) -> None:
    """Raise ValueError if labels are not padded on the right, i.e. if -100 precedes a token.

    Labels have the shape `(batch, target)`. They are checked only in eager mode on CPUs, where the Trainer's data
    collator runs.
    """
    if not can_read_values(labels):
        return
    is_ignored = labels == -100
    # (batch, target - 1): True if a position has no target, but the next position has one.
    precedes_token = is_ignored[:, :-1] & ~is_ignored[:, 1:]
    if precedes_token.any():
        raise InputError(
            "labels are padded on the left or have gaps; pad targets on the right (tokenizer.padding_side), or give "
            "decoder_input_ids and decoder_attention_mask yourself."
        )


def either_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """Return the caller's KV cache, which may be passed by its current name or by its earlier name.

    The argument `cache` was called `past_key_values` before transformers 5.24. The earlier name causes a deprecation
    warning, as in transformers.

    Raises:
        ValueError: if both arguments are passed.
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
    """Convert the output of an encoder to a new `BaseModelOutput` with the fields that the decoder needs.

    Fields are read by name from a mapping such as a `ModelOutput`, and by position from a tuple. The order in a tuple
    is `last_hidden_state`, `hidden_states`, `attentions`, of which only the first is required.
    """
    if isinstance(output, Mapping):
        return BaseModelOutput(
            last_hidden_state=output.get("last_hidden_state"),
            hidden_states=output.get("hidden_states"),
            attentions=output.get("attentions"),
        )
    return BaseModelOutput(*output)


def sides_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """Return the tokenizer for source sentences and the tokenizer for target sentences.

    Both are the tokenizer itself, unless it has two vocabularies.
    """
    source_tokenizer = getattr(tokenizer, "source_tokenizer", tokenizer)
    target_tokenizer = getattr(tokenizer, "target_tokenizer", tokenizer)
    return source_tokenizer, target_tokenizer


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if the model and the tokenizer do not match.

    The tokenizer must not have more tokens than the model has embeddings, and both must have the same pad and EOS
    tokens. Models of other types are not compared, because their configurations have other fields.
    """
    # This check comes first, because it applies to models of all types.
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise InputError(
            f"model_max_length of the tokenizer is {tokenizer.model_max_length!r}; it must be a number, so correct it "
            "in tokenizer_config.json."
        )
    if config.model_type != "vanilla_transformer":
        return

    _check_numbers_of_tokens(config, tokenizer)
    _check_same_token_id("pad_token_id", config, tokenizer)
    _check_same_token_id("eos_token_id", config, tokenizer)


def _check_numbers_of_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if the tokenizer has more source tokens or target tokens than the model has embeddings for."""
    # Both are `tokenizer` itself, unless it has two vocabularies.
    source_tokenizer, target_tokenizer = sides_of(tokenizer)
    num_source_tokens = len(source_tokenizer)
    # `len` counts only the source tokens of a FairseqTokenizer. Its target tokens are in `target_encoder`.
    num_target_tokens = len(getattr(target_tokenizer, "target_encoder", target_tokenizer))
    if config.source_vocab_size is None:
        _check_vocab_size("vocabulary", config.vocab_size, num_source_tokens)
        _check_vocab_size("vocabulary", config.vocab_size, num_target_tokens)
    else:
        _check_vocab_size("source vocabulary", config.source_vocab_size, num_source_tokens)
        _check_vocab_size("target vocabulary", config.vocab_size, num_target_tokens)


def _check_same_token_id(name: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a special token has different ids in model and tokenizer; `name` is, e.g., "pad_token_id"."""
    tokenizer_id = getattr(tokenizer, name)
    model_ids = getattr(config, name)
    # A model may have several EOS tokens.
    if isinstance(model_ids, list):
        is_same = tokenizer_id in model_ids
    else:
        is_same = tokenizer_id == model_ids
    if not is_same:
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
    """Raise ValueError if a translation is empty because weights of the model are NaN or infinite.

    The weights are checked only if a sequence consists of special tokens, because reading them takes time.

    Args:
        model (`PreTrainedModel`, or an inference engine): the model that generated the sequences.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer, which defines the special tokens.
        sequences (`torch.Tensor` of shape `(..., target)`): generated token ids.
    """
    # The id of a special token is None if the vocabulary lacks the token.
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
    """Return True if a text has no visible character. Such texts are copied instead of translated."""
    return _BLANK.fullmatch(text) is not None


def has_letters(text: str) -> bool:
    """Return True if a text contains a letter of any script, i.e. a character of a Unicode category for letters.

    Digits, Roman numerals such as U+216B, punctuation, symbols, emoji and combining marks are not letters.
    """
    return any(map(str.isalpha, text))


def copies_letterless(tokenizer: PreTrainedTokenizerBase, otherwise: bool) -> bool:
    """Return True if texts without letters, such as numbers, should be copied instead of translated.

    They should be copied if fewer than 1 % of the training pairs translate such a text. `train` saves this share with
    the tokenizer. If no share was saved, as for a model that was trained with other software, the result is
    `otherwise`.
    """
    share = saved_letterless_share(tokenizer)
    if share is None:
        return otherwise
    return not teaches_letterless(share)


def saved_letterless_share(tokenizer: PreTrainedTokenizerBase) -> float | None:
    """Return the share of training pairs that translate a text without letters, or None if it was not saved.

    `train` saves this share with the tokenizer; see [`teaches_letterless`].
    """
    share = getattr(tokenizer, "init_kwargs", {}).get(LETTERLESS_SHARE_FIELD)
    # A damaged file may contain a value of any type. Python counts True and False as numbers.
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        return None
    return float(share)


def teaches_letterless(share: float) -> bool:
    """Return True if a model learns to translate texts without letters, because enough training pairs do so.

    Args:
        share (`float`): the share of training pairs whose source has no letter and whose target is a different text.
    """
    return share >= _TEACHING_SHARE
