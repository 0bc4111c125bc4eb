"""Outputs of the model's forward passes, with the cache under the name that the installed transformers uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)

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


def decoder_output(states: torch.Tensor, cache: Any) -> BaseModelOutputWithPastAndCrossAttentions:
    """The decoder's output: states `(batch, target, d_model)`, and the cache."""
    fields: dict[str, Any] = {CACHE: cache}
    return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states, **fields)


def model_output(encoder_outputs: BaseModelOutput, decoder_outputs: Any) -> Seq2SeqModelOutput:
    """The outputs of both stacks as one."""
    fields: dict[str, Any] = {CACHE: decoder_outputs.get(CACHE)}
    return Seq2SeqModelOutput(
        last_hidden_state=decoder_outputs.last_hidden_state,
        decoder_hidden_states=decoder_outputs.hidden_states,
        decoder_attentions=decoder_outputs.attentions,
        cross_attentions=decoder_outputs.cross_attentions,
        encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        encoder_hidden_states=encoder_outputs.hidden_states,
        encoder_attentions=encoder_outputs.attentions,
        **fields,
    )


def lm_output(
    outputs: Seq2SeqModelOutput, loss: torch.Tensor | None, logits: torch.Tensor | None, sums: torch.Tensor | None
) -> VanillaTransformerLMOutput:
    """The outputs of both stacks with the loss, the logits and the `token_sums`, instead of the decoder's states."""
    fields = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
    return VanillaTransformerLMOutput(loss=loss, logits=logits, token_sums=sums, **fields)
