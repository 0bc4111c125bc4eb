"""Exact transformations of weights that conversions share: the order of channels, and the feed-forward width.

Marian, fairseq and this model name and arrange almost the same weights. Two differences need more than new names:

- Marian's and fairseq's sinusoids have all sines before all cosines; this model interleaves them (section 3.5).
- In Marian and fairseq, the encoder's feed-forward networks may be wider than the decoder's, or narrower.
"""

from typing import Any

import torch
from transformers import PreTrainedModel

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.user_errors import InputError


# Parts of the names of weights that read the residual stream. Their shape is (output, d_model).
_READ = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "shared", "embed_tokens", "lm_head.weight")
# Parts of the names of weights and biases that write the residual stream. Their shape is (d_model, ...).
_WRITE = ("out_proj", "fc2", "layer_norm")
# Configuration fields that MarianConfig and FSMTConfig share with VanillaTransformerConfig.
SAME_FIELDS = (
    "encoder_layers",
    "decoder_layers",
    "d_model",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "max_position_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)

StateDict = dict[str, torch.Tensor]


def interleaved_channels(d_model: int) -> torch.Tensor:
    """Return where the channels of Marian's sinusoids are in the interleaved order, as a tensor of shape `(d_model,)`.

    The first half are the even channels (sines), and the second half are the odd channels (cosines).
    """
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def permute_channels(state: StateDict, channels: torch.Tensor) -> StateDict:
    """Reorder the channels of the residual stream, so that channel `channels[i]` becomes channel i.

    The permutation is exact. Only the sinusoids distinguish the channels, so a model whose sinusoids are permuted in
    the same way computes the same. `channels` has the shape `(d_model,)`.
    """
    permuted = {}
    for name, weight in state.items():
        if any(part in name for part in _READ):
            permuted[name] = weight[:, channels]
        elif any(part in name for part in _WRITE):
            permuted[name] = weight[channels]
        else:
            permuted[name] = weight
    return permuted


def widen_feed_forward(state: StateDict, d_ff: int) -> StateDict:
    """Pad all feed-forward networks with zeros to the inner width `d_ff`, which is at least their own width.

    The result is exact if the activation function maps 0 to 0, as ReLU and swish do. The added channels then contribute
    nothing, because their weights and biases are 0.
    """
    widened = {}
    for name, weight in state.items():
        if "fc1" in name:
            missing_rows = d_ff - weight.shape[0]
            widened[name] = torch.cat([weight, weight.new_zeros(missing_rows, *weight.shape[1:])])
        elif "fc2.weight" in name:
            missing_columns = d_ff - weight.shape[1]
            widened[name] = torch.nn.functional.pad(weight, (0, missing_columns))
        else:
            widened[name] = weight
    return widened


def require(config: VanillaTransformerConfig, system: str, **fields: object) -> None:
    """Raise ValueError unless a configuration has the values that the other system needs.

    Args:
        config: the configuration of the model that is converted.
        system: the name of the other system, for the message.
        **fields: the values that the fields of `config` must have. In addition, `key_dim` and `value_dim` must be
            `d_model / num_heads`, because no other system has heads of a different width.
    """
    head_width = config.d_model // config.num_heads
    required_fields = {"key_dim": head_width, "value_dim": head_width, **fields}
    for name, required_value in required_fields.items():
        value = getattr(config, name)
        if value != required_value:
            raise InputError(
                f"{name} is {value!r}, but {system} needs {required_value!r}; convert a model with that value."
            )


def converted_model(
    source: PreTrainedModel, state: StateDict, name: str, **fields: object
) -> VanillaTransformerForConditionalGeneration:
    """Build a model with the weights and the decoding settings of a Marian or FSMT model of transformers.

    Args:
        source: the Marian or FSMT model, whose configuration and decoding settings are taken over.
        state: its weights under this model's names, with the sines of the sinusoids before the cosines.
        name: the name of the source, for messages.
        **fields: configuration fields of the new model besides those that follow from the source's configuration.

    Raises:
        ValueError: if a weight is NaN or infinite.
    """
    for weight_name, weight in state.items():
        if not weight.isfinite().all():
            raise InputError(
                f"{weight_name} in {name} has values that are NaN or infinite; convert another checkpoint."
            )

    source_config = source.config
    # This model has one width for both stacks. The narrower stack is padded.
    d_ff = max(source_config.encoder_ffn_dim, source_config.decoder_ffn_dim)
    same_fields = {field: getattr(source_config, field) for field in SAME_FIELDS}
    config = VanillaTransformerConfig(
        **same_fields,
        d_ff=d_ff,
        num_heads=source_config.encoder_attention_heads,
        **fields,  # type: ignore[arg-type]
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()

    # Interleave the channels: this inverts the order of all sines before all cosines.
    channels = interleaved_channels(config.d_model).argsort()
    model.load_state_dict(permute_channels(widen_feed_forward(state, d_ff), channels))
    model.tie_weights()

    settings: Any = source.generation_config
    # If the settings seemed to be derived from a model's configuration, generate() would replace them.
    settings._from_model_config = False
    # transformers' length penalty and length limit, not the paper's.
    settings.length_penalty_type = "hf"
    settings.max_length_offset = None
    model.generation_config = settings
    return model
