"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) as PyTorch modules.

The file follows section 3 of the paper, from the parts to the whole model:

- attention (section 3.2) and the feed-forward network (3.3);
- the layers that are made of them (3.1): every sub-layer computes LayerNorm(x + Sublayer(x)), and no norm follows the
  stacks (post-LN);
- positional encoding (3.5) and embeddings (3.4), whose sum is the input of both stacks;
- the encoder, the decoder and the whole model (3.1 and Figure 1);
- the loss (5.4).

Docstrings name the axes of tensors: batch (sentences), source and target (lengths in tokens), heads (h), d_model, d_k,
d_v, and vocabulary. In attention, queries and keys are the lengths of the two sequences.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
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

from .attention_masks import choose_mask_config, flash_attention, look_ahead_mask
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation_settings import create_default_generation_config
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
    learned_positions_error,
    vocabulary_error,
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


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention for all heads at once (section 3.2.1, Eq. 1).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

    Args:
        module (`nn.Module`): the attention layer. Dropout applies if it is in training mode.
        query (`torch.Tensor` of shape `(batch, heads, queries, d_k)`): Q.
        key (`torch.Tensor` of shape `(batch, heads, keys, d_k)`): K.
        value (`torch.Tensor` of shape `(batch, heads, keys, d_v)`): V.
        attention_mask (`torch.Tensor` of shape `(batch, 1, queries, keys)`, *optional*): True or a non-zero
            integer for keys that a query may attend to. Alternatively, floating-point values that are added to the
            scores: 0 for allowed keys, and the lowest finite value for forbidden ones.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.

    Returns:
        The output, `(batch, queries, heads, d_v)`, and the attention weights, `(batch, heads, queries, keys)`.
    """
    # Q K^T / sqrt(d_k), of shape (batch, heads, queries, keys).
    scores = torch.matmul(query, key.transpose(-2, -1)) * scaling

    # The paper masks with minus infinity (section 3.2.3). The lowest finite value takes its place, because the softmax
    # of a row in which every score is minus infinity is NaN.
    lowest = torch.finfo(scores.dtype).min
    if attention_mask is not None:
        if attention_mask.is_floating_point():
            scores = scores + attention_mask.to(scores.dtype)
            # In float16, a negative score plus the lowest value overflows to minus infinity.
            scores = scores.clamp(min=lowest)
        else:
            scores = scores.masked_fill(~attention_mask.bool(), lowest)

    weights = nn.functional.softmax(scores, dim=-1)
    weights = drop(weights, dropout, module.training)
    # (batch, heads, queries, d_v) becomes (batch, queries, heads, d_v).
    output = torch.matmul(weights, value).transpose(1, 2).contiguous()
    return output, weights


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, where head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The layer `q_proj` holds the matrices W_i^Q of all heads i. In the same way, `k_proj` and `v_proj` hold W_i^K and
    W_i^V, and `out_proj` holds W^O. The model uses attention in three ways (section 3.2.3). They differ in where keys
    and values come from (the same sequence, or the encoder's output), and in whether the look-ahead mask applies.

    Args:
        config (`VanillaTransformerConfig`): the sizes, and the attention implementation.
        layer_idx (`int`): the index of the layer, under which the cache stores its keys and values.
        is_causal (`bool`): whether this is the decoder's self-attention. Eager attention reads the look-ahead mask from
            `attention_mask`; other implementations apply it themselves if no mask is passed.
    """

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.dropout = config.attention_dropout
        self.key_dim = config.key_dim
        self.value_dim = config.value_dim
        self.scaling = self.key_dim**-0.5

        d_model = config.d_model
        bias = config.attention_bias
        self.q_proj = nn.Linear(d_model, config.num_heads * self.key_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, config.num_heads * self.key_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, config.num_heads * self.value_dim, bias=bias)
        self.out_proj = nn.Linear(config.num_heads * self.value_dim, d_model, bias=bias)
        set_initial_gain(config.initializer_factor, self.v_proj, self.out_proj)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with queries from `hidden_states`, and with keys and values from `key_value_states`.

        Args:
            hidden_states (`torch.Tensor` of shape `(batch, queries, d_model)`): the states from which queries are
                computed.
            key_value_states (`torch.Tensor` of shape `(batch, keys, d_model)`, *optional*): the encoder's output, for
                cross-attention. Without it, keys and values are computed from `hidden_states` (self-attention).
            attention_mask (*optional*): the mask, in the form that the attention implementation needs.
            cache (`EncoderDecoderCache`, *optional*): keys and values of earlier tokens. New ones are added to it.

        Returns:
            The output, `(batch, queries, d_model)`, and the attention weights, `(batch, heads, queries, keys)`, or None
            if the attention implementation does not return them.
        """
        hidden_states = cast_for_matmul(hidden_states)
        # The shape of the query is (batch, heads, queries, d_k). In both cases below, the shape of the key is
        # (batch, heads, keys, d_k), and the shape of the value is (batch, heads, keys, d_v).
        query = self._split_heads(linear(self.q_proj, hidden_states), self.key_dim)
        if key_value_states is None:
            key, value = self._project_keys_and_values(hidden_states)
            if cache is not None:
                # `update` adds the keys and values of the new tokens to the cache of this layer, and returns those of
                # all tokens so far, on the axis "keys". In a static cache, unused slots follow them.
                key, value = cache.self_attention_cache.update(key, value, self.layer_idx)
        else:
            # The source is the same in every decoding step. With a cache, its keys and values are computed in the first
            # step only, and later steps read them from the cache.
            key, value = get_source_keys_and_values(
                cache, self.layer_idx, self._project_keys_and_values, key_value_states
            )

        implementation = self.config._attn_implementation
        if kwargs.get("output_attentions"):
            # Only eager attention returns attention weights.
            implementation = "eager"
        # transformers' table maps the name of an implementation to its function. It has no entry "eager", for which it
        # returns the second argument, the default.
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        if attention is flash_attention_forward:
            # transformers' own function would apply the padding mask of the keys to the queries as well.
            attention = flash_attention
        dropout = self.dropout if self.training else 0.0
        # The outputs of all heads, (batch, queries, heads, d_v), and the attention weights.
        heads, weights = attention(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        # (batch, queries, heads * d_v)
        concatenated_heads = heads.flatten(-2)
        return linear(self.out_proj, concatenated_heads), weights

    def _split_heads(self, projected: Tensor, head_dim: int) -> Tensor:
        """Reshape `(batch, length, heads * head_dim)` to `(batch, heads, length, head_dim)`."""
        batch, length = projected.shape[:2]
        return projected.reshape(batch, length, -1, head_dim).transpose(1, 2)

    def _project_keys_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the keys K W_i^K and the values V W_i^V of all heads from states `(batch, keys, d_model)`."""
        states = cast_for_matmul(states)
        key = self._split_heads(linear(self.k_proj, states), self.key_dim)
        value = self._split_heads(linear(self.v_proj, states), self.value_dim)
        return key, value


