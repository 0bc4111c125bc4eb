"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), from its parts to the whole.

Section 3.5 positions, 3.2 attention, 3.3 feed-forward networks, 3.1 layers and stacks, 3.4 embeddings and output
projection, and the loss of section 5.4. Post-LN: every sub-layer computes LayerNorm(x + Sublayer(x)), and no norm
follows the stacks.

Shapes have named axes: batch, source and target (lengths in tokens), heads (h), d_model, d_k, d_v, vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_masks import flash_attention, look_ahead_mask, mask_config
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation_settings import paper_generation_config
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin
from .input_checks import (
    InputError,
    as_encoder_output,
    check_ids_or_embeds,
    check_labels,
    check_right_padding,
    check_shape_of_labels,
    check_source,
    either_cache,
    outside_learned_positions,
    outside_vocabulary,
)
from .operations import (
    cast_for_matmul,
    cast_once_for_layers,
    drop,
    linear,
    replaceable,
    smoothed_cross_entropy,
    smoothed_cross_entropy_of_states,
    token_sums,
)
from .pretrained_model import (
    DECODER_TP_PLAN,
    STACK_FSDP_PLAN,
    STACK_TP_PLAN,
    VanillaTransformerPreTrainedModel,
    set_initial_gain,
)


_DEVICES_WITH_FLOAT64 = ("cpu", "cuda", "meta")


