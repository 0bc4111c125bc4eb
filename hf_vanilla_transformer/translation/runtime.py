"""Provide one interface to PyTorch models and to inference engines, for the operations in which they differ.

The code that translates, scores, aligns, serves and plots calls `runtime_of`, instead of testing the type of a model
itself.
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
    """The log-probabilities and attention weights that forced decoding computes for one target.

    Args:
        log_probs (`list[float]`): the log-probability of each token given the tokens before it, in nats.
        attention (`torch.Tensor` of shape `(target, source)`, *optional*): the cross-attention weights of the step that
            predicts each token, averaged over the alignment heads, on the CPU.
    """

    log_probs: list[float]
    attention: torch.Tensor | None


class Runtime(ABC):
    """The common interface to a PyTorch model or an inference engine: what it supports, and its forced decoding."""

    # Completes the sentence "terms do not work with ...".
    description: str
    # The decoder layer and the head, both counted from 0, of each head whose attention weights give alignments. Empty
    # if the model provides no such weights.
    alignment_heads: list[tuple[int, int]]
    # Says why alignments are impossible; used in an error message if `alignment_heads` is empty.
    reason_without_alignments: str
    # Whether the model supports a search for translations that must contain given phrases.
    takes_phrases: bool
    # Whether `generate()` calls logits processors and all stopping criteria at every step. An engine calls only those
    # stopping criteria that observe the search, and only from time to time.
    calls_processors: bool
    # Whether the model is a PyTorch module, whose forward pass can also return attention weights and other outputs.
    has_forward_pass: bool

    @abstractmethod
    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Compute the token log-probabilities of given targets, and optionally the cross-attention weights.

        All pairs form one batch. The model must be in evaluation mode.

        Args:
            sources (`Sequence[list[int]]`): the token ids of each source; at least one per source.
            targets (`Sequence[list[int]]`): the token ids of each target, without the decoder's start token; at least
                one per target.
            with_attention (`bool`): whether to compute attention weights.
        """


def runtime_of(model: PreTrainedModel | Engine, tokenizer: PreTrainedTokenizerBase) -> Runtime:
    """Return a [`Runtime`] for a PyTorch model or for an [`~.engine.Engine`]."""
    if isinstance(model, Engine):
        return EngineRuntime(model)
    return TorchRuntime(model, tokenizer)


class EngineRuntime(Runtime):
    """The runtime of an inference engine, which supports translation and forced decoding only."""

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
        """Compute the token log-probabilities of given targets; attention weights take a second pass.

        See [`Runtime.decode_forced`].
        """
        source_ids = list(sources)
        target_ids = list(targets)
        attentions: Sequence[torch.Tensor | None] = [None] * len(target_ids)
        if with_attention:
            attentions = self._engine.attention(source_ids, target_ids)
        log_probs = self._engine.log_probs(source_ids, target_ids)
        return map(ForcedTarget, log_probs, attentions)


class TorchRuntime(Runtime):
    """The runtime of a PyTorch model: a model of this package, or another encoder-decoder model of transformers."""

    reason_without_alignments = "it is no model of this package"
    calls_processors = True
    has_forward_pass = True

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        # The annotation is Any because models of transformers have methods that their base class does not declare.
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
        """Compute the token log-probabilities, and optionally the attention weights, with one forward pass.

        See [`Runtime.decode_forced`].
        """
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
        # An ensemble returns log-probabilities instead of logits, and its method passes them on.
        log_softmax = partial(torch.log_softmax, dim=-1)
        log_probabilities = getattr(model, "log_probabilities", log_softmax)

        # The loop goes row by row, because the log-probabilities of all rows would take as much memory as the logits.
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
        """Pad token ids on the right, and return them with their attention mask on the model's device."""
        padded = self._tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side="right")
        return padded.to(self._model.device)

    def _average_attention(
        self, layer_inputs: Sequence[torch.Tensor], source_states: torch.Tensor, source_mask: torch.Tensor
    ) -> torch.Tensor:
        """Average the cross-attention weights over the alignment heads, to shape `(batch, target, source)`, in float32.

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
    """Compute the cross-attention weights of one decoder layer, of shape `(batch, heads, target, source)`.

    If the model returned the weights itself, it would compute and keep the weights of all layers.

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
