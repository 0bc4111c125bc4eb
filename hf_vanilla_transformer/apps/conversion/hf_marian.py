"""Between this model and transformers' `MarianMTModel`, which OPUS-MT models are.

Both add the same sinusoids, in another order of the d_model channels: here sines and cosines alternate (section 3.5),
in Marian all sines come first. A permutation of channels moves into the weights exactly: every weight that reads or
writes the residual stream is permuted.
"""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from ...data.tokenizer import VanillaTransformerTokenizer
from ...hub.model_folder import CERTIFICATE, TOKENIZER_FILES, check_holds_no_model, staged
from ...hub.native_folder import source_folder
from ...hub.user_cache import hashes
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.generation_vanilla_transformer import OWN_SETTINGS
from ...model.input_checks import LETTERLESS_SHARE_FIELD
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.atomic_files import locked
from ...support.safetensors_layout import read_json
from ...support.user_errors import InputError
from ...support.version import __version__
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, command, write_converted
from .parity_certificate import SENTENCES, check_equal, compare
from .source_folder import (
    check_config,
    license_of,
    load_source,
    load_tokenizer,
    load_trained,
    weight_files,
)
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
# Largest difference of log-probabilities, in nats, from a model that was trained with another epsilon.
_TOLERANCE_WITH_EPSILON = 1e-3
# Settings of this package's tokenizers that another class does not know.
_OF_OUR_TOKENIZER = (
    "auto_map",
    "backend",
    "is_local",
    "local_files_only",
    "longest_training_source",
    "tokenizer_class",
    LETTERLESS_SHARE_FIELD,
)


def new_marian(config: VanillaTransformerConfig, attn_implementation: str | None = None) -> MarianMTModel:
    """A `MarianMTModel` of the same architecture, with new weights; raises ValueError if there is none.

    Its LayerNorms have the epsilon of `config`; one that is loaded from a folder has torch's, 1e-5.
    """
    require(
        config,
        "MarianMTModel",
        position_embedding_type="sinusoidal",
        position_offset=0,
        stack_layer_norm=False,
        tie_word_embeddings=True,
        attention_bias=True,
    )
    source_size = config.source_vocab_size
    marian_config = MarianConfig(
        vocab_size=config.vocab_size if source_size is None else source_size,
        decoder_vocab_size=config.vocab_size,
        share_encoder_decoder_embeddings=source_size is None,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        scale_embedding=True,
        init_std=config.d_model**-0.5,
        forced_eos_token_id=None,
        **{name: getattr(config, name) for name in SAME_FIELDS},
    )
    marian = MarianMTModel._from_config(marian_config, attn_implementation=attn_implementation)
    _set_epsilon(marian, config.layer_norm_eps)
    return marian


def copy_to_marian(model: VanillaTransformerForConditionalGeneration, marian: MarianMTModel) -> None:
    """Copy weights, with permuted channels, into a `MarianMTModel` of [`new_marian`]; ValueError for other names."""
    state = permute_channels(model.state_dict(), interleaved_channels(model.config.d_model))
    if "lm_head.bias" in state:
        state["final_logits_bias"] = state.pop("lm_head.bias")[None]
    missing, unexpected = marian.load_state_dict(state, strict=False)
    missing = [name for name in missing if not any(part in name for part in _COMPUTED)]
    if missing or unexpected:
        raise InputError(f"MarianMTModel lacks the weights {unexpected} and has {missing}; make it with new_marian().")