def get_source_keys_and_values(
    cache: EncoderDecoderCache | None,
    layer_idx: int,
    project: Callable[[Tensor], tuple[Tensor, Tensor]],
    encoder_states: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the keys and values for cross-attention, from the cache if an earlier step has stored them there.

    Otherwise `project` computes them from the encoder's output, `(batch, source, d_model)`, and they are stored in the
    cache if there is one.

    Returns:
        Keys of shape `(batch, heads, source, d_k)` and values of shape `(batch, heads, source, d_v)`.
    """
    if cache is None:
        return project(encoder_states)
    source_cache = cache.cross_attention_cache
    is_cached = cache.is_updated.get(layer_idx, False)
    if is_cached:
        cached_layer: Any = source_cache.layers[layer_idx]
        # An offloading cache may hold the layer on a different device.
        cached_layer.prefetch()
        key = cached_layer.keys
        value = cached_layer.values
    else:
        cache.is_updated[layer_idx] = True
        new_key, new_value = project(encoder_states)
        key, value = source_cache.update(new_key, new_value, layer_idx)

    is_static = source_cache.layers[layer_idx].is_compileable
    if is_static:
        # A static cache may be longer than the source; without a mask, queries would attend to the zeros at its end.
        source_length = encoder_states.shape[1]
        key = key[:, :, :source_length]
        value = value[:, :, :source_length]
    return key, value


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """The base class of encoder and decoder layers: self-attention, the feed-forward network, and a norm for each."""

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
        # The norm of the feed-forward sub-layer, named as in fairseq and transformers.
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the position-wise feed-forward network: max(0, x W_1 + b_1) W_2 + b_2 (section 3.3, Eq. 2).

        x and the result have the shape `(batch, length, d_model)`, and the inner states have width d_ff.
        """
        inner = self.activation_fn(linear(self.fc1, x))
        inner = drop(inner, self.activation_dropout, self.training)
        return linear(self.fc2, inner)

    def add_and_norm(self, x: Tensor, sublayer_x: Tensor, layer_norm: nn.LayerNorm) -> Tensor:
        """Compute LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

        `sublayer_x` is Sublayer(x). All shapes are `(batch, length, d_model)`.
        """
        dropped = drop(sublayer_x, self.dropout, self.training)
        # Under autocast the sub-layer's output has a lower precision than x. Adding two dtypes is slow on CPUs.
        return layer_norm(x + dropped.to(x.dtype))


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """An encoder layer: self-attention, then the feed-forward network (section 3.1 and the left half of Figure 1)."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Tensor:
        """Compute the layer's output from its input. Both have the shape `(batch, source, d_model)`."""
        x = hidden_states
        attended, _ = self.self_attn(x, attention_mask=attention_mask, **kwargs)
        x = self.add_and_norm(x, attended, self.self_attn_layer_norm)
        return self.add_and_norm(x, self.feed_forward(x), self.final_layer_norm)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """A decoder layer: masked self-attention, cross-attention, and the feed-forward network (section 3.1, Figure 1)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=True)
        self.encoder_attn = VanillaTransformerAttention(config, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Tensor:
        """Compute the layer's output from its input. Both have the shape `(batch, target, d_model)`.

        `encoder_hidden_states` is the encoder's output, of shape `(batch, source, d_model)`.
        """
        x = self.attend_to_target(hidden_states, attention_mask=attention_mask, cache=cache, **kwargs)
        attended, _ = self.encoder_attn(
            x, encoder_hidden_states, attention_mask=encoder_attention_mask, cache=cache, **kwargs
        )
        x = self.add_and_norm(x, attended, self.encoder_attn_layer_norm)
        return self.add_and_norm(x, self.feed_forward(x), self.final_layer_norm)

    def attend_to_target(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Tensor:
        """Apply masked self-attention with its residual connection and norm, from and to `(batch, target, d_model)`."""
        attended, _ = self.self_attn(hidden_states, attention_mask=attention_mask, cache=cache, **kwargs)
        return self.add_and_norm(hidden_states, attended, self.self_attn_layer_norm)


@replaceable
def sinusoidal_positions(
    position_ids: Tensor, d_model: int, exponent_divisor: int | None = None, bound: int | None = None
) -> Tensor:
    """Compute the sinusoidal positional encoding: sines and cosines of different frequencies (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))

    Args:
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions pos, counted from 0. There is no limit.
        d_model (`int`): the width of the encoding, which must be even.
        exponent_divisor (`int`, *optional*): the divisor of 2i, by default d_model. The authors' code divides by
            d_model - 2, so that the longest wavelength is exactly 10000 * 2 pi.
        bound (`int`, *optional*): a number greater than every position, if it is known without reading a tensor. The
            formula does not use it, but an implementation with a precomputed table does.

    Returns:
        `torch.FloatTensor` of shape `(batch, length, d_model)`, in float32: sines at even channels, cosines at odd
            ones.
    """
    # A float32 angle has an error of 0.004 at position 100,000, so angles are in float64. Some devices lack that dtype.
    if not exponent_divisor:
        # None is the default. The authors' divisor is 0 if d_model is 2, where 2i is always 0 and any divisor will do.
        exponent_divisor = d_model
    device = torch.device("cpu")
    if position_ids.device.type in _DEVICES_WITH_FLOAT64:
        device = position_ids.device
    # (d_model / 2,)
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device=device)
    divisors = 10000 ** (two_i / exponent_divisor)
    # (batch, length, d_model / 2)
    angles = position_ids.to(device).unsqueeze(-1) / divisors
    # (batch, length, d_model / 2, 2) and then (batch, length, d_model)
    sines_and_cosines = torch.stack([angles.sin(), angles.cos()], dim=-1)
    interleaved = sines_and_cosines.flatten(-2)
    return interleaved.to(device=position_ids.device, dtype=torch.float32)


def count_positions(
    attention_mask: Tensor | None, length: int, past_length: int | Tensor, device: torch.device
) -> Tensor:
    """Compute the positions, counted from 0, of the last `length` tokens of each sentence.

    Only real tokens are counted, so padding on either side does not change a sentence's output.

    Args:
        attention_mask (`torch.Tensor` of shape `(batch, past_length + length)`, *optional*): 1 for real tokens, 0 for
            padding. Without a mask, or with one that is not 2D, every token counts as real.
        past_length (`int` or scalar tensor): the number of tokens in the cache.

    Returns:
        `torch.LongTensor` of shape `(batch, length)`, or `(1, length)` without a 2D mask.

    Raises:
        ValueError: if the mask does not have one column per token.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        positions = torch.arange(length, device=device) + past_length
        return positions.unsqueeze(0)
    # A static cache returns its length as a tensor, and reading it would break the compiled graph.
    if isinstance(past_length, int) and attention_mask.shape[1] != past_length + length:
        raise InputError(
            f"the mask has {attention_mask.shape[1]} columns, but there are {past_length} tokens in the cache and "
            f"{length} new ones; pass a mask with one column per token."
        )
    is_token = attention_mask.to(device).bool()
    # For example, the mask [0, 0, 1, 1] gives [-1, -1, 0, 1], and [1, 1, 0, 0] gives [0, 1, 1, 1].
    positions = is_token.cumsum(dim=-1, dtype=torch.long) - 1
    # The position of padding on the left would be -1, which is outside every table of positions.
    return positions[:, -length:].clamp(min=0)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """The base class of the encoder and the decoder, which holds the embeddings and the N layers (Figure 1).

    Args:
        vocab_size (`int`): the number of rows of this stack's embedding matrix.
        layers (`Sequence[nn.Module]`): the N layers.
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
        # transformers sets this to True when the user turns gradient checkpointing on.
        self.gradient_checkpointing = False
        # This comes last, because it initializes the weights of the modules that exist now.
        self.post_init()

    def look_up(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Look up the embeddings of tokens, or return `inputs_embeds` if the caller passes them (section 3.4).

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, length)`, *optional*): token ids.
            inputs_embeds (`torch.Tensor` of shape `(batch, length, d_model)`, *optional*): rows of the embedding
                matrix.

        Returns:
            `torch.Tensor` of shape `(batch, length, d_model)`, not yet multiplied by sqrt(d_model).

        Raises:
            ValueError: if both or neither are passed, if a sequence has no token, or if an id is outside the
                vocabulary.
        """
        check_ids_or_embeds(self, input_ids, inputs_embeds)
        if inputs_embeds is not None:
            return inputs_embeds
        # On CPUs, torch raises IndexError for an id without a row.
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:
            raise vocabulary_error(self, self.embed_tokens.num_embeddings, input_ids) from error

    def add_positions(self, inputs_embeds: Tensor, position_ids: Tensor, bound: int | None = None) -> Tensor:
        """Compute the input of the first layer: Dropout(sqrt(d_model) E + PE) (sections 3.4, 3.5 and 5.4).

        Args:
            inputs_embeds (`torch.Tensor` of shape `(batch, length, d_model)`): the embeddings E.
            position_ids (`torch.LongTensor` of shape `(batch, length)` or `(1, length)`): positions, counted from 0.
            bound (`int`, *optional*): a number greater than every position, if it is known without reading a tensor.

        Returns:
            `torch.Tensor` of shape `(batch, length, d_model)`.

        Raises:
            ValueError: if positions are learned, and a position has no row in their table.
        """
        if self.config.position_embedding_type == "learned":
            encodings = self._look_up_positions(position_ids)
        else:
            encodings = self._compute_sinusoids(position_ids, bound)

        # The sum is at least in float32, so that half precision rounds it only once.
        precise_dtype = torch.promote_types(inputs_embeds.dtype, torch.float32)
        scaled_embeds = inputs_embeds.to(precise_dtype) * math.sqrt(self.config.d_model)
        x = (scaled_embeds + encodings).to(inputs_embeds.dtype)
        return drop(x, self.config.dropout, self.training)

    def _look_up_positions(self, position_ids: Tensor) -> Tensor:
        """Look up learned positional embeddings (Table 3, row E), `(batch, length, d_model)`."""
        # On CPUs, torch raises IndexError for a position without a row.
        try:
            return self.embed_positions(position_ids)
        except IndexError as error:
            raise learned_positions_error(position_ids, self.config.max_position_embeddings) from error

    def _compute_sinusoids(self, position_ids: Tensor, bound: int | None) -> Tensor:
        """Compute the encodings `(batch, length, d_model)` of positions `(batch, length)`, below `bound` if given."""
        d_model = self.config.d_model
        exponent_divisor = d_model
        if self.config.position_embedding_type == "sinusoidal_tensor2tensor":
            # The authors' code differs from the paper's formula in this divisor.
            exponent_divisor = d_model - 2
        # The position of the first token, which is 0 except in models that were converted from fairseq.
        offset = self.config.position_offset
        if offset == 0:
            return sinusoidal_positions(position_ids, d_model, exponent_divisor, bound)
        shifted_bound = None
        if bound is not None:
            shifted_bound = bound + offset
        return sinusoidal_positions(position_ids + offset, d_model, exponent_divisor, shifted_bound)

    def add_counted_positions(
        self, inputs_embeds: Tensor, attention_mask: Tensor | None, past_length: int | Tensor
    ) -> Tensor:
        """Compute the input of the first layer as [`add_positions`] does, with positions counted from the mask.

        The mask, `(batch, past_length + length)`, also covers the `past_length` tokens in the cache.
        """
        length = inputs_embeds.shape[1]
        position_ids = count_positions(attention_mask, length, past_length, inputs_embeds.device)
        bound = None
        # A static cache returns its length as a tensor, so no bound is known without reading it.
        if isinstance(past_length, int):
            bound = past_length + length
        return self.add_positions(inputs_embeds, position_ids, bound)

    def normalize_output(self, x: Tensor) -> Tensor:
        """Apply the stack's norm to its last layer's output, `(batch, length, d_model)`. The paper's model has none."""
        return self.layer_norm(x) if self.config.stack_layer_norm else x


