"""Checks of what a caller gives: tensors, caches, tokenizers and texts. Each error names the fault and its remedy.

Labels are checked in eager mode on CPUs only, because reading their values would synchronize a GPU.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput


# Text without a visible character: white space, controls, and what Unicode calls default-ignorable.
_BLANK = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)
# The field of tokenizer_config.json in which `train` saves the share of its pairs whose source has no letter and whose
# target is a different text.
LETTERLESS_SHARE_FIELD = "translated_letterless_share"
# From this share on, a model has learned to translate texts without letters, for example numbers into words. Fewer such
# pairs are noise, or only change the punctuation of a number.
_TEACHING_SHARE = 0.01


class InputError(ValueError):
    """What was given, what is allowed, and what to do; the command line prints it in one line."""


def can_read_values(x: torch.Tensor) -> bool:
    """Whether reading values of x waits for no device, and breaks no compiled, traced or transformed function."""
    is_ordinary = type(x) in (torch.Tensor, nn.Parameter) and not torch._C._are_functorch_transforms_active()
    is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return x.device.type == "cpu" and is_ordinary and not is_traced


def check_ids_or_embeds(stack: nn.Module, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> None:
    """Raise ValueError if a stack is given both token ids and embeddings, or neither, or ids without a token."""
    name = type(stack).__name__
    if input_ids is not None and inputs_embeds is not None:
        raise InputError(f"token ids and embeddings were both given to {name}; give one of them.")
    if input_ids is None and inputs_embeds is None:
        raise InputError(
            f"neither token ids nor embeddings were given to {name}; give one of them; or, for a loss, give labels to "
            "VanillaTransformerForConditionalGeneration; or, to translate, call its generate()."
        )
    if input_ids is not None and input_ids.shape[-1] == 0:
        raise InputError(f"token ids of shape {tuple(input_ids.shape)} have no token; give at least one each.")


def outside_vocabulary(stack: Any, input_ids: Any) -> InputError:
    """The error for token ids that a stack has no embedding for."""
    return InputError(
        f"token ids range from {int(input_ids.min())} to {int(input_ids.max())}, but the vocabulary of "
        f"{type(stack).__name__} has ids 0 to {stack.embed_tokens.num_embeddings - 1}; use the tokenizer that the "
        "model was trained with, or resize_token_embeddings()."
    )


def outside_learned_positions(position_ids: torch.Tensor, most: int) -> InputError:
    """The error for a sequence that is longer than a table of `most` learned positions."""
    return InputError(
        f"a sequence of {int(position_ids.max()) + 1} tokens was given, but this model has learned "
        f"{most} positions (max_position_embeddings); truncate or split it, "
        "or train a model with sinusoidal positions, which have no limit."
    )


def check_source(states: torch.Tensor | None, attention_mask: torch.Tensor | None) -> None:
    """Raise ValueError if the encoder's output is missing, or differs in length from its mask."""
    if states is None:
        raise InputError("the decoder attends to the encoder's output; give it as encoder_hidden_states.")
    source = states.shape[1]
    if attention_mask is not None and attention_mask.shape[-1] != source:
        raise InputError(
            f"the source's mask has length {attention_mask.shape[-1]}, and the encoder's output has length "
            f"{source}; give the mask of the encoder's input."
        )


def check_shape_of_labels(labels: torch.Tensor, states: torch.Tensor) -> None:
    """Raise ValueError unless labels `(batch, target)` have one entry for each state `(batch, target, d_model)`."""
    if labels.shape != states.shape[:2]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)}, and the decoder's inputs {tuple(states.shape[:2])}; "
            "give one label per position, -100 where there is no target."
        )


def check_labels(labels: torch.Tensor, vocab_size: int) -> None:
    """Check that labels are in the vocabulary, in eager mode on CPUs.

    Raises:
        ValueError: if a label is outside the vocabulary.
    """
    if not can_read_values(labels) or labels.numel() == 0:
        return
    lowest, highest = labels.masked_fill(labels == -100, 0).aminmax()
    if lowest < 0 or highest >= vocab_size:
        raise InputError(
            f"labels range from {int(lowest)} to {int(highest)}, but the target vocabulary has ids 0 to "
            f"{vocab_size - 1}; use the tokenizer that the model was trained with, and -100 where there is no "
            "target."
        )


