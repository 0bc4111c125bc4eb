"""Combine several models into an ensemble that works with `generate`, `translate` and `score` like a single model."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..acceleration.cpu_search import StepDecoder, new_cpu_decoder
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.input_checks import either_cache
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, shift_right
from ..model.pretrained_model import VanillaTransformerPreTrainedModel
from ..support.user_errors import InputError


# Fields of the configuration that all models of an ensemble must share.
_SHARED_FIELDS = (
    "vocab_size",
    "source_vocab_size",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


class Ensemble(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """Several models with a shared vocabulary that translate together, by averaging their log-probabilities.

    The average is not renormalized, so the score of a translation is the mean of the models' scores. Only sampling
    renormalizes it, because sampling needs probabilities. The default search settings come from the first model. An
    ensemble returns neither attention weights nor hidden states, so it provides no alignments.

    ```python
    ensemble = Ensemble([AutoModelForSeq2SeqLM.from_pretrained(name) for name in ("runs/one", "runs/two")])
    translate(ensemble, tokenizer, ["two dogs"])
    ```

    Args:
        models (`Sequence[VanillaTransformerForConditionalGeneration]`): models of any size, with the same token ids.

    Raises:
        ValueError: if there is no model, if a model is of a different class, or if the models differ in their
            vocabulary sizes or special tokens.
    """

    def __init__(self, models: Sequence[VanillaTransformerForConditionalGeneration]):
        members = list(models)
        _check_models(members)
        # This must come before the assignments, because a module can hold other modules only after it, and because it
        # sets `generation_config` and `training` itself.
        super().__init__(_combine_configurations([model.config for model in members]))
        # The annotation is Any because the type of a ModuleList's modules lacks the models' own methods.
        self.models: Any = nn.ModuleList(members)
        first_model = members[0]
        self.generation_config = copy.deepcopy(first_model.generation_config)
        # A new module is in training mode, but the models may be in evaluation mode.
        self.training = first_model.training

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError, because an ensemble has no single set of weights."""
        raise InputError(
            "an ensemble is not one model; save each of its models, average checkpoints of one training, or distill it."
        )

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Return a single module that runs the encoders of all models: an [`_Encoders`] object."""
        return _Encoders([model.get_encoder() for model in self.models])

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        logits_to_keep: int = 0,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput:
        """Compute the models' mean log-probabilities for every target position.

        The output contains them in its field `logits`, in float32. The arguments are the same as for a single model,
        with two differences:

        - If no cache is given, none is created.
        - A cache must have the layers of all models, one model after the other. `DynamicCache()` and
          `DynamicCache(config=ensemble.config)` are suitable.

        Raises:
            ValueError: if attentions or hidden states are requested, or the cache has a different number of layers.
        """
        if output_attentions or output_hidden_states:
            raise InputError("an ensemble returns neither attentions nor hidden states; ask one of its models.")
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        joined_states = encoder_outputs[0]  # (batch, source, sum of the models' d_model)
        # transformers passes the cache as `cache`, or as `past_key_values` in versions before 5.24.
        joined_cache = self._cache_of_all_models(either_cache(cache, past_key_values))

        logits_of_models = []  # for each model, (batch, target, vocabulary)
        states_of_models = self._split_states(joined_states)
        # Each model writes its keys and values to its own layers of `joined_cache`, which the output returns.
        caches_of_models = self._split_cache(joined_cache)
        for model, source_states, model_cache in zip(self.models, states_of_models, caches_of_models, strict=True):
            output = model(
                encoder_outputs=BaseModelOutput(source_states),
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                cache=model_cache,
                use_cache=model_cache is not None,
                logits_to_keep=logits_to_keep,
            )
            logits_of_models.append(output.logits)
        mean_log_probs = _mean_of_log_probs(logits_of_models)
        return Seq2SeqLMOutput(logits=mean_log_probs, cache=joined_cache, encoder_last_hidden_state=joined_states)

    def log_probabilities(self, logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the given logits `(..., vocabulary)`, because an ensemble's logits are log-probabilities already.

        Without `out`, the result is a copy. A single model computes log-probabilities here, into `out` if it is given.
        """
        return logits.clone() if out is None else logits

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Shift labels to the right to get decoder inputs for teacher forcing. Both have shape `(batch, target)`."""
        return shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def new_cpu_decoder(self, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int) -> "_Decoders | None":
        """Return a decoder that combines the models' CPU decoders, or None if one of the models has no CPU decoder.

        Args:
            states (`torch.Tensor` of shape `(batch, source, sum of d_model)`): the output of [`_Encoders`].
            mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 0 for padding.
            num_beams (`int`): the number of hypotheses per sentence.
        """
        decoders: list[StepDecoder] = []
        for model, model_states in zip(self.models, self._split_states(states), strict=True):
            # This is the function for a single model, and not the method itself.
            decoder = new_cpu_decoder(model, model_states, mask, num_beams)
            if decoder is None:
                return None
            decoders.append(decoder)
        return _Decoders(decoders)

    def _split_states(self, states: torch.Tensor) -> Iterator[torch.Tensor]:
        """Split the output of [`_Encoders`] into each model's encoder states of shape `(batch, source, d_model)`."""
        # For example, states with a last axis of 1536 are split into 512 and 1024.
        widths = [model.config.d_model for model in self.models]
        for model, model_states in zip(self.models, states.split(widths, dim=-1), strict=True):
            yield model_states.to(model.dtype).contiguous()

    def _cache_of_all_models(self, cache: Cache | None) -> EncoderDecoderCache | None:
        """Prepare a caller's cache for the ensemble: add layers until each decoder layer of each model has its own.

        Layers are added in place, for both self-attention and cross-attention. If the cache is only for self-attention,
        the result combines it with a new cache for cross-attention. The result is None if there is no cache.

        Raises:
            ValueError: if the cache has a different number of layers, for example because it was made for one model.
        """
        if cache is None:
            return None
        if isinstance(cache, EncoderDecoderCache):
            joined_cache = cache
        else:
            joined_cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        # In the configuration of an ensemble, `decoder_layers` is the sum of the models' decoder layers.
        num_layers = self.config.decoder_layers
        _add_layers(joined_cache.self_attention_cache, num_layers)
        _add_layers(joined_cache.cross_attention_cache, num_layers)
        return joined_cache

    def _split_cache(self, cache: EncoderDecoderCache | None) -> Sequence[EncoderDecoderCache | None]:
        """Return the part of the cache that belongs to each model. Without a cache, return None for each model.

        The parts share their layers with the whole cache, so what a model writes is visible in both. The cache must
        already have the layers of all models, as [`_cache_of_all_models`] returns it.
        """
        if cache is None:
            return [None] * len(self.models)

        parts = []
        # The layers of the first model come first, then the layers of the second one, and so on.
        first_layer = 0
        for model in self.models:
            end_layer = first_layer + model.config.decoder_layers
            self_attention_cache = _slice_layers(cache.self_attention_cache, first_layer, end_layer)
            cross_attention_cache = _slice_layers(cache.cross_attention_cache, first_layer, end_layer)
            parts.append(EncoderDecoderCache(self_attention_cache, cross_attention_cache))
            first_layer = end_layer
        return parts