class VanillaTransformerEncoder(VanillaTransformerStack):
    """The encoder, a stack of N layers (section 3.1)."""

    # On request, `capture_outputs` collects the result of each layer, and the second result of each attention layer.
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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Compute a state for each source token from all tokens of the sentence.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`): token ids.
            attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): 1 for real tokens, 0 for padding.
            inputs_embeds (`torch.FloatTensor` of shape `(batch, source, d_model)`, *optional*): rows of the embedding
                matrix in place of `input_ids`, not yet multiplied by sqrt(d_model).

        Returns:
            `BaseModelOutput`: `last_hidden_state`, `(batch, source, d_model)`.

        Raises:
            ValueError: if a token id is outside the vocabulary, or a sentence is longer than a table of learned
                positions.
        """
        embeds = self.look_up(input_ids, inputs_embeds)
        # All tensors named `x` have the shape (batch, source, d_model).
        x = self.add_counted_positions(embeds, attention_mask, past_length=0)

        mask_config = choose_mask_config(self.config, kwargs.get("output_attentions"), attention_mask)
        mask = create_bidirectional_mask(mask_config, x, attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.normalize_output(x))


def prepare_cache(
    config: VanillaTransformerConfig, cache: Cache | None, use_cache: bool | None, is_checkpointing: bool
) -> EncoderDecoderCache | None:
    """Return the KV cache for the decoder: the caller's cache, a new one if `use_cache` is True, or None.

    Args:
        cache (`Cache`, *optional*): the caller's cache, for self-attention only or also for cross-attention.
        use_cache (`bool`, *optional*): by default `config.use_cache`.
        is_checkpointing (`bool`): whether the backward pass will compute the layers again. Then no cache is created.

    Raises:
        ValueError: if the caller passes a cache in training with gradient checkpointing.
    """
    if is_checkpointing:
        if cache is not None:
            raise InputError(
                "gradient checkpointing computes each layer twice, which would extend the cache twice; leave the cache "
                "out, or call the model under torch.no_grad()."
            )
        return None
    if isinstance(cache, EncoderDecoderCache):
        return cache
    # A cache of any other class is for self-attention only.
    self_attention_cache = cache
    if self_attention_cache is None:
        if use_cache is None:
            use_cache = config.use_cache
        if not use_cache:
            return None
        self_attention_cache = DynamicCache(config=config)
    return EncoderDecoderCache(self_attention_cache, DynamicCache(config=config))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """The decoder, a stack of N layers that attend to earlier target tokens and to the source (section 3.1)."""

    _tp_plan = DECODER_TP_PLAN
    # As in the encoder, but names of modules distinguish self-attention from cross-attention.
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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Compute a state for each target token from the tokens before it and from the source.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, target)`): token ids. With a cache, only the new tokens.
            attention_mask (`torch.Tensor` of shape `(batch, past + target)`, *optional*): 1 for real tokens, 0 for
                padding, including the tokens in the cache.
            encoder_hidden_states (`torch.FloatTensor` of shape `(batch, source, d_model)`): the encoder's output.
            encoder_attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): the source's mask.
            cache (`Cache`, *optional*): keys and values of earlier tokens. The keys and values of the new tokens are
                added.
            inputs_embeds (`torch.FloatTensor` of shape `(batch, target, d_model)`, *optional*): rows of the embedding
                matrix in place of `input_ids`, as in the encoder.
            use_cache (`bool`, *optional*): whether to return keys and values; by default `config.use_cache`. No cache
                is created in training with gradient checkpointing.
            past_key_values (`Cache`, *optional*): the name of `cache` before transformers 5.24.

        Returns:
            `BaseModelOutputWithPastAndCrossAttentions`: `last_hidden_state`, `(batch, target, d_model)`, and `cache`.

        Raises:
            ValueError: if a token id is outside the vocabulary; if a sentence is longer than a table of learned
                positions; if `encoder_hidden_states` is missing or differs in length from its mask; if both `cache` and
                `past_key_values` are passed; if a static cache is used with flex attention; or if a cache is used in
                training with gradient checkpointing.
        """
        check_source(encoder_hidden_states, encoder_attention_mask)
        embeds = self.look_up(input_ids, inputs_embeds)
        is_checkpointing = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        cache = prepare_cache(self.config, either_cache(cache, past_key_values), use_cache, is_checkpointing)

        # The number of tokens whose keys and values are in the cache. A static cache that has been used returns a
        # scalar tensor.
        past_length: int | Tensor = 0
        target_cache: Cache | None = None
        if cache is not None:
            past_length = cache.get_seq_length()
            target_cache = cache.self_attention_cache
        # All tensors named `x` have the shape (batch, target, d_model).
        x = self.add_counted_positions(embeds, attention_mask, past_length)

        mask_config = choose_mask_config(
            self.config, kwargs.get("output_attentions"), attention_mask, encoder_attention_mask
        )
        mask = look_ahead_mask(mask_config, x, attention_mask, target_cache)
        encoder_mask = create_bidirectional_mask(mask_config, x, encoder_attention_mask, encoder_hidden_states)

        # `is_updated` maps the index of a layer to True if its keys and values of the source are in the cache.
        has_source_in_cache = cache is not None and any(cache.is_updated.values())
        source_states = encoder_hidden_states
        if source_states is not None and not has_source_in_cache:
            # Every layer computes keys and values from the encoder's output, so one cast can serve all layers. If the
            # cache has the keys and values, the layers read only the length of `source_states`. `check_source` has
            # already rejected None.
            source_states = cast_once_for_layers(source_states)
        for layer in self.layers:
            x = layer(x, source_states, mask, encoder_mask, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.normalize_output(x), cache=cache)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """The encoder and the decoder without the LM head (section 3).

    With a joint vocabulary and `tie_word_embeddings`, both stacks share one embedding matrix, `shared` (section 3.4).
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        # Maps the name of each tied weight to the name of the weight that it shares. `post_init` reads it below.
        self._tied_weights_keys = {}
        shares_embeddings = config.has_joint_vocabulary and config.tie_word_embeddings
        if shares_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            for stack in ("encoder", "decoder"):
                self._tied_weights_keys[f"{stack}.embed_tokens.weight"] = "shared.weight"
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        # This initializes and ties the weights of both stacks, and replaces `_tp_plan` by the plans of both.
        self.post_init()
        if shares_embeddings:
            # The plans of the stacks do not contain the matrix that they share.
            self._tp_plan = {**self.tp_plan, "shared": "embedding_rowwise"}

    def get_input_embeddings(self) -> nn.Module:
        """Return the source embedding. If embeddings are shared, the target embedding has the same matrix."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the source embedding, and the target embedding as well if embeddings are shared."""
        self.encoder.embed_tokens = value
        if hasattr(self, "shared"):
            self.shared = value
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Run the encoder, unless `encoder_outputs` is passed, and then the decoder.

        Args:
            input_ids, attention_mask, inputs_embeds: the source, as for [`VanillaTransformerEncoder`].
            decoder_*, cache, use_cache, past_key_values: the target, as for [`VanillaTransformerDecoder`].
            encoder_outputs (`BaseModelOutput`, `ModelOutput`, `dict` or `tuple`, *optional*): from an earlier call.

        Returns:
            `Seq2SeqModelOutput`: `last_hidden_state`, `(batch, target, d_model)`, and the outputs of both stacks.

        Raises:
            ValueError: if there are no decoder inputs, or if the encoder or the decoder raises an error.
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


