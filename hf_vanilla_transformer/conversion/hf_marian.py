"""Between this model and transformers' `MarianMTModel`, which OPUS-MT models are.

Both add the same sinusoids, in another order of the d_model channels: here sines and cosines alternate (section 3.5),
in Marian all sines come first. A permutation of channels moves into the weights exactly: every weight that reads or
writes the residual stream is permuted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoTokenizer, MarianConfig, MarianMTModel

from ..hub.model_folder import TOKENIZER_FILES
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .config_requirements import check_config, require
from .converted_folder import check_output, write_converted
from .parity_certificate import SENTENCES, compare
from .source_folder import hashes, license_of, load_source, source_folder, weight_files
from .weight_transforms import check_finite, interleaved_channels, permute_channels, widen_feed_forward


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
    """A `MarianMTModel` of the same architecture, with new weights.

    Args:
        config (`VanillaTransformerConfig`): with tied embeddings and sinusoids.
        attn_implementation (`str`, *optional*): for example `"sdpa"`.

    Raises:
        ValueError: if Marian cannot hold such a model.
    """
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
    token_ids = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    marian_config = MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        activation_function=config.activation_function,
        scale_embedding=True,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        init_std=config.d_model**-0.5,
        max_position_embeddings=config.max_position_embeddings,
        forced_eos_token_id=None,
        **{name: getattr(config, name) for name in token_ids},
    )
    marian = MarianMTModel._from_config(marian_config, attn_implementation=attn_implementation)
    # MarianConfig has no field for it.
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return marian


def copy_to_marian(model: VanillaTransformerForConditionalGeneration, marian: MarianMTModel) -> None:
    """Copy the weights of a model into a `MarianMTModel` of the same architecture, with the channels permuted.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the source.
        marian (`MarianMTModel`): from [`new_marian`].

    Raises:
        ValueError: if the names of the weights differ.
    """
    state = permute_channels(model.state_dict(), interleaved_channels(model.config.d_model))
    missing, unexpected = marian.load_state_dict(state, strict=False)
    missing = [name for name in missing if not any(part in name for part in _COMPUTED)]
    if missing or unexpected:
        raise ValueError(
            f"MarianMTModel lacks the weights {unexpected} and has {missing} besides; make it with new_marian()."
        )


def from_hf_marian(
    input: str,
    output: str,
    *,
    positions: str = "hf",
    sentences: Sequence[str] = SENTENCES,
    revision: str | None = None,
    token: str | None = None,
    license: str | None = None,
    force: bool = False,
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
        revision, token (`str`, *optional*): of the repository on the Hub.
        license (`str`, *optional*): licence of the weights, for the card.
        force (`bool`): write a model that is not equal to its source.

    Returns:
        `Path`: the folder, with `parity.json`.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if this model cannot hold the source, or the result is not equal.
    """
    if positions not in _POSITIONS:
        raise ValueError(f'positions is "{positions}"; choose one of {", ".join(_POSITIONS)}.')
    target = check_output(output, input)
    folder = source_folder(input, revision, token)
    check_config(MarianConfig, folder, _NEEDED)
    marian = load_source(MarianMTModel, folder, input)
    model = convert_marian(marian, positions, input)
    oracle = f"MarianMTModel of transformers {transformers.__version__}"
    if positions == "marian":
        restore_positions(marian)
        oracle += ", with the positions of tensor2tensor and epsilon 1e-6"
    real, oracle = _real_rows(folder, sentences, oracle)
    return write_converted(
        model,
        target,
        source=input,
        system="hf_marian",
        oracle=oracle,
        parity=compare(model, marian, real, in_float64=True),
        files=[folder / name for name in TOKENIZER_FILES if (folder / name).is_file()],
        sha256=hashes(weight_files(folder)),
        license=license or license_of(folder),
        force=force,
    )


def convert_marian(marian: MarianMTModel, positions: str, name: str) -> VanillaTransformerForConditionalGeneration:
    """A model with the weights of a Marian model, and its decoding settings."""
    source, is_joint = marian.config, marian.config.share_encoder_decoder_embeddings
    bias = marian.final_logits_bias[0]
    d_ff = max(source.encoder_ffn_dim, source.decoder_ffn_dim)
    config = VanillaTransformerConfig(
        vocab_size=len(bias),
        source_vocab_size=None if is_joint else source.vocab_size,
        encoder_layers=source.encoder_layers,
        decoder_layers=source.decoder_layers,
        d_model=source.d_model,
        d_ff=d_ff,
        num_heads=source.encoder_attention_heads,
        dropout=source.dropout,
        attention_dropout=source.attention_dropout,
        activation_dropout=source.activation_dropout,
        activation_function=source.activation_function,
        position_embedding_type=_POSITIONS[positions],
        lm_head_bias=bool(bias.any()),
        layer_norm_eps=_EPSILONS[positions],
        pad_token_id=source.pad_token_id,
        bos_token_id=source.bos_token_id,
        eos_token_id=source.eos_token_id,
        decoder_start_token_id=source.decoder_start_token_id,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    state = {key: weight for key, weight in marian.state_dict().items() if not any(part in key for part in _COMPUTED)}
    check_finite({**state, "final_logits_bias": bias}, name)
    state = permute_channels(widen_feed_forward(state, d_ff), interleaved_channels(source.d_model).argsort())
    if config.lm_head_bias:
        state["lm_head.bias"] = bias.clone()
    model.load_state_dict(state)
    model.tie_weights()
    settings: Any = marian.generation_config
    # The settings of the source, which the mixin would replace if they seemed to come from a configuration.
    settings._from_model_config = False
    settings.length_penalty_type, settings.max_length_offset = "hf", None
    model.generation_config = settings
    return model


@torch.no_grad()
def restore_positions(marian: MarianMTModel) -> None:
    """Give a Marian model what Marian in C++ computes with: other sinusoids, and another epsilon."""
    for stack in (marian.model.encoder, marian.model.decoder):
        count, d_model = stack.embed_positions.weight.shape
        rates = np.exp(-np.log(10000.0) / (d_model // 2 - 1) * np.arange(d_model // 2))
        angles = np.arange(count)[:, None] * rates
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        stack.embed_positions.weight.copy_(torch.from_numpy(table))
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = _EPSILONS["marian"]


def _real_rows(folder: Path, sentences: Sequence[str], oracle: str) -> tuple[Any, str]:
    """Token ids of sentences, and the oracle in words; no ids if the tokenizer's library is not installed."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return tokenizer(list(sentences)).input_ids, oracle
    except Exception:  # Tokenizers raise many kinds for files or libraries that are missing.
        return None, f"{oracle}, on random tokens only, because its tokenizer could not be loaded"