def to_hf_marian(folder: str, output: str, *, sentences: Sequence[str] = SENTENCES, force: bool = False) -> Path:
    """Write a trained folder as a `MarianMTModel`, which transformers loads without this package and its code.

    A tokenizer of transformers, such as that of an OPUS-MT model, is copied. This package's goes out as
    `tokenizer.json` for `AutoTokenizer`, not for `MarianTokenizer`. transformers' search has neither the paper's length
    penalty nor its length limit: `parity.json` names the settings that are not carried.

    Args:
        folder (`str`): a trained folder, or a name on the Hub.
        output (`str`): folder to make.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        force (`bool`): write a model that is not equal to its source.

    Returns:
        `Path`: the folder, with `parity.json`: differences of log-probabilities, in nats, at most 1e-3 because
            MarianMTModel's LayerNorms have an epsilon of 1e-5; without that share as for [`from_hf_marian`]; and how
            many translations are equal, each by its own search.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if MarianMTModel cannot hold the model, or the result is not equal.
    """
    target, local = check_output(output, folder), source_folder(folder)
    tokenizer, model = load_trained(local, folder)
    marian = new_marian(model.config)
    copy_to_marian(model, marian)
    marian.generation_config, not_carried = _carried(model)
    with locked(target):
        check_holds_no_model(target, "the converted model")
        with staged(target) as temporary:
            marian.save_pretrained(temporary)
            _save_tokenizer(tokenizer, model.config.max_position_embeddings, local, temporary, folder)
            certificate = {
                "source": folder,
                "system": "hf_marian",
                "sha256": hashes(weight_files(local)),
                "oracle": f"the model of {folder} in this package",
                **_compare_stock(temporary, model, tokenizer, list(sentences), folder),
                "not_carried": not_carried,
                "ctranslate2": _way_to_ctranslate2(model),
                "versions": {"hf_vanilla_transformer": __version__, "transformers": transformers.__version__},
                "command": command(),
            }
            check_equal(certificate, folder, force)
            (temporary / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
    return target


def _carried(model: VanillaTransformerForConditionalGeneration) -> tuple[GenerationConfig, dict[str, Any]]:
    """The settings of the search that transformers' own has, and the others."""
    settings: Any = copy.deepcopy(model.generation_config)
    not_carried = {name: vars(settings).pop(name, None) for name in OWN_SETTINGS}
    if not_carried["length_penalty_type"] == "gnmt":
        not_carried["length_penalty"], settings.length_penalty = settings.length_penalty, 1.0
    else:
        del not_carried["length_penalty_type"]
    if settings.max_length is None and settings.max_new_tokens is None:
        settings.max_length = model.config.max_position_embeddings
    return settings, {name: value for name, value in not_carried.items() if value is not None}


def _save_tokenizer(tokenizer: Any, positions: int, local: Path, folder: Path, name: str) -> None:
    """Write a tokenizer for transformers alone: a stock one as it came, this package's as a fast one without code."""
    if isinstance(tokenizer, VanillaTransformerTokenizer):
        settings = {name: value for name, value in tokenizer.init_kwargs.items() if name not in _OF_OUR_TOKENIZER}
        settings |= {"model_max_length": positions, "model_input_names": tokenizer.model_input_names}
        PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **settings).save_pretrained(folder)
        config = read_json(folder / TOKENIZER_CONFIG)
        # Releases before 5 have no other name for it.
        text = json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2, ensure_ascii=False)
        (folder / TOKENIZER_CONFIG).write_text(text + "\n", encoding="utf-8")
    elif type(tokenizer).__module__.startswith("transformers."):
        for each in TOKENIZER_FILES:
            if (local / each).is_file():
                shutil.copy(local / each, folder)
    else:
        raise InputError(
            f"the tokenizer of {name} is a {type(tokenizer).__name__}, which needs code that transformers lacks; "
            "train a model with a joint vocabulary."
        )


def _compare_stock(folder: Path, model: Any, tokenizer: Any, sentences: list[str], name: str) -> dict[str, Any]:
    """The certificate's figures: of the folder as transformers loads it, and with the source's epsilon."""
    stock, rows = load_source(MarianMTModel, folder, name), tokenizer(sentences).input_ids
    if load_tokenizer(folder, name)(sentences).input_ids != rows:
        raise InputError(f"the tokenizer of {name} gives other tokens as a stock one, so it cannot be converted.")
    parity = compare(stock, model, rows, tolerance=_TOLERANCE_WITH_EPSILON)
    _set_epsilon(stock, model.config.layer_norm_eps)
    same = compare(stock, model, rows, in_float64=True)
    return {**parity, "with_epsilon_of_the_source": same, "equal": parity["equal"] and same["equal"]}


def _way_to_ctranslate2(model: Any) -> str:
    """Its own loader of Marian models begins with a zero vector, and takes the last token for `<pad>`."""
    config, target = model.config, model.get_output_embeddings().weight
    start = config.decoder_start_token_id
    suits = start == config.pad_token_id == config.vocab_size - 1 and not target[start].any()
    return "by its own loader of Marian models, or convert --to ctranslate2" if suits else "convert --to ctranslate2"


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