def shift_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Shift labels `(batch, target)` one position to the right, for teacher forcing (section 3.1).

    With the start token 1 and the pad token 0, the labels `[7, 8, 2, -100, -100]` give `[1, 7, 8, 2, 0]`.
    """
    start = labels.new_full((labels.shape[0], 1), decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=-1)
    return shifted.masked_fill(shifted == -100, pad_token_id)


@dataclass
class VanillaTransformerLMOutput(Seq2SeqLMOutput):
    """A `Seq2SeqLMOutput` with sums over the batch, from which perplexity and accuracy are computed.

    Args:
        token_sums (`torch.Tensor` of shape `(3,)`, *optional*): with `skip_logits`, the cross-entropy without label
            smoothing in nats, the number of tokens whose label has the highest logit, and the number of target tokens.
    """

    token_sums: Tensor | None = None


class VanillaTransformerForConditionalGeneration(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """The whole model of Figure 1: the encoder, the decoder, and the output projection `lm_head` (section 3.4)."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: VanillaTransformerConfig):
        # The inherited constructor makes generation settings from the configuration, which are replaced below.
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        target_embedding = "model.decoder.embed_tokens"
        if config.has_joint_vocabulary:
            target_embedding = "model.shared"
        # If `tie_word_embeddings` is set, `post_init` makes the LM head share the matrix of the target embedding.
        self._tied_weights_keys = {"lm_head.weight": f"{target_embedding}.weight"}
        self.loss_function = label_smoothed_cross_entropy
        self.generation_config = create_default_generation_config(config)
        # This comes last, because it reads the modules and `_tied_weights_keys` to initialize and tie weights.
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        past_key_values: Cache | None = None,
        ignore_index: int = -100,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaTransformerLMOutput:
        """Compute the logits of the next token at every target position, and the loss if `labels` are passed.

        Args:
            labels (`torch.LongTensor` of shape `(batch, target)`, *optional*): target tokens, ending in `</s>`; -100 or
                `ignore_index` where there is no target. Shifted right, they are the default decoder inputs.
            logits_to_keep (`int` or `torch.Tensor`): for how many positions at the end of the target logits are
                computed, or a tensor of positions; 0 for all positions, which `labels` need.
            skip_logits (`bool`): with `labels`, compute the loss without holding all logits in memory, and return no
                logits. Without `labels`, `skip_logits` has no effect.
            num_items_in_batch (`int`, *optional*): see [`label_smoothed_cross_entropy`]; the Trainer passes it.
            Other arguments: as for [`VanillaTransformerModel`].

        Returns:
            `VanillaTransformerLMOutput`: `logits`, `(batch, target, vocabulary)`, unless they are skipped; `loss`, in
            nats per target token, with label smoothing only in training mode; and the outputs of both stacks.

        Raises:
            ValueError: if there are neither decoder inputs nor labels, if labels and decoder inputs differ in shape, or
                if [`VanillaTransformerModel`] raises an error.
        """
        if labels is not None:
            # Teacher forcing processes all target tokens at once.
            use_cache = False
            # From here on, -100 marks all positions without a target.
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
        # (batch, target, d_model)
        states = outputs.last_hidden_state
        if labels is not None:
            check_shape_of_labels(labels, states)

        logits = None
        loss = None
        # The output's `token_sums`, (3,), only if the caller gets no logits.
        sums = None
        if labels is not None and skip_logits:
            loss, sums = self._compute_loss_without_logits(states, labels, **kwargs)
        else:
            logits = linear(self.lm_head, _select_positions(states, logits_to_keep))
            if labels is not None:
                loss = self._compute_loss(logits, labels, **kwargs)

        outputs_of_stacks = dict(outputs)
        # The logits take the place of the decoder's last states.
        outputs_of_stacks.pop("last_hidden_state")
        return VanillaTransformerLMOutput(loss=loss, logits=logits, token_sums=sums, **outputs_of_stacks)

    @property
    def _label_smoothing(self) -> float:
        """epsilon_ls in training mode, and 0 in evaluation mode."""
        return self.config.label_smoothing if self.training else 0.0

    def _compute_loss(self, logits: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
        """Compute the loss with `loss_function`: [`label_smoothed_cross_entropy`], unless the user has replaced it.

        Logits have the shape `(batch, target, vocabulary)`. `kwargs` may contain `num_items_in_batch`.
        """
        return self.loss_function(
            logits, labels, self.config.vocab_size, label_smoothing=self._label_smoothing, **kwargs
        )

    def _compute_loss_without_logits(
        self, states: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and its `token_sums` without holding all logits in memory.

        If the user has replaced `loss_function`, all logits are computed for it. States have the shape
        `(batch, target, d_model)`, and labels `(batch, target)`, with -100 where there is no target.
        """
        if self.loss_function is not label_smoothed_cross_entropy:
            # (batch, target, vocabulary)
            logits = self.lm_head(states)
            loss = self._compute_loss(logits, labels, num_items_in_batch=num_items_in_batch, **kwargs)
            return loss, token_sums(logits, labels).sum(dim=0)
        check_labels(labels, self.config.vocab_size)
        # The sum of the loss over all target tokens, and the `token_sums` of the batch, (3,).
        loss_sum, sums = smoothed_cross_entropy_of_states(states, self.lm_head, labels, self._label_smoothing)
        loss = per_token(loss_sum, labels, num_items_in_batch)
        return loss, sums

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Create decoder inputs for teacher forcing: `<s>`, followed by all labels but the last, with pads for -100.

        Raises:
            ValueError: if the configuration lacks the pad token or the start token, or if labels are padded on the left
                (checked in eager mode on CPUs, where a Trainer's collator runs).
        """
        pad_token_id = self.config.pad_token_id
        start_token_id = self.config.decoder_start_token_id
        if pad_token_id is None or start_token_id is None:
            raise InputError(
                f"pad_token_id is {pad_token_id} and decoder_start_token_id is {start_token_id}; training needs both, "
                "so set them in the configuration."
            )
        check_right_padding(labels)
        return shift_right(labels, pad_token_id, start_token_id)


def _select_positions(states: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Select the decoder states `(batch, target, d_model)` for which logits are computed.

    `logits_to_keep` is a number of positions at the end of the target, 0 for all, or a tensor of positions.
    """
    if isinstance(logits_to_keep, int):
        # With 0, this selects all positions.
        return states[:, -logits_to_keep:]
    return states[:, logits_to_keep]


def label_smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """Compute the cross-entropy with label smoothing, in nats per target token (section 5.4).

    The target distribution gives the label the probability 1 - epsilon + epsilon / V, and every other token
    epsilon / V.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`): scores of the next token. V is `vocab_size`.
        labels (`torch.LongTensor` of shape `(batch, target)`): token ids; `ignore_index` where there is no target.
        num_items_in_batch (`int`, *optional*): the number of target tokens to divide by, counted over all batches of
            one update; `None` for the number in `labels`.
        label_smoothing (`float`): epsilon.

    Returns:
        A scalar, at least in float32.

    Raises:
        ValueError: if a label is outside the vocabulary.
    """
    labels = labels.to(logits.device)
    # From here on, -100 marks all positions without a target.
    labels = labels.masked_fill(labels == ignore_index, -100)
    check_labels(labels, vocab_size)
    loss_sum = smoothed_cross_entropy(logits, labels, label_smoothing)
    return per_token(loss_sum, labels, num_items_in_batch)


def per_token(total: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Divide a sum over target tokens by `num_items_in_batch`, or by the number of labels other than -100."""
    if num_items_in_batch is None:
        num_items_in_batch = (labels != -100).sum()
    num_tokens = torch.as_tensor(num_items_in_batch, device=total.device)
    # Without any target, the sum is 0, and the result is 0 instead of NaN.
    return total / num_tokens.clamp(min=1)
