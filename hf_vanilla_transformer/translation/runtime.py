"""A common interface to models in torch and to engines, for the steps that the two do differently.

Translating, scoring, aligning, serving and plotting call `runtime_of`, and do not test themselves what a model is.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from .engine import Engine


class ForcedTarget(NamedTuple):
    """The result of forced decoding for one target.

    Args:
        log_probs (`list[float]`): the log-probability of each token given the tokens before it, in nats.
        attention (`torch.Tensor` of shape `(target, source)`, *optional*): cross-attention in the step that predicts
            each token, averaged over the alignment heads, on the CPU.
    """

    log_probs: list[float]
    attention: torch.Tensor | None


class Runtime(ABC):
    """A model as torch or an engine computes it: facts about it, and its forced decoding."""

    # Completes the sentence "terms do not work with ...".
    description: str
    # Decoder layer and head, from 0, of the attention that alignments are read from. Empty if there is none.
    alignment_heads: list[tuple[int, int]]
    # Says why there is no such attention, if there is none.
    reason_without_alignments: str
    # Whether a search can be forced to find translations that contain given phrases.
    takes_phrases: bool
    # Whether `generate()` calls logits processors and all stopping criteria at every step. An engine calls only the
    # criteria that watch the search, and only from time to time.
    calls_processors: bool
    # Whether the model is a module of torch, whose forward pass can return other outputs, such as attention weights.
    has_forward_pass: bool

    @abstractmethod
    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Compute log-probabilities, and attention if requested, of given targets with one forward pass.

        The model must be in evaluation mode.

        Args:
            sources (`Sequence[list[int]]`): token ids of each source; at least one.
            targets (`Sequence[list[int]]`): token ids of each target, at least one, without the start token of the
                decoder.
            with_attention (`bool`): whether to compute attention.
        """


def runtime_of(model: PreTrainedModel | Engine, tokenizer: PreTrainedTokenizerBase) -> Runtime:
    """Return the runtime of a model in torch or of an [`~.engine.Engine`]."""
    if isinstance(model, Engine):
        return EngineRuntime(model)
    return TorchRuntime(model, tokenizer)


class EngineRuntime(Runtime):
    """The runtime of an engine."""

    description = "a different engine than torch"
    reason_without_alignments = "CTranslate2 averages heads of one layer only"
    takes_phrases = False
    calls_processors = False
    has_forward_pass = False

    def __init__(self, engine: Engine):
        self._engine = engine
        self.alignment_heads = engine.alignment_heads

    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Compute log-probabilities and attention, see [`Runtime.decode_forced`]; attention takes a second pass."""
        source_ids = list(sources)
        target_ids = list(targets)
        attentions: Sequence[torch.Tensor | None] = [None] * len(target_ids)
        if with_attention:
            attentions = self._engine.attention(source_ids, target_ids)
        log_probs = self._engine.log_probs(source_ids, target_ids)
        return map(ForcedTarget, log_probs, attentions)


class TorchRuntime(Runtime):
    """The runtime of a model in torch: a model of this package, or a different encoder-decoder of transformers."""

    reason_without_alignments = "it is no model of this package"
    calls_processors = True
    has_forward_pass = True

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        # Models of transformers have methods that their base class does not declare.
        self._model: Any = model
        self._tokenizer = tokenizer
        model_type = model.config.model_type
        self.description = f'a model of the type "{model_type}"'
        self.takes_phrases = model_type == VanillaTransformerConfig.model_type
        self.alignment_heads = []
        # An ensemble has a configuration with alignment heads, but no decoder layers of its own to read them from.
        if hasattr(model, "get_decoder") and hasattr(model.get_decoder(), "layers"):
            self.alignment_heads = list(getattr(model.config, "heads_for_alignment", []))

    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Compute log-probabilities and attention, see [`Runtime.decode_forced`]."""
        model = self._model
        source = self._pad(sources)
        target = self._pad(targets)
        labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        options = {"output_hidden_states": True} if with_attention else {}
        output = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False, **options)

        attention = None
        if with_attention:
            attention = self._average_attention(
                output.decoder_hidden_states, output.encoder_last_hidden_state, source.attention_mask
            )
        # An ensemble has log-probabilities in the place of logits.
        log_softmax = partial(torch.log_softmax, dim=-1)
        log_probabilities = getattr(model, "log_probabilities", log_softmax)

        # Row by row, because the log-probabilities of all rows would take as much memory as the logits.
        for row, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True)):
            source_length = len(source_ids)
            target_length = len(target_ids)
            target_tokens = target.input_ids[row, :, None]
            log_probs = log_probabilities(output.logits[row].float()).gather(-1, target_tokens)
            attention_of_pair = None
            if attention is not None:
                attention_of_pair = attention[row, :target_length, :source_length].cpu()
            yield ForcedTarget(log_probs[:target_length, 0].tolist(), attention_of_pair)

    def _pad(self, rows: Sequence[list[int]]) -> BatchEncoding:
        """Return the token ids and the mask of a batch on the model's device, padded on the right."""
        padded = self._tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side="right")
        return padded.to(self._model.device)

    def _average_attention(
        self, layer_inputs: Sequence[torch.Tensor], source_states: torch.Tensor, source_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the cross-attention `(batch, target, source)`, averaged over the alignment heads, in float32.

        Args:
            layer_inputs (`Sequence[torch.Tensor]`): the input of each decoder layer.
            source_states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
            source_mask (`torch.Tensor` of shape `(batch, source)`): 0 for padding.
        """
        decoder_layers = self._model.get_decoder().layers
        attention_of_layer = {}
        for layer in {layer for layer, _ in self.alignment_heads}:
            attention_of_layer[layer] = _cross_attention(
                decoder_layers[layer], layer_inputs[layer], source_states, source_mask
            )
        heads = [attention_of_layer[layer][:, head].float() for layer, head in self.alignment_heads]
        return torch.stack(heads).mean(dim=0)


def _cross_attention(
    layer: nn.Module, layer_input: torch.Tensor, source_states: torch.Tensor, source_mask: torch.Tensor
) -> torch.Tensor:
    """Compute the cross-attention weights of a decoder layer, of shape `(batch, heads, target, source)`.

    The model itself would compute and keep the attention of all layers.

    Args:
        layer (`VanillaTransformerDecoderLayer`): the layer.
        layer_input (`torch.Tensor` of shape `(batch, target, d_model)`): its input.
        source_states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        source_mask (`torch.Tensor` of shape `(batch, source)`): 0 for padding.
    """
    target_length = layer_input.shape[1]
    all_positions = torch.ones(target_length, target_length, dtype=torch.bool, device=layer_input.device)
    look_ahead_mask = all_positions.tril()[None, None]
    decoder_layer: Any = layer
    states = decoder_layer.attend_to_target(layer_input, attention_mask=look_ahead_mask, output_attentions=True)
    _, weights = decoder_layer.encoder_attn(
        states, source_states, source_mask[:, None, None].bool(), output_attentions=True
    )
    return weights