def _add_layers(cache: Cache, count: int) -> None:
    """Add layers to a dynamic cache until it has `count` layers.

    Normally, a dynamic cache adds a layer when the layer is first written to. In an ensemble, each model writes to a
    slice of the layers, and a layer that is added to a slice would be lost.

    Raises:
        ValueError: if the cache cannot grow to `count` layers, or already has more.
    """
    # `layer_class_to_replicate` is the class of the layers that a cache adds itself. It is None if the number of layers
    # is fixed.
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) < count:
            cache.layers.append(cache.layer_class_to_replicate())
    if len(cache.layers) != count:
        raise InputError(
            f"the cache has {len(cache.layers)} layers, but the decoders of the ensemble have {count} together; give "
            "an empty DynamicCache(), or a cache that was made with the configuration of the ensemble."
        )


def _slice_layers(cache: Cache, start: int, end: int) -> DynamicCache:
    """Return a cache that consists of layers `start` to `end - 1` of another cache, without copying them."""
    slice_of_cache = DynamicCache()
    # The new list contains the same layer objects, so writes to them are visible in both caches.
    slice_of_cache.layers = cache.layers[start:end]
    return slice_of_cache


def _mean_of_log_probs(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Compute the mean of several models' log-probabilities in float32, from their logits `(..., vocabulary)`."""
    # `log_softmax` returns a new tensor, so the sum is computed in place without changing any model's logits.
    total = logits[0].float().log_softmax(dim=-1)
    for model_logits in logits[1:]:
        total += model_logits.float().log_softmax(dim=-1)
    return total / len(logits)


def _check_models(models: Sequence[nn.Module]) -> None:
    """Raise ValueError if the models cannot form an ensemble.

    There must be at least one model, all of them must be models of this package, and they must have the same vocabulary
    sizes and special tokens.
    """
    if not models:
        raise InputError("an ensemble needs models; give at least one.")
    for model in models:
        if not isinstance(model, VanillaTransformerForConditionalGeneration):
            raise InputError(
                f"a {type(model).__name__} cannot be in an ensemble; convert it into a model of this package first."
            )
        _check_shared_fields(models[0], model)


def _check_shared_fields(first_model: nn.Module, model: nn.Module) -> None:
    """Raise ValueError if the configurations of two models differ in their vocabulary sizes or special tokens."""
    for name in _SHARED_FIELDS:
        first_value = getattr(first_model.config, name)
        value = getattr(model.config, name)
        if value != first_value:
            raise InputError(f"models of an ensemble have {name} {first_value} and {value}; give models that share it.")


def _combine_configurations(configurations: Sequence[VanillaTransformerConfig]) -> VanillaTransformerConfig:
    """Combine the models' configurations into the configuration of the ensemble.

    The result is a copy of the configuration with the strictest limit on the sequence length. Its number of decoder
    layers is the sum over all models.
    """
    # Only learned positions limit the sequence length, because sinusoids can be computed for any position. If no model
    # has learned positions, all configurations are compared.
    limiting_configurations = [config for config in configurations if config.position_embedding_type == "learned"]
    if not limiting_configurations:
        limiting_configurations = list(configurations)
    strictest = min(limiting_configurations, key=lambda config: config.max_position_embeddings)

    combined = copy.deepcopy(strictest)
    # transformers creates a cache with this number of layers.
    combined.decoder_layers = sum(config.decoder_layers for config in configurations)
    return combined


class _Encoders(nn.Module):
    """A module that runs the encoders of several models and concatenates their outputs along the last axis.

    Its output has shape `(batch, source, sum of d_model)`.
    """

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Encode source token ids `(batch, source)` with every encoder, and concatenate the outputs."""
        states = [encoder(input_ids, attention_mask=attention_mask)[0] for encoder in self.encoders]
        return BaseModelOutput(torch.cat(states, dim=-1))


class _Decoders:
    """A decoder that combines the CPU decoders of several models, by averaging their log-probabilities.

    It implements [`~.cpu_search.StepDecoder`], the interface that the search expects.
    """

    # The search may call `select` to remove finished sentences from the batch.
    can_prune = True

    def __init__(self, decoders: Sequence[StepDecoder]):
        self._decoders = decoders
        self.outputs: dict[str, object] = {}

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the models' mean log-probabilities for the next token of each hypothesis."""
        return _mean_of_log_probs([decoder(input_ids) for decoder in self._decoders])

    def reorder(self, rows: torch.Tensor) -> None:
        """Update the caches, so that row i continues the hypothesis that was in row `rows[i]`."""
        for decoder in self._decoders:
            decoder.reorder(rows)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the sentences with the given indices in the batch, and remove all other sentences from it."""
        for decoder in self._decoders:
            decoder.select(sentences)
