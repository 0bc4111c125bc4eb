"""Outputs of the model's forward passes, with the cache under its name in the installed transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput

from .key_value_cache import CACHE


@dataclass
class VanillaTransformerLMOutput(Seq2SeqLMOutput):
    """`Seq2SeqLMOutput`, with sums over the target tokens of the batch where the loss is computed without all logits.

    Args:
        token_sums (`torch.Tensor` of shape `(3,)`, *optional*): the cross-entropy without label smoothing in nats, the
            number of tokens whose label has the highest logit, and the number of tokens.
    """

    token_sums: torch.Tensor | None = None


def as_encoder_output(output: Mapping | tuple) -> BaseModelOutput:
    """The parts of an encoder's output that the decoder needs, by name or by position; always a new object."""
    if isinstance(output, Mapping):
        output = tuple(output.get(name) for name in ("last_hidden_state", "hidden_states", "attentions"))
    return BaseModelOutput(*output)


def with_cache(kind: type, cache: Any, **fields: Any) -> Any:
    """An output of a class of transformers', with the cache under the name that it has there."""
    return kind(**fields, **{CACHE: cache})


def model_output(encoder_outputs: BaseModelOutput, decoder_outputs: Any) -> Seq2SeqModelOutput:
    """The outputs of both stacks as one."""
    return with_cache(
        Seq2SeqModelOutput,
        decoder_outputs.get(CACHE),
        last_hidden_state=decoder_outputs.last_hidden_state,
        decoder_hidden_states=decoder_outputs.hidden_states,
        decoder_attentions=decoder_outputs.attentions,
        cross_attentions=decoder_outputs.cross_attentions,
        encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        encoder_hidden_states=encoder_outputs.hidden_states,
        encoder_attentions=encoder_outputs.attentions,
    )
