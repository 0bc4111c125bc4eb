"""Exact changes of weights between systems: order of channels, width of feed-forward networks; and what has none."""

from typing import Any

import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.user_errors import InputError


# Parts of the names of weights: (output, d_model) reads the residual stream, (d_model, ...) writes it.
_READ = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "shared", "embed_tokens", "lm_head.weight")
_WRITE = ("out_proj", "fc2", "layer_norm")
# Fields that configurations of Marian and FSMT share with this model's.
SAME_FIELDS = (
    *("encoder_layers", "decoder_layers", "d_model", "dropout", "attention_dropout", "activation_dropout"),
    *("activation_function", "max_position_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)

State = dict[str, torch.Tensor]


def interleaved_channels(d_model: int) -> torch.Tensor:
    """The channels of sinusoids that interleave sines and cosines, in the order of all sines, then all cosines."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def permute_channels(state: State, channels: torch.Tensor) -> State:
    """The weights with channel `channels[i]` of the residual stream in place of channel i; `channels` is `(d_model,)`.

    Only sinusoids distinguish the channels, so a model whose sinusoids are permuted alike computes the same.
    """
    permuted = {}
    for name, weight in state.items():
        if any(part in name for part in _READ):
            weight = weight[:, channels]
        elif any(part in name for part in _WRITE):
            weight = weight[channels]
        permuted[name] = weight
    return permuted


def widen_feed_forward(state: State, d_ff: int) -> State:
    """The weights with feed-forward networks of inner width `d_ff`, at least their own: zeros add nothing to a sum.

    It is exact where the activation function maps 0 to 0, as ReLU and swish do, because the new biases are 0 too.
    """
    widened = {}
    for name, weight in state.items():
        if "fc1" in name:
            missing = d_ff - weight.shape[0]
            weight = torch.cat([weight, weight.new_zeros(missing, *weight.shape[1:])])
        elif "fc2.weight" in name:
            weight = torch.nn.functional.pad(weight, (0, d_ff - weight.shape[1]))
        widened[name] = weight
    return widened


def require(config: VanillaTransformerConfig, system: str, **fields: Any) -> None:
    """Raise ValueError if a configuration lacks the values that another system needs, or equal widths of heads."""
    width = config.d_model // config.num_heads
    for name, needed in {"key_dim": width, "value_dim": width, **fields}.items():
        given = getattr(config, name)
        if given != needed:
            raise InputError(f"{name} is {given!r}, but {system} needs {needed!r}; convert a model with that value.")


def converted_model(source: Any, state: State, name: str, **fields: Any) -> VanillaTransformerForConditionalGeneration:
    """A model with the weights and the decoding settings of a Marian or FSMT model of transformers.

    The state has its weights under this model's names, but for sinusoids with all sines before all cosines.
    """
    for key, weight in state.items():
        if not weight.isfinite().all():
            raise InputError(f"{key} in {name} has values that are NaN or infinite; convert another checkpoint.")
    given = source.config
    d_ff = max(given.encoder_ffn_dim, given.decoder_ffn_dim)
    same = {field: getattr(given, field) for field in SAME_FIELDS}
    config = VanillaTransformerConfig(**same, d_ff=d_ff, num_heads=given.encoder_attention_heads, **fields)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    state = permute_channels(widen_feed_forward(state, d_ff), interleaved_channels(config.d_model).argsort())
    model.load_state_dict(state)
    model.tie_weights()
    settings: Any = source.generation_config
    # The settings of the source, which the mixin would replace if they seemed to come from a configuration.
    settings._from_model_config = False
    settings.length_penalty_type, settings.max_length_offset = "hf", None
    model.generation_config = settings
    return model
