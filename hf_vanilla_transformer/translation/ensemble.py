"""`Ensemble`: several models as one, for `generate`, `translate` and `score`."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..acceleration.cpu_search import new_cpu_decoder
from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.input_checks import either_cache
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, shift_right
from ..model.pretrained_model import VanillaTransformerPreTrainedModel
from ..support.user_errors import InputError


# What models of an ensemble have in common.
_SAME = ("vocab_size", "source_vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


class Ensemble(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """Models of one vocabulary that translate together, by the mean of their log-probabilities of each token.

    The mean is not renormalized: scores are the mean of the models' scores. Sampling needs probabilities, and
    renormalizes. The search is that of the first model's `generation_config`. There are no attentions and no hidden
    states, so no alignments.

    ```python
    ensemble = Ensemble([AutoModelForSeq2SeqLM.from_pretrained(name) for name in ("runs/one", "runs/two")])
    translate(ensemble, tokenizer, ["two dogs"])
    ```

    Args:
        models (`Sequence[VanillaTransformerForConditionalGeneration]`): of any sizes, with the same token ids.

    Raises:
        ValueError: if there is none, if one is of another class, or if they differ in the sizes of their vocabularies
            or in special tokens.
    """

    def __init__(self, models: Sequence[VanillaTransformerForConditionalGeneration]):
        models = list(models)
        if not models:
            raise InputError("an ensemble needs models; give at least one.")
        for model in models:
            if not isinstance(model, VanillaTransformerForConditionalGeneration):
                raise InputError(
                    f"a {type(model).__name__} cannot be in an ensemble; convert it into a model of this package first."
                )
            for name in _SAME:
                one, other = getattr(models[0].config, name), getattr(model.config, name)
                if one != other:
                    raise InputError(f"models of an ensemble have {name} {one} and {other}; give models that share it.")
        # Of the model with the fewest learned positions, because they limit the length; sinusoids have no end.
        configs = [model.config for model in models]
        config = copy.deepcopy(
            min(configs, key=lambda each: (each.position_embedding_type != "learned", each.max_position_embeddings))
        )
        # transformers makes a cache of so many layers.
        config.decoder_layers = sum(model.config.decoder_layers for model in models)
        super().__init__(config)
        self.models: Any = nn.ModuleList(models)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.training = models[0].training

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError: an ensemble has no folder of its own."""
        raise InputError(
            "an ensemble is not one model; save each of its models, average checkpoints of one training, or distill it."
        )

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoders as one; see [`_Encoders`]."""
        return _Encoders([model.get_encoder() for model in self.models])

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        logits_to_keep: int = 0,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput:
        """The mean log-probabilities of the next token at every target position, as `logits`, in float32.

        Arguments are those of a single model; without a cache, none is made. A cache has the layers of all models, one
        model after the other, as `DynamicCache()` and `DynamicCache(config=ensemble.config)` do.

        Raises:
            ValueError: if attentions or hidden states are asked for, or the cache has another number of layers.
        """
        if output_attentions or output_hidden_states:
            raise InputError("an ensemble returns neither attentions nor hidden states; ask one of its models.")
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        cache = self._cache_of_all_models(either_cache(cache, past_key_values))
        options = {"attention_mask": attention_mask, "logits_to_keep": logits_to_keep, "use_cache": cache is not None}
        options |= {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        each = zip(self.models, self._states(encoder_outputs[0]), self._caches(cache), strict=True)
        logits = [
            model(encoder_outputs=BaseModelOutput(states), cache=part, **options).logits for model, states, part in each
        ]
        return Seq2SeqLMOutput(
            logits=_mean_of_log_probs(logits), cache=cache, encoder_last_hidden_state=encoder_outputs[0]
        )

    def log_probabilities(self, logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The logits, `(..., vocabulary)`, which are mean log-probabilities; a copy unless `out` is given."""
        return logits.clone() if out is None else logits

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs for teacher forcing, as for a single model; `(batch, target)` in and out."""
        return shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def new_cpu_decoder(self, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int) -> Any:
        """The CPU decoders of the models as one; None if one of the models has none."""
        each = zip(self.models, self._states(states), strict=True)
        decoders = [new_cpu_decoder(model, own, mask, num_beams) for model, own in each]
        return None if None in decoders else _Decoders(decoders)

    def _states(self, states: torch.Tensor) -> Iterator[torch.Tensor]:
        """The output of each model's encoder, `(batch, source, d_model)`, of that of [`_Encoders`]."""
        parts = states.split([model.config.d_model for model in self.models], dim=-1)
        return (part.to(model.dtype).contiguous() for model, part in zip(self.models, parts, strict=True))

    def _cache_of_all_models(self, cache: Cache | None) -> EncoderDecoderCache | None:
        """The cache of a caller, for both attentions, with a layer for each layer of each model.

        Raises:
            ValueError: if the cache has another number of layers, such as a cache for one of the models.
        """
        if cache is None:
            return None
        if not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        for attention_cache in (cache.self_attention_cache, cache.cross_attention_cache):
            _add_layers(attention_cache, self.config.decoder_layers)
        return cache

    def _caches(self, cache: EncoderDecoderCache | None) -> Iterator[EncoderDecoderCache | None]:
        """The cache of each model: the layers of one cache in turn, which holds what the models append."""
        first: int = 0
        for model in self.models:
            last = first + model.config.decoder_layers
            if cache is None:
                yield None
            else:
                self_attention_cache = _slice_layers(cache.self_attention_cache, first, last)
                cross_attention_cache = _slice_layers(cache.cross_attention_cache, first, last)
                yield EncoderDecoderCache(self_attention_cache, cross_attention_cache)
            first = last


def _add_layers(cache: Cache, count: int) -> None:
    """Add the layers that a dynamic cache would add one by one when they are written to.

    Each model writes to a slice of the layers, and a layer that is added to a slice would be lost.
    """
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) < count:
            cache.layers.append(cache.layer_class_to_replicate())
    if len(cache.layers) != count:
        raise InputError(
            f"the cache has {len(cache.layers)} layers, but the decoders of the ensemble have {count} together; give "
            "an empty DynamicCache(), or a cache that was made with the configuration of the ensemble."
        )


def _slice_layers(cache: Cache, first: int, last: int) -> DynamicCache:
    part = DynamicCache()
    part.layers = cache.layers[first:last]
    return part


def _mean_of_log_probs(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of log-probabilities, `(..., vocabulary)` in float32, of logits on one device."""
    total = logits[0].float().log_softmax(dim=-1)
    for each in logits[1:]:
        total += each.float().log_softmax(dim=-1)
    return total / len(logits)


class _Encoders(nn.Module):
    """Encoders as one: their outputs side by side, `(batch, source, sum of d_model)`."""

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders: Any = nn.ModuleList(encoders)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """The output for sources `(batch, source)`."""
        states: Any = [encoder(input_ids, attention_mask=attention_mask)[0] for encoder in self.encoders]
        return BaseModelOutput(torch.cat(states, dim=-1))


class _Decoders:
    """CPU decoders as one, whose logits are mean log-probabilities; see [`~.cpu_decoder.CPUDecoder`]."""

    can_prune = True

    def __init__(self, decoders: Sequence[Any]):
        self._decoders = decoders
        self.outputs: dict[str, Any] = {}

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return _mean_of_log_probs([decoder(input_ids) for decoder in self._decoders])

    def reorder(self, rows: torch.Tensor) -> None:
        for decoder in self._decoders:
            decoder.reorder(rows)

    def select(self, sentences: torch.Tensor) -> None:
        for decoder in self._decoders:
            decoder.select(sentences)
