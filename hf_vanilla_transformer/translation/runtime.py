"""One way to ask what computes: a model in torch and an engine answer the same questions.

Translating, scoring, aligning, serving and drawing call `runtime_of` instead of telling models and engines apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from .engine import Engine


class ForcedTarget(NamedTuple):
    """What forced decoding computes for one target.

    Args:
        log_probs (`list[float]`): of each token given those before it, in nats.
        attention (`torch.Tensor` of shape `(target, source)`, *optional*): cross-attention in the step that predicts
            each token, averaged over the alignment heads, on the CPU.
    """

    log_probs: list[float]
    attention: torch.Tensor | None


class Runtime(ABC):
    """The questions that a model in torch and an engine answer."""

    # What it is, for the sentence "terms do not work with ...".
    description: str
    # Decoder layer and head, from 0, of the attention that alignments are read from; empty if there is none.
    alignment_heads: list[tuple[int, int]]
    # Why there is no such attention, if there is none.
    reason_without_alignments: str
    # Whether the search can be forced to translations that contain given phrases.
    takes_phrases: bool
    # Whether `generate()` calls logits processors and any stopping criteria at every step. An engine calls only those
    # criteria that watch the search, from time to time.
    calls_processors: bool
    # Whether it is a module of torch, whose forward pass can be called for other outputs, such as attention weights.
    has_forward_pass: bool

    @abstractmethod
    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """Yield what forced decoding computes for each pair of token ids, from one forward pass.

        Targets are without the token that decoding starts from. No row is empty, and the model is in evaluation mode.
        """


def runtime_of(model: Any, tokenizer: PreTrainedTokenizerBase) -> Runtime:
    """Return what answers for a model in torch, or for an [`~.engine.Engine`]."""
    if isinstance(model, Engine):
        return EngineRuntime(model)
    return TorchRuntime(model, tokenizer)


class EngineRuntime(Runtime):
    """Another runtime than torch."""

    description = "another engine than torch"
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
        """See [`Runtime`]; with attention, the engine decodes twice."""
        source_ids = list(sources)
        target_ids = list(targets)
        attentions: list[Any] = [None] * len(target_ids)
        if with_attention:
            attentions = self._engine.attention(source_ids, target_ids)
        log_probs = self._engine.log_probs(source_ids, target_ids)
        return map(ForcedTarget, log_probs, attentions)


class TorchRuntime(Runtime):
    """A model of transformers in torch: of this package, or another one for sequences to sequences."""

    reason_without_alignments = "it is no model of this package"
    calls_processors = True
    has_forward_pass = True

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase):
        self._model = model
        self._tokenizer = tokenizer
        model_type = model.config.model_type
        self.description = f'a model of the type "{model_type}"'
        self.takes_phrases = model_type == VanillaTransformerConfig.model_type
        # An ensemble has no layers of its own.
        has_layers = hasattr(model, "get_decoder") and hasattr(model.get_decoder(), "layers")
        self.alignment_heads = list(getattr(model.config, "heads_for_alignment", [])) if has_layers else []

    def decode_forced(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]], with_attention: bool
    ) -> Iterator[ForcedTarget]:
        """See [`Runtime`]."""
        model = self._model
        source = self._pad(sources)
        target = self._pad(targets)
        labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
        decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
        options = {"output_hidden_states": True} if with_attention else {}
        output = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False, **options)
        attention = self._average_attention(output, source.attention_mask) if with_attention else None
        log_probabilities = getattr(model, "log_probabilities", partial(torch.log_softmax, dim=-1))
        # Row by row, because all log-probabilities take as much memory as the logits.
        for row, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True)):
            log_probs = log_probabilities(output.logits[row].float()).gather(-1, target.input_ids[row, :, None])
            own_attention = None
            if attention is not None:
                own_attention = attention[row, : len(target_ids), : len(source_ids)].cpu()
            yield ForcedTarget(log_probs[: len(target_ids), 0].tolist(), own_attention)

    def _pad(self, rows: Sequence[list[int]]) -> Any:
        padded = self._tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side="right")
        return padded.to(self._model.device)

    def _average_attention(self, output: Any, source_mask: torch.Tensor) -> torch.Tensor:
        """Return the cross-attention `(batch, target, source)`, averaged over the alignment heads, in float32."""
        layers = self._model.get_decoder().layers
        attention_of_layer = {}
        for layer in {layer for layer, _ in self.alignment_heads}:
            states = output.decoder_hidden_states[layer]
            attention_of_layer[layer] = _cross_attention(
                layers[layer], states, output.encoder_last_hidden_state, source_mask
            )
        heads = [attention_of_layer[layer][:, head].float() for layer, head in self.alignment_heads]
        return torch.stack(heads).mean(dim=0)


def _cross_attention(layer: Any, x: torch.Tensor, source: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """The cross-attention `(batch, heads, target, source)` of a decoder layer, from its input and the encoder's output.

    Asking the model for its attention instead would compute, and keep, that of all layers.
    """
    look_ahead_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
    x = layer.attend_to_target(x, attention_mask=look_ahead_mask, output_attentions=True)
    return layer.encoder_attn(x, source, source_mask[:, None, None].bool(), output_attentions=True)[1]
