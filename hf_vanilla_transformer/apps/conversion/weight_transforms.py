"""Reorder and pad weights exactly, so that a converted model produces the same outputs as its source.

Marian, fairseq and this package have almost the same weights under different names. Two differences need more than new
names:

- Marian's and fairseq's sinusoids have all sines before all cosines. This model interleaves them (section 3.5).
- In Marian and fairseq, the feed-forward networks of the encoder and the decoder may have different widths.
"""

from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.user_errors import InputError


# Substrings in the names of weights that read the residual stream. The weights have the shape (output, d_model).
_NAMES_OF_READERS = (
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "fc1.weight",
    "shared",
    "embed_tokens",
    "lm_head.weight",
)
# Substrings in the names of weights and biases that write the residual stream. They have the shape (d_model, ...).
_NAMES_OF_WRITERS = ("out_proj", "fc2", "layer_norm")
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
    """Return the index that each of Marian's sinusoid channels has in this model, with shape `(d_model,)`.

    Marian's first half, the sines, has the even indices. Its second half, the cosines, has the odd indices. For
    example, the result for 6 channels is `[0, 2, 4, 1, 3, 5]`.
    """
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def permute_channels(state: StateDict, channels: torch.Tensor) -> StateDict:
    """Return the weights with reordered channels of the residual stream: channel `channels[i]` becomes channel i.

    The residual stream is the vectors of length d_model that each layer reads and adds its output to. Only the
    sinusoids depend on the order of their channels, so the model's output stays the same if they are permuted, too.

    Args:
        state: the weights, by name. They do not change. The names decide which axis of a weight has the channels.
        channels: the old index of each channel, in the new order, with shape `(d_model,)`.
    """
    permuted = {}
    for name, weight in state.items():
        reads_residual_stream = any(substring in name for substring in _NAMES_OF_READERS)
        writes_residual_stream = any(substring in name for substring in _NAMES_OF_WRITERS)
        if reads_residual_stream:
            permuted[name] = weight[:, channels]
        elif writes_residual_stream:
            permuted[name] = weight[channels]
        else:
            # No axis has these channels. A new weight with such an axis must be added to one of the two lists.
            permuted[name] = weight
    return permuted


def widen_feed_forward(state: StateDict, d_ff: int) -> StateDict:
    """Return the weights with all feed-forward networks padded with zeros, up to the inner width `d_ff`.

    No feed-forward network may be wider than `d_ff`. If the activation function maps 0 to 0, as ReLU and swish do, the
    added channels contribute nothing to the output.
    """
    return {name: _widen_weight(name, weight, d_ff) for name, weight in state.items()}


def _widen_weight(name: str, weight: torch.Tensor, d_ff: int) -> torch.Tensor:
    """Return a weight padded with zeros to the inner width `d_ff`, or unchanged if it has no inner width."""
    if "fc1.weight" in name:
        # (inner width, d_model): rows are added below. The first two numbers of `pad` are for the columns.
        missing_rows = d_ff - weight.shape[0]
        return pad(weight, (0, 0, 0, missing_rows))
    if "fc1.bias" in name:
        # (inner width,)
        missing_values = d_ff - weight.shape[0]
        return pad(weight, (0, missing_values))
    if "fc2.weight" in name:
        # (d_model, inner width): columns are added on the right.
        missing_columns = d_ff - weight.shape[1]
        return pad(weight, (0, missing_columns))
    return weight


def require(config: VanillaTransformerConfig, system: str, **fields: object) -> None:
    """Raise ValueError if a model cannot be exported to a system because of its configuration.

    Args:
        config: the configuration of the model that is exported.
        system: the name of the system, which the message states.
        **fields: the values that the fields of `config` must have. In addition, `key_dim` and `value_dim` must be
            `d_model / num_heads`, because the other systems do not support different head widths.
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
    """Build a model of this package with the weights and decoding settings of a transformers Marian or FSMT model.

    Args:
        source: the Marian or FSMT model, whose configuration and decoding settings are adopted. The new model uses the
            same settings object, which is changed.
        state: its weights under this model's names, still with all sine channels before all cosine channels.
        name: the name of the source, which is used in messages.
        **fields: configuration fields of the new model that do not follow from the source's configuration.

    Raises:
        ValueError: if a weight is NaN or infinite.
    """
    _check_finite(state, name)
    source_config = source.config
    # The encoder and the decoder have the same feed-forward width here, so the narrower one is padded below.
    d_ff = max(source_config.encoder_ffn_dim, source_config.decoder_ffn_dim)
    # The other fields have the same names in both configurations.
    same_fields = {field: getattr(source_config, field) for field in SAME_FIELDS}
    config = VanillaTransformerConfig(
        **same_fields,
        d_ff=d_ff,
        num_heads=source_config.encoder_attention_heads,
        **fields,  # type: ignore[arg-type]
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()

    widened_state = widen_feed_forward(state, d_ff)
    # `permute_channels` needs the inverse of `interleaved_channels`: for each channel of this model, its index in the
    # source. For 6 channels, it is [0, 3, 1, 4, 2, 5].
    old_index_of_new_channel = interleaved_channels(config.d_model).argsort()
    model.load_state_dict(permute_channels(widened_state, old_index_of_new_channel))
    model.tie_weights()
    # This also changes the decoding settings of `source`, because both models now have the same settings object.
    model.generation_config = _adopt_decoding_settings(source)
    return model


def _adopt_decoding_settings(source: PreTrainedModel) -> Any:
    """Adapt the decoding settings of a transformers model, so that this package's model decodes in the same way.

    The settings are changed in place, and returned.
    """
    settings: Any = source.generation_config
    # If the settings seemed to be derived from a model's configuration, generate() would replace them.
    settings._from_model_config = False
    # The model keeps transformers' length penalty and length limit instead of the paper's.
    settings.length_penalty_type = "hf"
    settings.max_length_offset = None
    return settings


def _check_finite(state: StateDict, source: str) -> None:
    """Raise ValueError if a weight is NaN or infinite. The message names the weight and the source."""
    for name, weight in state.items():
        if not weight.isfinite().all():
            raise InputError(f"{name} in {source} has values that are NaN or infinite; convert another checkpoint.")
