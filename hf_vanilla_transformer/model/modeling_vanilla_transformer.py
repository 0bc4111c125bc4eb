"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), from its parts to the whole.

Section 3.5 positions, 3.2 attention, 3.3 feed-forward networks, 3.1 layers and stacks, 3.4 embeddings and output
projection, and the loss of section 5.4. Post-LN: every sub-layer computes LayerNorm(x + Sublayer(x)), and no norm
follows the stacks.

Shapes have named axes: batch, source and target (lengths in tokens), heads (h), d_model, d_k, d_v, vocabulary.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_bidirectional_mask,
    create_causal_mask,
    flash_attention_mask,
    flex_attention_mask,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_kernels import ATTENTION, flash_attention
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .fast_path_checks import is_plain_cpu_tensor, is_plain_linear
from .generation_settings import paper_generation_config
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin, as_encoder_output
from .int8_quantization import Int8Linear, register_quantizer
from .linear_kernels import cast_for_matmul, drop, linear
from .loss_kernels import smoothed_cross_entropy_of_states, token_sums
from .transformers_compatibility import CACHE, either_cache


_DEVICES_WITH_FLOAT64 = ("cpu", "cuda", "meta")
# These mask functions of transformers pass a 4D mask through unchanged, and their attention misreads it.
_PADDING_MASKS_ONLY = (flash_attention_mask, flex_attention_mask)


def sinusoidal_positions(position_ids: torch.Tensor, d_model: int, exponent_divisor: int | None = None) -> torch.Tensor:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model)).

    Args:
        position_ids (`torch.LongTensor` of shape `(batch, length)`): positions pos, counted from 0, without a limit.
        d_model (`int`): even.
        exponent_divisor (`int`, *optional*): instead of d_model. The authors' code has d_model - 2, so that the
            longest wavelength is exactly 10000 * 2 pi.

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
        raise ValueError(
            f"the mask has {attention_mask.shape[1]} columns, but there are {past_length} tokens in the cache and "
            f"{length} new ones; give one column per token."
        )
    position_ids = attention_mask.to(device).long().cumsum(dim=-1) - 1
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
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`(batch, 1, target, source)`, *optional*): where a query may attend, as booleans or integers; or
            floating-point values to add to the scores: 0, and the lowest value for the paper's minus infinity.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): dropout rate of the attention weights.

    Returns:
        The output, `(batch, target, heads, d_v)`, and the attention weights, `(batch, heads, target, source)`.
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

    One matrix holds the projections of all heads. The three uses of section 3.2.3 differ in the source of keys and
    values (the same sequence, or the encoder's output) and in `is_causal`, the look-ahead mask.
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
            hidden_states (`(batch, target, d_model)`): gives the queries.
            key_value_states (`(batch, source, d_model)`, *optional*): the encoder's output, in cross-attention.
            attention_mask: in the form that the attention implementation needs.
            cache (`EncoderDecoderCache`, *optional*): earlier keys and values; extended in place.

        Returns:
            The output, `(batch, target, d_model)`, and the attention weights, `(batch, heads, target, source)`, or None
            where the attention implementation does not return them.
        """
        hidden_states = cast_for_matmul(hidden_states)
        query = self._split_heads(linear(self.q_proj, hidden_states), self.key_dim)
        if key_value_states is None:
            key, value = self._self_keys_values(hidden_states, cache)
        else:
            key, value = self._cross_keys_values(key_value_states, cache)

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
        return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)

    def _project(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = cast_for_matmul(states)
        key = self._split_heads(linear(self.k_proj, states), self.key_dim)
        return key, self._split_heads(linear(self.v_proj, states), self.value_dim)

    def _self_keys_values(
        self, states: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self._project(states)
        if cache is None:
            return key, value
        return cache.self_attention_cache.update(key, value, self.layer_idx)

    def _cross_keys_values(
        self, states: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if cache is None:
            return self._project(states)
        if cache.is_updated.get(self.layer_idx):
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            layer.prefetch()  # An offloading cache may hold it on another device.
            return layer.keys, layer.values
        cache.is_updated[self.layer_idx] = True
        return cache.cross_attention_cache.update(*self._project(states), self.layer_idx)


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """The common parts of both stacks' layers: self-attention, feed-forward network, residual sums and norms."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.self_attn = VanillaTransformerAttention(config, layer_idx, is_causal=is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
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

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=False)

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
        x = hidden_states
        attended, _ = self.self_attn(x, attention_mask=attention_mask, cache=cache, **kwargs)
        x = self.add_and_norm(x, attended, self.self_attn_layer_norm)
        attended, _ = self.encoder_attn(
            x, encoder_hidden_states, attention_mask=encoder_attention_mask, cache=cache, **kwargs
        )
        x = self.add_and_norm(x, attended, self.encoder_attn_layer_norm)
        return self.add_and_norm(x, self.feed_forward(x), self.final_layer_norm)


def leave_out_tied_weights(model: PreTrainedModel, incompatible_keys: Any) -> None:
    """A hook of `load_state_dict`: a tied weight, which files hold once (section 3.4), is not missing.

    Without it the Trainer logs "missing keys" when it resumes or loads the best checkpoint.
    """
    missing = incompatible_keys.missing_keys
    for tied, source in model.all_tied_weights_keys.items():
        for name in [name for name in missing if f".{name}".endswith(f".{tied}")]:
            was_loaded = name.removesuffix(tied) + source not in missing
            # With assign=True they are two tensors from then on.
            if was_loaded and attrgetter(tied)(model) is attrgetter(source)(model):
                missing.remove(name)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Class attributes that transformers reads, loading and saving, and the initialization of weights."""

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaTransformerEncoderLayer", "VanillaTransformerDecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any):
        # Fields may have been set after the configuration was validated.
        config.validate_architecture()
        super().__init__(config, *args, **kwargs)
        self.register_load_state_dict_post_hook(leave_out_tied_weights)

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        """Inputs that the model can be called with, of source and target."""
        ids = super().dummy_inputs["input_ids"].to(self.device)
        return {"input_ids": ids, "decoder_input_ids": ids}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model, as `PreTrainedModel.from_pretrained` does.

        `quantization_config=Int8Config()` quantizes the weights to int8. `pytorch_model.bin`, a pickle, is read
        with `use_safetensors=False` only.

        Raises:
            ValueError: if the file of weights is truncated or damaged, or does not match the configuration.
        """
        register_quantizer()
        output_loading_info = kwargs.pop("output_loading_info", False)
        kwargs.setdefault("use_safetensors", True)
        try:
            loaded: Any = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(
                f"config.json and the weights in {pretrained_model_name_or_path} do not match ({error}); use files "
                "of one run."
            ) from error
        except Exception as error:
            # By name, because files of saved models import torch and transformers only.
            if type(error).__name__ != "SafetensorError":
                raise
            raise ValueError(
                f"the weights in {pretrained_model_name_or_path} are truncated or damaged ({error}); copy or download "
                "them again, or use an earlier checkpoint."
            ) from error
        model, info = loaded
        if any(name.endswith("shared.weight") for name in info["unexpected_keys"]) and info["missing_keys"]:
            raise ValueError(
                f"the embeddings in {pretrained_model_name_or_path} are one shared matrix, and would be initialized "
                "anew as three; load the model without tie_word_embeddings, set "
                "model.config.tie_word_embeddings = False, and save it."
            )
        return (model, info) if output_loading_info else model

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The requested attention implementation; by default this package's, which chooses by device, dtype and length.

        That one returns no attention weights, so the default is eager attention with `config.output_attentions`.
        """
        chosen = "eager" if self.config.output_attentions else ATTENTION
        return super().get_correct_attn_implementation(requested_attention or chosen, is_init_check)

    @classmethod
    def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
        """Shard a model over processes, for `from_pretrained(..., distributed_config=...)`.

        Raises:
            ValueError: if tensor parallelism would split a head.
        """
        tp_size, num_heads = getattr(distributed_config, "tp_size", 1), model.config.num_heads
        if num_heads % tp_size != 0:
            raise ValueError(
                f"tp_size is {tp_size}, but num_heads is {num_heads}; tensor parallelism assigns whole heads to "
                "processes, so choose a tp_size that divides num_heads."
            )
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, also if weights were untied or given a bias later."""
        state_dict = self.state_dict_to_save(state_dict)
        head: Any = self.get_output_embeddings()
        if head is not None:
            self.config.lm_head_bias = getattr(head, "bias", None) is not None
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)

    def state_dict_to_save(self, state_dict: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor] | None:
        """The weights to write: those of `state_dict` or the model's; None if the model's need no change."""
        if not hasattr(self.base_model, "shared") or self.config.tie_word_embeddings:
            return state_dict
        # An untied model loads one matrix per use, so a shared matrix is written under each name.
        weights = (state_dict or self.state_dict()).items()
        return {name: weight.clone() for name, weight in weights if not name.endswith("shared.weight")}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot-uniform projections, and embeddings of standard deviation d_model^-0.5, as in the authors' code.

        The paper is silent. An untied LM head is initialized like the embeddings, to which section 3.4 ties it.
        """
        if isinstance(module, Int8Linear):
            raise ValueError(
                "the file of weights lacks int8 matrices that this class has; load an int8 model with the class that "
                "saved it, or with a class without an LM head."
            )
        if isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Change the size of the joint vocabulary, as `PreTrainedModel.resize_token_embeddings` does.

        Raises:
            ValueError: if source and target have separate vocabularies, or the weights are int8.
        """
        if isinstance(self.get_output_embeddings(), Int8Linear):
            raise ValueError("the LM head is int8; call dequantize() and then resize the embeddings.")
        if not self.config.has_joint_vocabulary:
            raise ValueError(
                "source and target have separate vocabularies, and resize_token_embeddings() does not name one; build "
                "a model of the new sizes and copy the weights."
            )
        decoder = getattr(self.base_model, "decoder", None)
        if decoder is not None and not self.config.tie_word_embeddings:
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """The input of both stacks (Figure 1, bottom): scaled embeddings plus positions, and dropout.

    Args:
        config (`VanillaTransformerConfig`): the configuration.
        vocab_size (`int`): rows of this stack's embedding.
        layers (`list[nn.Module]`): N layers.
    """

    # Tensor parallelism splits the vocabulary, the heads, and the inner channels of the feed-forward networks.
    _tp_plan = {
        "embed_tokens": "embedding_rowwise",
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.out_proj": "rowwise",
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
    }
    _fsdp_plan = {"layers.*": "free_full_weight"}

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
        if input_ids is not None and inputs_embeds is not None:
            raise ValueError(f"token ids and embeddings were both given to {type(self).__name__}; give one of them.")
        if inputs_embeds is not None:
            return inputs_embeds
        if input_ids is None:
            raise ValueError(f"neither token ids nor embeddings were given to {type(self).__name__}; give one of them.")
        if input_ids.shape[-1] == 0:
            raise ValueError(f"token ids of shape {tuple(input_ids.shape)} have no token; give at least one each.")
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:
            rows = self.embed_tokens.num_embeddings
            raise ValueError(
                f"token ids range from {int(input_ids.min())} to {int(input_ids.max())}, but the vocabulary of "
                f"{type(self).__name__} has ids 0 to {rows - 1}; use the tokenizer that the model was trained with, "
                "or resize_token_embeddings()."
            ) from error

    def add_positions(self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Sections 3.4, 3.5 and 5.4: Dropout(sqrt(d_model) E + PE), `(batch, length, d_model)`."""
        d_model, kind = self.config.d_model, self.config.position_embedding_type
        if kind == "learned":
            positions = self._learned_positions(position_ids)
        else:
            exponent_divisor = d_model - 2 if kind == "sinusoidal_tensor2tensor" else d_model
            positions = sinusoidal_positions(position_ids + self.config.position_offset, d_model, exponent_divisor)
        # At least in float32, so that half precision rounds once, after the sum.
        scaled = inputs_embeds.to(torch.promote_types(inputs_embeds.dtype, torch.float32)) * math.sqrt(d_model)
        x = (scaled + positions).to(inputs_embeds.dtype)
        return drop(x, self.config.dropout, self.training)

    def _learned_positions(self, position_ids: torch.Tensor) -> torch.Tensor:
        try:
            return self.embed_positions(position_ids)
        except IndexError as error:
            raise ValueError(
                f"a sequence of {int(position_ids.max()) + 1} tokens was given, but this model has learned "
                f"{self.config.max_position_embeddings} positions (max_position_embeddings); truncate or split it, "
                "or train a model with sinusoidal positions, which have no limit."
            ) from error

    def normalize_output(self, x: torch.Tensor) -> torch.Tensor:
        """The output of the last layer, `(batch, length, d_model)`; normalized with `config.stack_layer_norm`."""
        return self.layer_norm(x) if self.config.stack_layer_norm else x

    def mask_config(self, output_attentions: bool | None, *masks: torch.Tensor | None) -> VanillaTransformerConfig:
        """The configuration that masks are made for: only eager attention returns attention weights.

        Raises:
            ValueError: if the attention implementation takes 2D masks only, and a mask has more dimensions.
        """
        if output_attentions:
            config = copy.copy(self.config)
            config._attn_implementation = "eager"
            return config
        name = self.config._attn_implementation
        takes_padding_only = ALL_MASK_ATTENTION_FUNCTIONS.get(name) in _PADDING_MASKS_ONLY
        if takes_padding_only and any(mask is not None and mask.ndim > 2 for mask in masks):
            raise ValueError(
                f'a mask has more dimensions than (batch, length), but "{name}" takes padding masks only; give a 2D '
                'mask, or load the model with attn_implementation="sdpa".'
            )
        return self.config


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

    @merge_with_config_defaults
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
        position_ids = count_positions(attention_mask, embeds.shape[1], 0, embeds.device)
        x = self.add_positions(embeds, position_ids)
        config = self.mask_config(kwargs.get("output_attentions"), attention_mask)
        mask = create_bidirectional_mask(config, x, attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.normalize_output(x))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """Section 3.1: the decoder, a stack of N layers that attend to earlier positions and to the encoder's output."""

    _tp_plan = {
        **VanillaTransformerStack._tp_plan,
        "layers.*.encoder_attn.q_proj": "colwise",
        "layers.*.encoder_attn.k_proj": "colwise",
        "layers.*.encoder_attn.v_proj": "colwise",
        "layers.*.encoder_attn.out_proj": "rowwise",
    }
    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerDecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    @merge_with_config_defaults
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
            use_cache (`bool`, *optional*): whether to return keys and values.
            past_key_values (`Cache`, *optional*): `cache`, by its name before transformers 5.24.

        Returns:
            `BaseModelOutputWithPastAndCrossAttentions`: `last_hidden_state`, `(batch, target, d_model)`, and
            the cache, by the name that the installed transformers gives it.

        Raises:
            ValueError: as the encoder; if `encoder_hidden_states` is missing or differs in length from its mask; if the
                cache has both names; or for flex attention with a static cache, or a cache with gradient checkpointing.
        """
        if encoder_hidden_states is None:
            raise ValueError("the decoder attends to the encoder's output; give it as encoder_hidden_states.")
        source = encoder_hidden_states.shape[1]
        if encoder_attention_mask is not None and encoder_attention_mask.shape[-1] != source:
            raise ValueError(
                f"the source's mask has length {encoder_attention_mask.shape[-1]}, and the encoder's output has length "
                f"{source}; give the mask of the encoder's input."
            )
        embeds = self.look_up(input_ids, inputs_embeds)
        cache = self._encoder_decoder_cache(either_cache(cache, past_key_values), use_cache)
        past_length = 0 if cache is None else cache.get_seq_length()
        position_ids = count_positions(attention_mask, embeds.shape[1], past_length, embeds.device)
        x = self.add_positions(embeds, position_ids)

        config = self.mask_config(kwargs.get("output_attentions"), attention_mask, encoder_attention_mask)
        mask = self._causal_mask(config, x, attention_mask, None if cache is None else cache.self_attention_cache)
        encoder_mask = create_bidirectional_mask(config, x, encoder_attention_mask, encoder_hidden_states)
        for layer in self.layers:
            x = layer(x, encoder_hidden_states, mask, encoder_mask, cache=cache, **kwargs)
        fields: dict[str, Any] = {CACHE: cache}
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.normalize_output(x), **fields)

    def _causal_mask(
        self, config: VanillaTransformerConfig, x: torch.Tensor, attention_mask: torch.Tensor | None, cache: Any
    ) -> Any:
        """Section 3.2.3: the look-ahead mask with padding, in the form that the attention implementation needs."""
        makes_masks = ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation)
        if makes_masks is flex_attention_mask and cache is not None and cache.is_compileable:
            # The mask reads the static cache's length during attention, when the cache has already grown.
            raise ValueError(
                'flex attention does not work with a static cache; use another cache, or attn_implementation="sdpa".'
            )
        if makes_masks is flash_attention_mask and cache is not None and attention_mask is None:
            # Flash attention takes the filled length of a static cache from this mask.
            length = int(cache.get_seq_length()) + x.shape[1]
            attention_mask = torch.ones(len(x), length, dtype=torch.long, device=x.device)
        return create_causal_mask(config, x, attention_mask, cache)

    def _encoder_decoder_cache(self, cache: Cache | None, use_cache: bool | None) -> EncoderDecoderCache | None:
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            # The second time, during backward, would extend the cache again.
            raise ValueError(
                "gradient checkpointing computes layers twice, which would extend the cache twice; leave the cache "
                "out, or call the model under torch.no_grad()."
            )
        if isinstance(cache, EncoderDecoderCache):
            return cache
        if cache is None and not use_cache:
            return None
        self_attention_cache = DynamicCache(config=self.config) if cache is None else cache
        return EncoderDecoderCache(self_attention_cache, DynamicCache(config=self.config))


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Section 3: encoder and decoder, without the LM head.

    With a joint vocabulary and `tie_word_embeddings` both stacks share one embedding matrix, `shared` (section 3.4).
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self._tied_weights_keys = {}
        if config.has_joint_vocabulary and config.tie_word_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()
        if hasattr(self, "shared"):
            self._tp_plan = {**self.tp_plan, "shared": "embedding_rowwise"}

    def get_input_embeddings(self) -> nn.Embedding:
        """The source's embedding; with shared embeddings, also the target's."""
        return self.shared if hasattr(self, "shared") else self.encoder.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the source's embedding; with shared embeddings, also the target's.

        Args:
            value (`nn.Embedding`): `(vocabulary, d_model)`.
        """
        self.encoder.embed_tokens = value
        if hasattr(self, "shared"):
            self.shared = self.decoder.embed_tokens = value

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
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "decoder inputs are missing: give decoder_input_ids or decoder_inputs_embeds; or, for a loss, give "
                "labels to VanillaTransformerForConditionalGeneration; or, to translate, call its generate()."
            )
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
        ignore_index (`int`): the label of positions without a target.

    Returns:
        `torch.Tensor`: a scalar, at least in float32.

    Raises:
        ValueError: if a label is outside the vocabulary.
    """
    labels = labels.to(logits.device)
    check_labels(labels, vocab_size, ignore_index)
    total = nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)).view(-1, vocab_size),
        labels.reshape(-1),
        ignore_index=ignore_index,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return per_token(total, labels, num_items_in_batch, ignore_index)


def check_labels(labels: torch.Tensor, vocab_size: int, ignore_index: int = -100) -> None:
    """Check that labels are in the vocabulary, in eager mode on CPUs.

    Raises:
        ValueError: if a label is outside the vocabulary.
    """
    if not is_plain_cpu_tensor(labels) or labels.numel() == 0:
        return
    lowest, highest = labels.masked_fill(labels == ignore_index, 0).aminmax()
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(
            f"labels range from {int(lowest)} to {int(highest)}, but the target vocabulary has ids 0 to "
            f"{vocab_size - 1}; use the tokenizer that the model was trained with, and {ignore_index} where there "
            "is no target."
        )


def per_token(
    total: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None, ignore_index: int = -100
) -> torch.Tensor:
    """A sum over target tokens divided by their number: `num_items_in_batch`, or the number of `labels`."""
    if num_items_in_batch is None:
        num_items_in_batch = (labels != ignore_index).sum()
    return total / torch.as_tensor(num_items_in_batch, device=total.device).clamp(min=1)


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
        skip_logits: bool | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VanillaTransformerLMOutput:
        """Logits of the next token at every target position, and the loss if `labels` are given.

        Args:
            labels (`torch.LongTensor` of shape `(batch, target)`, *optional*): target tokens, ending in `</s>`; -100
                where there is no target. Without decoder inputs, the labels shifted right are the decoder inputs
                (teacher forcing).
            logits_to_keep (`int` or `torch.Tensor`): compute logits for this many last target positions, or for the
                given positions; 0 for all.
            skip_logits (`bool`, *optional*): with `labels`, compute the loss without all logits in memory, and return
                no logits; `None` does so in training mode.
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
        states, logits, loss, sums = outputs.last_hidden_state, None, None, None
        if labels is not None and labels.shape != states.shape[:2]:
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}, and the decoder's inputs {tuple(states.shape[:2])}; "
                "give one label per position, -100 where there is no target."
            )
        if labels is not None and (self.training if skip_logits is None else skip_logits):
            loss, sums = self._loss_without_logits(states, labels, **kwargs)
        else:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = linear(self.lm_head, states[:, kept])
            loss = None if labels is None else self._loss(logits, labels, **kwargs)
        fields: dict[str, Any] = {CACHE: outputs.get(CACHE)}
        return VanillaTransformerLMOutput(
            loss=loss,
            logits=logits,
            token_sums=sums,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            **fields,
        )

    @property
    def _label_smoothing(self) -> float:
        return self.config.label_smoothing if self.training else 0.0

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        smoothing = self._label_smoothing
        return self.loss_function(logits, labels, self.config.vocab_size, label_smoothing=smoothing, **kwargs)

    def _loss_without_logits(
        self, states: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same loss and `token_sums`; in chunks, from the matrix itself, if the LM head is a plain linear layer."""
        head = self.lm_head
        if self.loss_function is not label_smoothed_cross_entropy or not is_plain_linear(head):
            logits = self.lm_head(states)
            loss = self._loss(logits, labels, num_items_in_batch=num_items_in_batch, **kwargs)
            return loss, token_sums(logits, labels).sum(dim=0)
        check_labels(labels, self.config.vocab_size)
        total, sums = smoothed_cross_entropy_of_states(
            states, head.weight, labels, self._label_smoothing, bias=head.bias
        )
        return per_token(total, labels, num_items_in_batch), sums

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs for teacher forcing: `<s>`, then `labels` without the last; `(batch, target)` in and out.

        Raises:
            ValueError: if the configuration lacks the pad token or the start token, or if labels are padded on the left
                (checked in eager mode on CPUs, where a Trainer's collator runs).
        """
        pad, start = self.config.pad_token_id, self.config.decoder_start_token_id
        if pad is None or start is None:
            raise ValueError(f"pad_token_id is {pad} and decoder_start_token_id is {start}; training needs both.")
        if is_plain_cpu_tensor(labels):
            ignored = labels == -100
            if (ignored[:, :-1] & ~ignored[:, 1:]).any():
                raise ValueError(
                    "labels are padded on the left or have gaps; pad targets on the right (tokenizer.padding_side), or "
                    "give decoder_input_ids and decoder_attention_mask yourself."
                )
        return shift_right(labels, pad, start)