def check_right_padding(labels: torch.Tensor) -> None:
    """Raise ValueError if labels are padded on the left, in eager mode on CPUs, where a Trainer's collator runs."""
    if can_read_values(labels):
        ignored = labels == -100
        if (ignored[:, :-1] & ~ignored[:, 1:]).any():
            raise InputError(
                "labels are padded on the left or have gaps; pad targets on the right (tokenizer.padding_side), or "
                "give decoder_input_ids and decoder_attention_mask yourself."
            )


def either_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that a caller gave by one of its names; by the earlier one with a warning, as transformers gives it.

    Raises:
        ValueError: if both are given.
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
    """The parts of an encoder's output that the decoder needs, by name or by position; always a new object."""
    if isinstance(output, Mapping):
        output = tuple(output.get(name) for name in ("last_hidden_state", "hidden_states", "attentions"))
    return BaseModelOutput(*output)


def sides_of(tokenizer: PreTrainedTokenizerBase) -> tuple[Any, Any]:
    """The tokenizers of sources and of targets: itself twice, unless it has two vocabularies."""
    return getattr(tokenizer, "source_tokenizer", tokenizer), getattr(tokenizer, "target_tokenizer", tokenizer)


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has more tokens than a model of ours has embeddings, or other special tokens."""
    if not isinstance(tokenizer.model_max_length, (int, float)):
        raise InputError(f"model_max_length of the tokenizer is {tokenizer.model_max_length!r}; it must be a number.")
    if config.model_type != "vanilla_transformer":
        return
    if config.source_vocab_size is None:
        sizes = [("vocabulary", config.vocab_size)] * 2
    else:
        sizes = [("source vocabulary", config.source_vocab_size), ("target vocabulary", config.vocab_size)]
    source, target = sides_of(tokenizer)
    # As in `vocabularies_of`, but without making dictionaries for each call.
    counts = (len(source), len(getattr(target, "target_encoder", target)))
    for (name, rows), count in zip(sizes, counts, strict=True):
        if count > rows:
            raise InputError(
                f"the tokenizer has {count} tokens, but the model's {name} {rows}; "
                "use a model with the tokenizer that it was trained with."
            )
    for token in ("pad_token_id", "eos_token_id"):
        of_the_model = getattr(config, token)
        if getattr(tokenizer, token) not in (of_the_model if isinstance(of_the_model, list) else [of_the_model]):
            raise InputError(
                f"{token} is {getattr(tokenizer, token)} in the tokenizer and {of_the_model} in the model; "
                "use a model with the tokenizer that it was trained with."
            )


def check_generated(model: Any, tokenizer: PreTrainedTokenizerBase, sequences: torch.Tensor) -> None:
    """Raise ValueError if a sequence `(..., target)` has only special tokens because weights are NaN or infinite."""
    # A special token that the vocabulary lacks has no id.
    ids = [token for token in tokenizer.all_special_ids if token is not None]
    special = torch.tensor(ids, device=sequences.device)
    if torch.isin(sequences, special).all(dim=-1).any():
        check_weights(model)


def check_weights(model: Any) -> None:
    """Raise ValueError if a weight is NaN or infinite."""
    for name, values in model.named_parameters():
        if values.is_floating_point() and not values.isfinite().all():
            raise InputError(f"{name} has values that are NaN or infinite; use an earlier checkpoint.")


def is_blank(text: str) -> bool:
    """Whether a text has no visible character, so that it is its own translation."""
    return _BLANK.fullmatch(text) is not None


def has_letters(text: str) -> bool:
    """Return True if a text has a letter of any script: a character of Unicode's categories L.

    Digits, roman numerals such as U+216B, punctuation, symbols, emoji and combining marks alone are no letters.
    """
    return any(map(str.isalpha, text))


def copies_letterless(tokenizer: Any, otherwise: bool) -> bool:
    """Return True if texts without letters, such as numbers, are their own translations for the tokenizer's model.

    They are if `train` counted hardly any pairs that translate such a text. If the model's folder does not say, because
    the model comes from elsewhere, the result is `otherwise`.
    """
    share = saved_letterless_share(tokenizer)
    if share is None:
        return otherwise
    return not teaches_letterless(share)


def saved_letterless_share(tokenizer: Any) -> float | None:
    """Return the share that `train` saved with a tokenizer, see [`teaches_letterless`]; None if there is no number."""
    share = getattr(tokenizer, "init_kwargs", {}).get(LETTERLESS_SHARE_FIELD)
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        return None
    return float(share)


def teaches_letterless(share: float) -> bool:
    """Return True if a share of the training pairs is enough to teach a model how to translate texts without letters.

    These are pairs whose source has no letter and whose target is a different text.
    """
    return share >= _TEACHING_SHARE
