"""Between this model and transformers' `MarianMTModel`, which OPUS-MT models are.

Both add the same sinusoids, in another order of the d_model channels: here sines and cosines alternate (section 3.5),
in Marian all sines come first. A permutation of channels moves into the weights exactly: every weight that reads or
writes the residual stream is permuted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import MarianConfig, MarianMTModel

from ..hub.model_folder import TOKENIZER_FILES
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..support.safetensors_layout import read_json
from ..support.user_errors import InputError
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, write_converted
from .parity_certificate import SENTENCES
from .source_folder import check_config, hashes, license_of, load_source, source_folder, weight_files
from .weight_transforms import SAME_FIELDS, converted_model, interleaved_channels, permute_channels, require


# Tensors of Marian's that are not weights of this model: sinusoids, and an output bias that is zero.
_COMPUTED = ("embed_positions", "final_logits_bias")
# Values that the fields of a MarianConfig must have; those that its class lacks are read from config.json.
_NEEDED = {
    "model_type": "marian",
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
}
_POSITIONS: dict[str, Any] = {"hf": "sinusoidal", "marian": "sinusoidal_tensor2tensor"}
# Of LayerNorm: torch's default, and what Marian itself computes with (src/layers/generic.h).
_EPSILONS = {"hf": 1e-5, "marian": 1e-6}


def new_marian(config: VanillaTransformerConfig, attn_implementation: str | None = None) -> MarianMTModel:
    """A `MarianMTModel` of the same architecture, with new weights; raises ValueError if there is none."""
    require(
        config,
        "MarianMTModel",
        position_embedding_type="sinusoidal",
        position_offset=0,
        stack_layer_norm=False,
        lm_head_bias=False,
        source_vocab_size=None,
        tie_word_embeddings=True,
        attention_bias=True,
    )
    marian_config = MarianConfig(
        vocab_size=config.vocab_size,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        scale_embedding=True,
        init_std=config.d_model**-0.5,
        max_position_embeddings=config.max_position_embeddings,
        forced_eos_token_id=None,
        **{name: getattr(config, name) for name in SAME_FIELDS},
    )
    marian = MarianMTModel._from_config(marian_config, attn_implementation=attn_implementation)
    _set_epsilon(marian, config.layer_norm_eps)
    return marian


def copy_to_marian(model: VanillaTransformerForConditionalGeneration, marian: MarianMTModel) -> None:
    """Copy weights, with permuted channels, into a `MarianMTModel` of [`new_marian`]; ValueError for other names."""
    state = permute_channels(model.state_dict(), interleaved_channels(model.config.d_model))
    missing, unexpected = marian.load_state_dict(state, strict=False)
    missing = [name for name in missing if not any(part in name for part in _COMPUTED)]
    if missing or unexpected:
        raise InputError(
            f"MarianMTModel lacks the weights {unexpected} and has {missing} besides; make it with new_marian()."
        )


def from_hf_marian(
    input: str,
    output: str,
    *,
    positions: str = "hf",
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
    **hub: str | None,
) -> Path:
    """Convert a `MarianMTModel`, such as an OPUS-MT model, and prove that the result is equal.

    The tokenizer's files are copied: `AutoTokenizer` loads a `MarianTokenizer`, which needs sentencepiece. The decoding
    settings are those of the source. No code of the source is run; pickled weights are read with `weights_only=True`.

    Args:
        input (`str`): a folder, or a name on the Hub.
        output (`str`): folder to make.
        positions (`str`): `"hf"` keeps the sinusoids of transformers, so the result equals the source. `"marian"` takes
            those of Marian itself, tensor2tensor's, and its epsilon of LayerNorm: the model was trained with them.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        license (`str`, *optional*): licence of the weights, for the card.
        force (`bool`): write a model that is not equal to its source.
        **hub: `revision` and `token` of a repository on the Hub.

    Returns:
        `Path`: the folder, with `parity.json`.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if this model cannot hold the source, or the result is not equal.
    """
    if positions not in _POSITIONS:
        raise InputError(f'positions is "{positions}"; choose one of {", ".join(_POSITIONS)}.')
    target = check_output(output, input)
    folder = source_folder(input, **hub)
    check_config(MarianConfig, folder, _NEEDED)
    marian = load_source(MarianMTModel, folder, input)
    model = convert_marian(marian, positions, input)
    oracle = f"MarianMTModel of transformers {transformers.__version__}"
    if positions == "marian":
        restore_positions(marian)
        oracle += ", with the positions of tensor2tensor and epsilon 1e-6"
    files = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    settings = read_json(folder / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in files else {}
    # By default config.json decides on the class, which now has another model_type.
    settings["tokenizer_class"] = str(settings.get("tokenizer_class") or "MarianTokenizer")
    files[TOKENIZER_CONFIG] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    source = Source(
        input,
        "hf_marian",
        marian,
        oracle,
        hashes(weight_files(folder)),
        license or license_of(folder),
        in_float64=True,
        folder=folder,
    )
    return write_converted(model, source, files, target, sentences, force)


def convert_marian(
    marian: MarianMTModel, positions: str, name: str, **fields: Any
) -> VanillaTransformerForConditionalGeneration:
    """A model with the weights of a Marian model, its decoding settings, and more fields of the configuration."""
    is_joint, bias = marian.config.share_encoder_decoder_embeddings, marian.final_logits_bias[0]
    state = {key: weight for key, weight in marian.state_dict().items() if not any(part in key for part in _COMPUTED)}
    if bias.any():
        state["lm_head.bias"] = bias.clone()
    return converted_model(
        marian,
        state,
        name,
        vocab_size=len(bias),
        source_vocab_size=None if is_joint else marian.config.vocab_size,
        position_embedding_type=_POSITIONS[positions],
        lm_head_bias="lm_head.bias" in state,
        layer_norm_eps=_EPSILONS[positions],
        **fields,
    )


@torch.no_grad()
def restore_positions(marian: MarianMTModel) -> None:
    """Give a Marian model what Marian in C++ computes with: other sinusoids, and another epsilon."""
    for stack in (marian.model.encoder, marian.model.decoder):
        count, d_model = stack.embed_positions.weight.shape
        rates = np.exp(-np.log(10000.0) / (d_model // 2 - 1) * np.arange(d_model // 2))
        angles = np.arange(count)[:, None] * rates
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        stack.embed_positions.weight.copy_(torch.from_numpy(table))
    _set_epsilon(marian, _EPSILONS["marian"])


def _set_epsilon(marian: MarianMTModel, epsilon: float) -> None:
    """Set the epsilon of all LayerNorms, for which MarianConfig has no field."""
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon
