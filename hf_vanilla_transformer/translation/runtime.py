"""Provide one interface to PyTorch models and to inference engines, for the operations in which they differ.

The code that translates, scores, aligns, serves and plots calls `runtime_of`, instead of testing the type of a model
itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

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
    """The common interface to PyTorch models and inference engines, for forced decoding and for their capabilities."""

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
        """Compute the log-probability of each token of given translations, and optionally the cross-attention weights.

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
    """The runtime of an inference engine. It supports only translation and forced decoding."""

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
        """Compute the log-probability of each target token. Attention weights take a second pass of the engine.

        See [`Runtime.decode_forced`].
        """
        source_ids = list(sources)
        target_ids = list(targets)
        # For each pair, (target, source), or None.
        attention_of_pairs: Sequence[torch.Tensor | None] = [None] * len(target_ids)
        if with_attention:
            attention_of_pairs = self._engine.attention(source_ids, target_ids)
        log_probs_of_pairs = self._engine.log_probs(source_ids, target_ids)
        # The order is the order of the fields: `ForcedTarget(log_probs, attention)` for each pair.
        return map(ForcedTarget, log_probs_of_pairs, attention_of_pairs)


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
        # Completes the sentence "terms do not work with ...".
        self.description = f'a model of the type "{model_type}"'
        # Only models of this package can search for translations that contain required phrases.
        self.takes_phrases = model_type == VanillaTransformerConfig.model_type
        # An ensemble has a configuration with alignment heads, but no decoder layers of its own to read them from.
        has_decoder_layers = hasattr(model, "get_decoder") and hasattr(model.get_decoder(), "layers")
        # Pairs of a decoder layer and a head, both counted from 0. Words are aligned by the average of these heads'
        # attention. The list is empty for other models than this package's, whose configurations lack the field.
        self.alignment_heads = []
        if has_decoder_layers:
            self.alignment_heads = list(getattr(model.config, "heads_for_alignment", []))

    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Compute the log-probability of each target token, and optionally attention weights, with one forward pass.

        See [`Runtime.decode_forced`].
        """
        # The `input_ids` and the `attention_mask` have the shapes (batch, padded source) and (batch, padded target).
        padded_source = self._pad(sources)
        padded_target = self._pad(targets)
        inputs = {**padded_source, "decoder_input_ids": self._make_decoder_inputs(padded_target)}
        if with_attention:
            # Attention weights are computed below from these hidden states.
            inputs["output_hidden_states"] = True
        output = self._model(**inputs, use_cache=False)

        padded_attention = None
        if with_attention:
            # `decoder_hidden_states[i]` is the input of decoder layer i. The result is (batch, padded target, padded
            # source).
            padded_attention = self._average_attention(
                output.decoder_hidden_states, output.encoder_last_hidden_state, padded_source.attention_mask
            )

        # The loop goes row by row, because the log-probabilities of all rows would take as much memory as the logits.
        for row, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True)):
            padded_log_probs = self._log_probs_of_tokens(output.logits[row], padded_target.input_ids[row])
            # Padding is on the right, so these slices contain exactly the tokens.
            log_probs = padded_log_probs[: len(target_ids)].tolist()
            attention = None
            if padded_attention is not None:
                attention = padded_attention[row, : len(target_ids), : len(source_ids)].cpu()
            yield ForcedTarget(log_probs, attention)

    def _make_decoder_inputs(self, padded_target: BatchEncoding) -> torch.Tensor:
        """Return the decoder's input for given targets: the start token, and then all columns of the
        padded targets but the last.

        The result has the same shape as the padded targets: `(batch, padded target)`.
        """
        # The model's method takes labels, in which -100 marks padding. It shifts them to the right, puts the start
        # token before them, and turns -100 back into padding.
        labels = padded_target.input_ids.masked_fill(padded_target.attention_mask == 0, -100)
        return self._model.prepare_decoder_input_ids_from_labels(labels)

    def _log_probs_of_tokens(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of each token of one target, as a tensor of shape `(target,)`.

        Args:
            logits (`torch.Tensor` of shape `(target, vocabulary)`): the model's logits for each position.
            tokens (`torch.Tensor` of shape `(target,)`): the target's token ids.
        """
        if hasattr(self._model, "log_probabilities"):
            # All models of this package have this method. The logits of an ensemble are log-probabilities already, and
            # its method passes them on.
            log_probs = self._model.log_probabilities(logits.float())
        else:
            log_probs = torch.log_softmax(logits.float(), dim=-1)
        # At each position, `gather` selects the token's entry on the vocabulary axis. The index must have as many axes
        # as `log_probs`, so `tokens` gets the shape (target, 1). The result has this shape, too, before `[:, 0]`.
        return log_probs.gather(-1, tokens[:, None])[:, 0]

    def _pad(self, rows: Sequence[list[int]]) -> BatchEncoding:
        """Pad token ids on the right, and return them with their attention mask on the model's device."""
        padded = self._tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side="right")
        return padded.to(self._model.device)

    def _average_attention(
        self, layer_inputs: Sequence[torch.Tensor], source_states: torch.Tensor, source_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean of all alignment heads' attention weights, of shape `(batch, target, source)`, in float32.

        Args:
            layer_inputs: the input of each decoder layer, `(batch, target, d_model)`.
            source_states, source_mask: the encoder's output, `(batch, source, d_model)`, and 0 for its padding.
        """
        # For each layer with alignment heads, the weights of all its heads, (batch, heads, target, source).
        attention_of_layer = self._compute_attention_of_layers(layer_inputs, source_states, source_mask)
        attention_of_heads = []
        # For example, `alignment_heads` is [(4, 0), (4, 1)] for the first two heads of the fifth layer.
        for layer, head in self.alignment_heads:
            attention_of_head = attention_of_layer[layer][:, head]  # (batch, target, source)
            attention_of_heads.append(attention_of_head.float())
        stacked = torch.stack(attention_of_heads)  # (alignment heads, batch, target, source)
        return stacked.mean(dim=0)

    def _compute_attention_of_layers(
        self, layer_inputs: Sequence[torch.Tensor], source_states: torch.Tensor, source_mask: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """Return the attention weights `(batch, heads, target, source)` of each layer that has an alignment head.

        Each layer is computed only once, even if it has several alignment heads. The arguments are those of
        `_average_attention`.
        """
        decoder_layers = self._model.get_decoder().layers
        layers_with_alignment_heads = {layer for layer, _head in self.alignment_heads}
        attention_of_layer: dict[int, torch.Tensor] = {}
        for layer in layers_with_alignment_heads:
            attention_of_layer[layer] = _compute_cross_attention(
                decoder_layers[layer], layer_inputs[layer], source_states, source_mask
            )
        return attention_of_layer


class _DecoderLayer(Protocol):
    """Interface of the decoder layers of this package's models, as far as it is needed to compute attention weights."""

    # The cross-attention. It returns its output and its weights.
    encoder_attn: nn.Module

    def attend_to_target(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *, output_attentions: bool
    ) -> torch.Tensor: ...


def _compute_cross_attention(
    decoder_layer: _DecoderLayer, layer_input: torch.Tensor, source_states: torch.Tensor, source_mask: torch.Tensor
) -> torch.Tensor:
    """Compute the cross-attention weights of one decoder layer, of shape `(batch, heads, target, source)`.

    The layer's self-attention and cross-attention are computed again from the layer's input. The model could return the
    weights itself, but then it would compute and keep the weights of all layers.

    Args:
        decoder_layer (`VanillaTransformerDecoderLayer`): the layer.
        layer_input (`torch.Tensor` of shape `(batch, target, d_model)`): the layer's input, which comes from the layer
            below or from the target embeddings.
        source_states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
        source_mask (`torch.Tensor` of shape `(batch, source)`): 0 for padding.
    """
    # Each target position may attend to itself and to the positions before it. Padding needs no mask, because it comes
    # after the tokens of a target.
    target_length = layer_input.shape[1]
    all_positions = torch.ones(target_length, target_length, dtype=torch.bool, device=layer_input.device)
    # (1, 1, target, target); the first two axes stand for any sentence of the batch and any head.
    look_ahead_mask = all_positions.tril()[None, None]
    # (batch, 1, 1, source); the second and the third axis stand for any head and any target position.
    padding_mask = source_mask[:, None, None].bool()

    # The first sub-layer is self-attention over the target. Its output, (batch, target, d_model), is the input of the
    # second one, which is cross-attention: the target states attend to the source states.
    target_states = decoder_layer.attend_to_target(layer_input, attention_mask=look_ahead_mask, output_attentions=True)
    _, weights = decoder_layer.encoder_attn(target_states, source_states, padding_mask, output_attentions=True)
    return weights
