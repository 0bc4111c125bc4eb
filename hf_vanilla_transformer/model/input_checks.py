"""Checks of the model's inputs; each error names the fault and its remedy.

Labels are checked in eager mode on CPUs only, because reading their values would synchronize a GPU.
"""

from typing import Any

import torch
from torch import nn

from .fast_path_checks import is_plain_cpu_tensor
from .input_error import InputError


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
    if not is_plain_cpu_tensor(labels) or labels.numel() == 0:
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
    if is_plain_cpu_tensor(labels):
        ignored = labels == -100
        if (ignored[:, :-1] & ~ignored[:, 1:]).any():
            raise InputError(
                "labels are padded on the left or have gaps; pad targets on the right (tokenizer.padding_side), or "
                "give decoder_input_ids and decoder_attention_mask yourself."
            )