@replaceable
def sinusoidal_positions(
    position_ids: torch.Tensor, d_model: int, exponent_divisor: int | None = None, bound: int | None = None
) -> torch.Tensor:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model)).

    Args:
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions pos, counted from 0, without a limit.
        d_model (`int`): even.
        exponent_divisor (`int`, *optional*): instead of d_model. The authors' code has d_model - 2, so that the
            longest wavelength is exactly 10000 * 2 pi.
        bound (`int`, *optional*): a number greater than every position, if it is known without reading a tensor. The
            formula needs none; a table does.

    Returns:
        `torch.FloatTensor` of shape `(batch, length, d_model)`, in float32: sines at even, cosines at odd channels.
    """
    # In float64, because a float32 angle is off by 0.004 at position 100,000. Some accelerators lack float64.
    device = position_ids.device if position_ids.device.type in _DEVICES_WITH_FLOAT64 else "cpu"
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device=device)
    angles = position_ids.to(device).unsqueeze(-1) / 10000 ** (two_i / (exponent_divisor or d_model))
    interleaved = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return interleaved.to(device=position_ids.device, dtype=torch.float32)


def count_positions(attention_mask: torch.Tensor | None, length: int, past_length: Any, device: Any) -> torch.Tensor:
    """Positions of the last `length` tokens, counting real tokens only, so that padding on either side changes nothing.

    Args:
        attention_mask (`torch.Tensor` of shape `(batch, past_length + length)`, *optional*): 1 for real tokens, 0 for
            padding. Without a 2D mask every token is real.
        length (`int`): number of tokens to position.
        past_length (`int` or scalar tensor): number of tokens before them, in the cache.
        device (`torch.device`): of the result.

    Returns:
        `torch.LongTensor` of shape `(batch, length)`, or `(1, length)` without a mask.

    Raises:
        ValueError: if the mask and the tokens differ in length.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return (torch.arange(length, device=device) + past_length).unsqueeze(0)
    # A static cache counts in a tensor; reading it would break the compiled graph.
    if isinstance(past_length, int) and attention_mask.shape[1] != past_length + length:
        raise InputError(
            f"the mask has {attention_mask.shape[1]} columns, but there are {past_length} tokens in the cache and "
            f"{length} new ones; give one column per token."
        )
    position_ids = attention_mask.to(device).bool().cumsum(dim=-1, dtype=torch.long) - 1
    return position_ids[:, -length:].clamp(min=0)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 3.2.1, Eq. 1: Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, for all heads at once.

    Args:
        module (`nn.Module`): the attention layer; dropout applies in its training mode.
        query, key, value: `(batch, heads, queries, d_k)`, `(batch, heads, keys, d_k)`, `(batch, heads, keys, d_v)`.
        attention_mask (`(batch, 1, queries, keys)`, *optional*): where a query may attend, as booleans or integers; or
            floating-point values to add to the scores: 0, and the lowest value for the paper's minus infinity.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.

    Returns:
        The output, `(batch, queries, heads, d_v)`, and the attention weights, `(batch, heads, queries, keys)`.
    """
    scores = torch.matmul(query, key.transpose(-2, -1)) * scaling
    if attention_mask is not None and not attention_mask.is_floating_point():
        scores = scores.masked_fill(~attention_mask.bool(), torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        # In float16 a low score plus the lowest value is minus infinity, and the softmax of a row of it is NaN.
        scores = (scores + attention_mask.to(scores.dtype)).clamp(min=torch.finfo(scores.dtype).min)
    weights = nn.functional.softmax(scores, dim=-1)
    weights = drop(weights, dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class VanillaTransformerAttention(nn.Module):
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O, where head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    One matrix each for queries, keys and values holds the projections of all heads. The three uses of section 3.2.3
    differ in the source of keys and values (the same sequence, or the encoder's output) and in the look-ahead mask.
    `attention_mask` has that mask; where none is passed, implementations other than eager attention apply it by
    `is_causal`.
    """

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.dropout = config.attention_dropout
        self.key_dim, self.value_dim = config.key_dim, config.value_dim
        self.scaling = self.key_dim**-0.5

        d_model, bias = config.d_model, config.attention_bias
        self.q_proj = nn.Linear(d_model, config.num_heads * self.key_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, config.num_heads * self.key_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, config.num_heads * self.value_dim, bias=bias)
        self.out_proj = nn.Linear(config.num_heads * self.value_dim, d_model, bias=bias)
        set_initial_gain(config.initializer_factor, self.v_proj, self.out_proj)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `hidden_states` to `key_value_states`, or to `hidden_states` itself.

        Args:
            hidden_states (`(batch, queries, d_model)`): gives the queries.
            key_value_states (`(batch, keys, d_model)`, *optional*): the encoder's output, in cross-attention.
            attention_mask: in the form that the attention implementation needs.
            cache (`EncoderDecoderCache`, *optional*): earlier keys and values; extended in place.

        Returns:
            The output, `(batch, queries, d_model)`, and the attention weights, `(batch, heads, queries, keys)`, or None
            where the attention implementation does not return them.
        """
        hidden_states = cast_for_matmul(hidden_states)
        query = self._split_heads(linear(self.q_proj, hidden_states), self.key_dim)
        if key_value_states is None:
            key, value = self._project(hidden_states)
            if cache is not None:
                key, value = cache.self_attention_cache.update(key, value, self.layer_idx)
        else:
            key, value = keys_and_values_of_source(cache, self.layer_idx, self._project, key_value_states)

        implementation = "eager" if kwargs.get("output_attentions") else self.config._attn_implementation
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        if attention is flash_attention_forward:
            attention = flash_attention
        dropout = self.dropout if self.training else 0.0
        heads, weights = attention(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return linear(self.out_proj, heads.flatten(-2)), weights

    def _split_heads(self, projected: torch.Tensor, head_dim: int) -> torch.Tensor:
        return projected.reshape(*projected.shape[:2], -1, head_dim).transpose(1, 2)

    def _project(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = cast_for_matmul(states)
        key = self._split_heads(linear(self.k_proj, states), self.key_dim)
        return key, self._split_heads(linear(self.v_proj, states), self.value_dim)


def keys_and_values_of_source(
    cache: EncoderDecoderCache | None, layer_idx: int, project: Callable, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the source, `(batch, heads, source, d)`: of the cache, or else computed, and stored there.

    Args:
        cache (`EncoderDecoderCache`, *optional*): of this source.
        layer_idx (`int`): the layer's number.
        project (`Callable`): computes keys and values from states.
        states (`torch.Tensor` of shape `(batch, source, d_model)`): the encoder's output.
    """
    if cache is None:
        return project(states)
    if cache.is_updated.get(layer_idx):
        layer: Any = cache.cross_attention_cache.layers[layer_idx]
        # An offloading cache may hold it on another device.
        layer.prefetch()
        key, value = layer.keys, layer.values
    else:
        cache.is_updated[layer_idx] = True
        key, value = cache.cross_attention_cache.update(*project(states), layer_idx)
        layer = cache.cross_attention_cache.layers[layer_idx]
    if layer.is_compileable:
        # A static cache may be longer than the source; without a mask, queries would attend to its zeros.
        source = states.shape[1]
        key, value = key[:, :, :source], value[:, :, :source]
    return key, value


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """The common parts of both stacks' layers: self-attention, feed-forward network, residual sums and norms."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.self_attn = VanillaTransformerAttention(config, layer_idx, is_causal=is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        set_initial_gain(config.initializer_factor, self.fc1, self.fc2)
        # The norm of this sub-layer, by the name that fairseq and transformers gave it.
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Section 3.3, Eq. 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, the same at every position."""
        inner = self.activation_fn(linear(self.fc1, x))
        return linear(self.fc2, drop(inner, self.activation_dropout, self.training))

    def add_and_norm(self, x: torch.Tensor, sublayer_x: torch.Tensor, layer_norm: nn.LayerNorm) -> torch.Tensor:
        """Sections 3.1 and 5.4: LayerNorm(x + Dropout(Sublayer(x)))."""
        # In one dtype, because adding two dtypes, as under autocast, is slow on CPUs.
        return layer_norm(x + drop(sublayer_x, self.dropout, self.training).to(x.dtype))


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """Section 3.1 and Figure 1, left: self-attention, then the feed-forward network."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(batch, source, d_model)` in and out."""
        x = hidden_states
        attended, _ = self.self_attn(x, attention_mask=attention_mask, **kwargs)
        x = self.add_and_norm(x, attended, self.self_attn_layer_norm)
        return self.add_and_norm(x, self.feed_forward(x), self.final_layer_norm)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """Section 3.1 and Figure 1, right: masked self-attention, attention to the encoder, feed-forward network."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=True)
        self.encoder_attn = VanillaTransformerAttention(config, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(batch, target, d_model)` in and out; `encoder_hidden_states` is `(batch, source, d_model)`."""
        x = self.attend_to_target(hidden_states, attention_mask=attention_mask, cache=cache, **kwargs)
        attended, _ = self.encoder_attn(
            x, encoder_hidden_states, attention_mask=encoder_attention_mask, cache=cache, **kwargs
        )
        x = self.add_and_norm(x, attended, self.encoder_attn_layer_norm)
        return self.add_and_norm(x, self.feed_forward(x), self.final_layer_norm)

    def attend_to_target(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """The first sub-layer, masked self-attention with its residual sum and norm; `(batch, target, d_model)`."""
        attended, _ = self.self_attn(hidden_states, attention_mask=attention_mask, cache=cache, **kwargs)
        return self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """The input of both stacks (Figure 1, bottom): scaled embeddings plus positions, and dropout.

    Args:
        config (`VanillaTransformerConfig`): the configuration.
        vocab_size (`int`): rows of this stack's embedding.
        layers (`list[nn.Module]`): N layers.
    """

    _tp_plan = STACK_TP_PLAN
    _fsdp_plan = STACK_FSDP_PLAN

    def __init__(self, config: VanillaTransformerConfig, vocab_size: int, layers: Sequence[nn.Module]):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model)
        if config.position_embedding_type == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.d_model)
        self.layers = nn.ModuleList(layers)
        if config.stack_layer_norm:
            self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def look_up(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Section 3.4: rows of the embedding matrix, `(batch, length, d_model)`, unless the caller gives them.

        Raises:
            ValueError: if both or neither are given, a sequence has no token, or an id is outside the vocabulary.
        """
        check_ids_or_embeds(self, input_ids, inputs_embeds)
        if inputs_embeds is not None:
            return inputs_embeds
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:
            raise outside_vocabulary(self, input_ids) from error

    def add_positions(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, bound: int | None = None
    ) -> torch.Tensor:
        """Sections 3.4, 3.5 and 5.4: Dropout(sqrt(d_model) E + PE), `(batch, length, d_model)`.

        Args:
            inputs_embeds (`torch.Tensor` of shape `(batch, length, d_model)`): E.
            position_ids (`torch.LongTensor` of shape `(batch, length)`, or `(1, length)`): positions, from 0.
            bound (`int`, *optional*): a number greater than every position, if it is known without reading a tensor.
        """
        d_model, kind = self.config.d_model, self.config.position_embedding_type
        if kind == "learned":
            positions = self._learned_positions(position_ids)
        else:
            exponent_divisor = d_model - 2 if kind == "sinusoidal_tensor2tensor" else d_model
            offset = self.config.position_offset
            if offset > 0:
                position_ids = position_ids + offset
                bound = None if bound is None else bound + offset
            positions = sinusoidal_positions(position_ids, d_model, exponent_divisor, bound)
        # At least in float32, so that half precision rounds once, after the sum.
        scaled = inputs_embeds.to(torch.promote_types(inputs_embeds.dtype, torch.float32)) * math.sqrt(d_model)
        x = (scaled + positions).to(inputs_embeds.dtype)
        return drop(x, self.config.dropout, self.training)

    def _learned_positions(self, position_ids: torch.Tensor) -> torch.Tensor:
        try:
            return self.embed_positions(position_ids)
        except IndexError as error:
            raise outside_learned_positions(position_ids, self.config.max_position_embeddings) from error

    def normalize_output(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last layer, `(batch, length, d_model)`; normalized with `config.stack_layer_norm`."""
        return self.layer_norm(x) if self.config.stack_layer_norm else x


class VanillaTransformerEncoder(VanillaTransformerStack):
    """Section 3.1: the encoder, a stack of N layers."""

    _can_record_outputs = {
        "hidden_states": VanillaTransformerEncoderLayer,
        "attentions": VanillaTransformerAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        vocab_size = config.source_vocab_size or config.vocab_size
        layers = [VanillaTransformerEncoderLayer(config, layer_idx) for layer_idx in range(config.encoder_layers)]
        super().__init__(config, vocab_size, layers)

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode source sentences.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`): token ids.
            attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 1 for real tokens, 0 for padding.
            inputs_embeds (`torch.FloatTensor` of shape `(batch, source, d_model)`, *optional*): rows of the embedding
                matrix instead of `input_ids`, not yet multiplied by sqrt(d_model).

        Returns:
            `BaseModelOutput`: `last_hidden_state`, `(batch, source, d_model)`.

        Raises:
            ValueError: if a token id is outside the vocabulary, or a sentence is longer than a learned table.
        """
        embeds = self.look_up(input_ids, inputs_embeds)
        length = embeds.shape[1]
        position_ids = count_positions(attention_mask, length, 0, embeds.device)
        x = self.add_positions(embeds, position_ids, bound=length)
        config = mask_config(self.config, kwargs.get("output_attentions"), attention_mask)
        mask = create_bidirectional_mask(config, x, attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.normalize_output(x))


def encoder_decoder_cache(
    config: VanillaTransformerConfig, cache: Cache | None, use_cache: bool | None, is_checkpointing: bool
) -> EncoderDecoderCache | None:
    """A cache for both attentions of the decoder: the caller's or, with `use_cache`, a new one; otherwise None.

    Args:
        config (`VanillaTransformerConfig`): has the number of layers, and the default of `use_cache`.
        cache (`Cache`, *optional*): of the caller; for self-attention only, or for both.
        use_cache (`bool`, *optional*): whether the caller wants a cache.
        is_checkpointing (`bool`): whether layers will be computed again during backward.

    Raises:
        ValueError: for the caller's cache in training with gradient checkpointing, where no cache is made either.
    """
    if is_checkpointing:
        if cache is not None:
            # The second time, during backward, would extend the cache again.
            raise InputError(
                "gradient checkpointing computes layers twice, which would extend the cache twice; leave the cache "
                "out, or call the model under torch.no_grad()."
            )
        return None
    if isinstance(cache, EncoderDecoderCache):
        return cache
    if cache is None:
        wants_cache = config.use_cache if use_cache is None else use_cache
        if not wants_cache:
            return None
        cache = DynamicCache(config=config)
    return EncoderDecoderCache(cache, DynamicCache(config=config))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """Section 3.1: the decoder, a stack of N layers that attend to earlier positions and to the encoder's output."""

    _tp_plan = DECODER_TP_PLAN
    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerDecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Compute a state for each target token from the tokens before it and from the source.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, target)`): token ids; with a cache, of new tokens only.
            attention_mask (`torch.Tensor` of shape `(batch, past + target)`, *optional*): 1 for real tokens, 0 for
                padding, for the tokens in the cache too.
            encoder_hidden_states (`torch.FloatTensor` of shape `(batch, source, d_model)`): the encoder's output.
            encoder_attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): the source's mask.
            cache (`Cache`, *optional*): keys and values of earlier tokens; extended in place.
            inputs_embeds (`torch.FloatTensor` of shape `(batch, target, d_model)`, *optional*): as in the encoder.
            use_cache (`bool`, *optional*): whether to return keys and values; by default `config.use_cache`. Training
                with gradient checkpointing never does.
            past_key_values (`Cache`, *optional*): `cache`, by its name before transformers 5.24.

        Returns:
            `BaseModelOutputWithPastAndCrossAttentions`: `last_hidden_state`, `(batch, target, d_model)`, and `cache`.

        Raises:
            ValueError: as the encoder; if `encoder_hidden_states` is missing or differs in length from its mask; if the
                cache has both names; or for flex attention with a static cache, or a cache with gradient checkpointing.
        """
        check_source(encoder_hidden_states, encoder_attention_mask)
        embeds = self.look_up(input_ids, inputs_embeds)
        is_checkpointing = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        cache = encoder_decoder_cache(self.config, either_cache(cache, past_key_values), use_cache, is_checkpointing)
        past_length = 0 if cache is None else cache.get_seq_length()
        length = embeds.shape[1]
        position_ids = count_positions(attention_mask, length, past_length, embeds.device)
        # A static cache counts in a tensor.
        bound = past_length + length if isinstance(past_length, int) else None
        x = self.add_positions(embeds, position_ids, bound)

        config = mask_config(self.config, kwargs.get("output_attentions"), attention_mask, encoder_attention_mask)
        mask = look_ahead_mask(config, x, attention_mask, None if cache is None else cache.self_attention_cache)
        encoder_mask = create_bidirectional_mask(config, x, encoder_attention_mask, encoder_hidden_states)
        has_source_in_cache = cache is not None and any(cache.is_updated.values())
        if encoder_hidden_states is not None and not has_source_in_cache:
            encoder_hidden_states = cast_once_for_layers(encoder_hidden_states)
        for layer in self.layers:
            x = layer(x, encoder_hidden_states, mask, encoder_mask, cache=cache, **kwargs)
        states = self.normalize_output(x)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states, cache=cache)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Section 3: encoder and decoder, without the LM head.

    With a joint vocabulary and `tie_word_embeddings` both stacks share one embedding matrix, `shared` (section 3.4).
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self._tied_weights_keys = {}
        if config.has_joint_vocabulary and config.tie_word_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            stacks = ("encoder", "decoder")
            self._tied_weights_keys = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in stacks}
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()
        if hasattr(self, "shared"):
            self._tp_plan = {**self.tp_plan, "shared": "embedding_rowwise"}

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source, unless `encoder_outputs` is given, and decode.

        Args:
            input_ids, attention_mask, inputs_embeds: the source, as for [`VanillaTransformerEncoder`].
            decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds, cache, use_cache, past_key_values: the
                target, as for [`VanillaTransformerDecoder`].
            encoder_outputs (`BaseModelOutput`, another `ModelOutput`, `dict` or `tuple`, *optional*): the encoder's
                output of an earlier call.

        Returns:
            `Seq2SeqModelOutput`: `last_hidden_state`, `(batch, target, d_model)`, and the outputs of both stacks.

        Raises:
            ValueError: if there are no decoder inputs, and as both stacks do.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **kwargs,
            )
        if not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = as_encoder_output(encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=either_cache(cache, past_key_values),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


def shift_right(labels: torch.Tensor, pad_token_id: int, decoder_start_token_id: int) -> torch.Tensor:
    """Section 3.1: "the output embeddings are offset by one position"; `(batch, target)` in and out."""
    start = labels.new_full((labels.shape[0], 1), decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=-1)
    return shifted.masked_fill(shifted == -100, pad_token_id)


@dataclass
class VanillaTransformerLMOutput(Seq2SeqLMOutput):
    """`Seq2SeqLMOutput`, with sums over the target tokens of the batch where the loss is computed without all logits.

    Args:
        token_sums (`torch.Tensor` of shape `(3,)`, *optional*): the cross-entropy without label smoothing in nats, the
            number of tokens whose label has the highest logit, and the number of tokens.
    """

    token_sums: torch.Tensor | None = None


class VanillaTransformerForConditionalGeneration(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """Section 3: the whole model of Figure 1, with the output projection ("pre-softmax linear transformation") of 3.4.

    With `tie_word_embeddings`, `lm_head` is tied to the target's embedding matrix; otherwise it is a separate matrix.
    """

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        target_embedding = "model.shared" if config.has_joint_vocabulary else "model.decoder.embed_tokens"
        self._tied_weights_keys = {"lm_head.weight": f"{target_embedding}.weight"}
        self.loss_function = label_smoothed_cross_entropy
        self.generation_config = paper_generation_config(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool = False,
        past_key_values: Cache | None = None,
        ignore_index: int = -100,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaTransformerLMOutput:
        """Logits of the next token at every target position, and the loss if `labels` are given.

        Args:
            labels (`torch.LongTensor` of shape `(batch, target)`, *optional*): target tokens, ending in `</s>`; -100
                where there is no target, or `ignore_index`. Without decoder inputs, the labels shifted right are the
                decoder inputs (teacher forcing).
            logits_to_keep (`int` or `torch.Tensor`): compute logits for this many last target positions, or for the
                given positions; 0 for all.
            skip_logits (`bool`): with `labels`, compute the loss without all logits in memory, and return no logits.
                In training, all logits and their gradients can take more memory than the rest of the model.
            num_items_in_batch (`int`, *optional*): see [`label_smoothed_cross_entropy`]; the Trainer passes it.
            Others: as for [`VanillaTransformerModel`].

        Returns:
            `Seq2SeqLMOutput`: `logits`, `(batch, target, vocabulary)`, unless they are skipped; `loss`, in nats per
            target token, smoothed by `config.label_smoothing` in training mode and plain in evaluation mode; and the
            outputs of both stacks.

        Raises:
            ValueError: if there are neither decoder inputs nor labels, if labels and decoder inputs differ in shape,
                and as [`VanillaTransformerModel`] does.
        """
        if labels is not None:
            use_cache = False
            labels = labels.masked_fill(labels == ignore_index, -100)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=either_cache(cache, past_key_values),
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        states = outputs.last_hidden_state
        logits = loss = sums = None
        if labels is not None:
            check_shape_of_labels(labels, states)
        if labels is not None and skip_logits:
            loss, sums = self._loss_without_logits(states, labels, **kwargs)
        else:
            positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = linear(self.lm_head, states[:, positions])
            if labels is not None:
                loss = self._loss(logits, labels, **kwargs)
        other_fields = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return VanillaTransformerLMOutput(loss=loss, logits=logits, token_sums=sums, **other_fields)

    @property
    def _label_smoothing(self) -> float:
        return self.config.label_smoothing if self.training else 0.0

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        smoothing = self._label_smoothing
        return self.loss_function(logits, labels, self.config.vocab_size, label_smoothing=smoothing, **kwargs)

    def _loss_without_logits(
        self, states: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the same loss and `token_sums`; from states, unless the user has replaced `loss_function`."""
        if self.loss_function is not label_smoothed_cross_entropy:
            logits = self.lm_head(states)
            loss = self._loss(logits, labels, num_items_in_batch=num_items_in_batch, **kwargs)
            return loss, token_sums(logits, labels).sum(dim=0)
        check_labels(labels, self.config.vocab_size)
        total, sums = smoothed_cross_entropy_of_states(states, self.lm_head, labels, self._label_smoothing)
        return per_token(total, labels, num_items_in_batch), sums

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs for teacher forcing: `<s>`, then `labels` without the last; `(batch, target)` in and out.

        Raises:
            ValueError: if the configuration lacks the pad token or the start token, or if labels are padded on the left
                (checked in eager mode on CPUs, where a Trainer's collator runs).
        """
        pad, start = self.config.pad_token_id, self.config.decoder_start_token_id
        if pad is None or start is None:
            raise InputError(f"pad_token_id is {pad} and decoder_start_token_id is {start}; training needs both.")
        check_right_padding(labels)
        return shift_right(labels, pad, start)


def label_smoothed_cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    **kwargs: Any,
) -> torch.Tensor:
    """Section 5.4: cross-entropy with label smoothing, in nats per target token.

    The target distribution gives the label 1 - epsilon + epsilon / V, and every other token epsilon / V.

    Args:
        logits (`(batch, target, vocabulary)`), labels (`(batch, target)`): `ignore_index` where there is no target.
        vocab_size (`int`): V.
        num_items_in_batch (`int`, *optional*): number of target tokens to divide by, of all batches that one update
            accumulates; `None` for those in `labels`.
        label_smoothing (`float`): epsilon_ls.
        ignore_index (`int`): transformers' name of the label without a target.

    Returns:
        `torch.Tensor`: a scalar, at least in float32.

    Raises:
        ValueError: if a label is outside the vocabulary.
    """
    labels = labels.to(logits.device)
    labels = labels.masked_fill(labels == ignore_index, -100)
    check_labels(labels, vocab_size)
    total = smoothed_cross_entropy(logits, labels, label_smoothing)
    return per_token(total, labels, num_items_in_batch)


def per_token(total: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
    """A sum over target tokens divided by their number: `num_items_in_batch`, or the number of `labels`."""
    if num_items_in_batch is None:
        num_items_in_batch = (labels != -100).sum()
    return total / torch.as_tensor(num_items_in_batch, device=total.device).clamp(min=1)
