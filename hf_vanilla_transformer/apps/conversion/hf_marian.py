"""Convert between this package's model and `MarianMTModel`, the transformers class of OPUS-MT models.

Both models add the same sinusoids to the embeddings, but they order the d_model channels differently: in this model
sines and cosines alternate (section 3.5), and in MarianMTModel all sines come first. The conversion compensates for
this difference exactly, by permuting the channels of every weight that reads or writes the residual stream.

MarianMTModel itself differs in two ways from Marian, the C++ program that trained these models:

- Marian's sinusoids are the same as tensor2tensor's, whose frequencies are slightly different.
- Marian's LayerNorms have an epsilon of 1e-6 (src/layers/generic.h), and MarianMTModel's have PyTorch's default, 1e-5.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

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
from .parity_certificate import SENTENCES, Certificate, check_equal, compare
from .source_folder import check_config, load_source, load_tokenizer, load_trained, read_license, weight_files
from .weight_transforms import SAME_FIELDS, converted_model, interleaved_channels, permute_channels, require


# MarianMTModel's tensors that are not weights of this model: the sinusoids, and an output bias that is often zero.
_COMPUTED_TENSORS = ("embed_positions", "final_logits_bias")
# Values that a MarianConfig must have. Fields that the class lacks are read from config.json.
_REQUIRED_FIELDS: dict[str, object] = {
    "model_type": "marian",
    "scale_embedding": True,
    "tie_word_embeddings": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
}
# The sinusoids and the epsilon that the argument `positions` selects: transformers' own, or Marian's.
_POSITION_TYPES = {"hf": "sinusoidal", "marian": "sinusoidal_tensor2tensor"}
_EPSILONS = {"hf": 1e-5, "marian": 1e-6}
# Largest accepted difference between log-probabilities, in nats, if the source's LayerNorms have a different epsilon.
_TOLERANCE_WITH_EPSILON = 1e-3
# Settings of this package's tokenizers that transformers' classes do not have.
_OWN_TOKENIZER_SETTINGS = (
    "auto_map",
    "backend",
    "is_local",
    "local_files_only",
    "longest_training_source",
    "tokenizer_class",
    LETTERLESS_SHARE_FIELD,
)


def new_marian(config: VanillaTransformerConfig, attn_implementation: str | None = None) -> MarianMTModel:
    """Build a randomly initialized `MarianMTModel` with the architecture that `config` describes.

    Its LayerNorms have the epsilon of `config`. MarianConfig has no field for the epsilon, so a model that is saved and
    loaded again has PyTorch's default, 1e-5.

    Raises:
        ValueError: if MarianMTModel cannot represent the architecture.
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
    # `source_vocab_size` is None if source and target have one vocabulary, of size `vocab_size`.
    has_joint_vocabulary = config.source_vocab_size is None
    source_size = config.source_vocab_size
    if source_size is None:
        source_size = config.vocab_size
    # These fields have the same names in both configurations.
    same_fields = {name: getattr(config, name) for name in SAME_FIELDS}
    marian_config = MarianConfig(
        vocab_size=source_size,
        decoder_vocab_size=config.vocab_size,
        share_encoder_decoder_embeddings=has_joint_vocabulary,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        scale_embedding=True,
        # Embeddings are initialized with the same standard deviation as in this package.
        init_std=config.d_model**-0.5,
        # By default, a MarianConfig forces token 0 at the length limit.
        forced_eos_token_id=None,
        **same_fields,
    )
    marian = MarianMTModel._from_config(marian_config, attn_implementation=attn_implementation)
    _set_epsilon(marian, config.layer_norm_eps)
    return marian


def copy_to_marian(model: VanillaTransformerForConditionalGeneration, marian: MarianMTModel) -> None:
    """Copy a model's weights, with permuted channels, to a `MarianMTModel` that `new_marian` built.

    Raises ValueError if the two models do not have the same weights.
    """
    # In this model, sine and cosine channels alternate. In a MarianMTModel, all sine channels come first.
    state = permute_channels(model.state_dict(), interleaved_channels(model.config.d_model))
    if "lm_head.bias" in state:
        state["final_logits_bias"] = state.pop("lm_head.bias")[None]  # (1, vocabulary)
    # "Missing" names are in `marian` only, and "unexpected" names are in `state` only.
    missing_names, unexpected_names = marian.load_state_dict(state, strict=False)
    # MarianMTModel computes some tensors, such as its position tables, so they may be missing.
    missing_weights = [name for name in missing_names if not _is_computed(name)]
    if missing_weights or unexpected_names:
        raise InputError(
            f"MarianMTModel lacks the weights {unexpected_names} and has {missing_weights}; make it with new_marian()."
        )


def to_hf_marian(folder: str, output: str, *, sentences: Sequence[str] = SENTENCES, force: bool = False) -> Path:
    """Export a trained model as a `MarianMTModel`, which transformers loads without this package's code.

    A transformers tokenizer, as in OPUS-MT models, is copied. This package's own tokenizer is saved as
    `tokenizer.json`, which `AutoTokenizer` can load, but `MarianTokenizer` cannot. transformers' beam search has
    neither the paper's length penalty nor its length limit, so `parity.json` lists the settings that are lost.

    Args:
        folder (`str`): the folder of a trained model, or its name on the Hub.
        output (`str`): the folder to create.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        force (`bool`): write the model even if it is not equal to its source.

    Returns:
        `Path`: the folder. Its `parity.json` contains two comparisons with the source. In the first, log-probabilities
            may differ by up to 1e-3 nats, because MarianMTModel's LayerNorms have an epsilon of 1e-5. The second gives
            MarianMTModel the epsilon of the source, and has the same tolerances as [`from_hf_marian`]. Both comparisons
            count equal translations.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if MarianMTModel cannot represent the model, or the result is not equal to it.
    """
    output_folder = check_output(output, folder)
    # `folder` may be a name on the Hub.
    local_folder = source_folder(folder)
    tokenizer, model = load_trained(local_folder, folder)
    marian, lost_settings = _make_marian(model)
    with locked(output_folder):
        # A different process may have written a model before this one got the lock.
        check_holds_no_model(output_folder, "the converted model")
        # If the block fails, `staged` deletes the temporary folder. Otherwise, its files get to `output_folder`.
        with staged(output_folder) as temporary_folder:
            marian.save_pretrained(temporary_folder)
            _save_tokenizer(
                tokenizer,
                positions=model.config.max_position_embeddings,
                source=local_folder,
                output=temporary_folder,
                name=folder,
            )
            parity = _compare_stock(temporary_folder, model, tokenizer, list(sentences), folder)
            certificate = _make_certificate(parity, model, folder, local_folder, lost_settings)
            check_equal(certificate, folder, force)
            (temporary_folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
    return output_folder


def _make_marian(model: VanillaTransformerForConditionalGeneration) -> tuple[MarianMTModel, dict[str, object]]:
    """Convert a model to a `MarianMTModel`, and return it with the decoding settings that are lost."""
    marian = new_marian(model.config)
    copy_to_marian(model, marian)
    marian.generation_config, lost_settings = _split_decoding_settings(model.generation_config)
    # Without a limit in these settings, transformers would end translations after 20 tokens.
    _set_default_length_limit(marian.generation_config, model.config)
    return marian, lost_settings


def _make_certificate(
    parity: Certificate,
    model: VanillaTransformerForConditionalGeneration,
    name: str,
    local_folder: Path,
    lost_settings: Mapping[str, object],
) -> Certificate:
    """Return the certificate of an export, which states where the model comes from, and the results of the comparison.

    Args:
        parity: the results of the comparison, as [`_compare_stock`] returns them.
        model: the exported model, in this package's class.
        name, local_folder: the name of the model, and its folder on this machine.
        lost_settings: the names and values of the decoding settings that transformers does not support.
    """
    return {
        "source": name,
        "system": "hf_marian",
        "sha256": hashes(weight_files(local_folder)),
        "oracle": f"the model of {name} in this package",
        **parity,
        "not_carried": lost_settings,
        "ctranslate2": _way_to_ctranslate2(model),
        "versions": {"hf_vanilla_transformer": __version__, "transformers": transformers.__version__},
        "command": command(),
    }


def _split_decoding_settings(settings: GenerationConfig) -> tuple[GenerationConfig, dict[str, object]]:
    """Separate the decoding settings that transformers supports from the settings that are lost in an export.

    Returns a copy of `settings` without the lost settings, and a dict with the names and values of the lost settings.
    """
    stock_settings = copy.deepcopy(settings)
    lost_settings: dict[str, object] = {}
    # Only this package has these settings, which are attributes of the object.
    for name in OWN_SETTINGS:
        value = vars(stock_settings).pop(name, None)
        if value is not None:
            lost_settings[name] = value
    if lost_settings.get("length_penalty_type") == "gnmt":
        # "gnmt" is the paper's length penalty. Its exponent has a different meaning in transformers' formula, so it is
        # replaced by transformers' default, 1.0.
        lost_settings["length_penalty"] = stock_settings.length_penalty
        stock_settings.length_penalty = 1.0
    else:
        # "hf" is transformers' own length penalty, so nothing is lost.
        lost_settings.pop("length_penalty_type", None)
    return stock_settings, lost_settings


def _set_default_length_limit(settings: GenerationConfig, config: VanillaTransformerConfig) -> None:
    """Set `max_length` in `settings` if they have no length limit. transformers' default would be only 20 tokens."""
    if settings.max_length is None and settings.max_new_tokens is None:
        settings.max_length = config.max_position_embeddings


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, positions: int, source: Path, output: Path, name: str) -> None:
    """Write a tokenizer in a form that transformers loads without this package's code.

    The files of a transformers tokenizer are copied from the folder `source`. This package's own tokenizer is saved as
    a fast transformers tokenizer.

    Args:
        tokenizer: the tokenizer.
        positions: the longest sequence that the model was made for, in tokens. It becomes `model_max_length`.
        source, output: the folder of the model, and the folder to write.
        name: the name of the model, which is used in messages.

    Raises:
        ValueError: if the tokenizer's class belongs to this package and has no equivalent in transformers.
    """
    if isinstance(tokenizer, VanillaTransformerTokenizer):
        _save_as_fast_tokenizer(tokenizer, positions, output)
    elif type(tokenizer).__module__.startswith("transformers."):
        for file_name in TOKENIZER_FILES:
            if (source / file_name).is_file():
                shutil.copy(source / file_name, output)
    else:
        raise InputError(
            f"the tokenizer of {name} is a {type(tokenizer).__name__}, which needs code that transformers lacks; "
            "train a model with a joint vocabulary."
        )


def _save_as_fast_tokenizer(tokenizer: VanillaTransformerTokenizer, positions: int, output: Path) -> None:
    """Write this package's tokenizer to the folder `output` as a fast transformers tokenizer.

    `positions` becomes its `model_max_length`.
    """
    settings = dict(tokenizer.init_kwargs)
    for setting in _OWN_TOKENIZER_SETTINGS:
        settings.pop(setting, None)
    settings["model_max_length"] = positions
    settings["model_input_names"] = tokenizer.model_input_names
    fast_tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **settings)
    fast_tokenizer.save_pretrained(output)
    _set_fast_class(output / TOKENIZER_CONFIG)


def _set_fast_class(config_path: Path) -> None:
    """Set the class in tokenizer_config.json. transformers 5 writes a class that earlier releases do not have."""
    tokenizer_config = read_json(config_path)
    tokenizer_config["tokenizer_class"] = "PreTrainedTokenizerFast"
    text = json.dumps(tokenizer_config, indent=2, ensure_ascii=False)
    config_path.write_text(text + "\n", encoding="utf-8")


def _compare_stock(
    folder: Path,
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    name: str,
) -> Certificate:
    """Compare a written `MarianMTModel` with its source, and return the results for the certificate.

    The first comparison uses the model as transformers loads it. The second gives it the source's LayerNorm epsilon.

    Raises ValueError if the written tokenizer and `tokenizer` produce different tokens.
    """
    marian = load_source(MarianMTModel, folder, name)
    # The rows are token ids, one list for each sentence.
    rows = tokenizer(sentences).input_ids
    written_tokenizer = load_tokenizer(folder, name)
    if written_tokenizer(sentences).input_ids != rows:
        raise InputError(f"the tokenizer of {name} gives other tokens as a stock one, so it cannot be converted.")
    as_loaded = compare(marian, model, rows, tolerance=_TOLERANCE_WITH_EPSILON)
    # This changes `marian` in place, so it must come after the first comparison.
    _set_epsilon(marian, model.config.layer_norm_eps)
    with_epsilon = compare(marian, model, rows, in_float64=True)

    certificate = dict(as_loaded)
    certificate["with_epsilon_of_the_source"] = with_epsilon
    certificate["equal"] = as_loaded["equal"] and with_epsilon["equal"]
    return certificate


def _way_to_ctranslate2(model: VanillaTransformerForConditionalGeneration) -> str:
    """Describe how the written model can be converted to CTranslate2. The certificate contains this description.

    CTranslate2's own loader for Marian models removes `<pad>` from the vocabulary, and always starts decoding from a
    zero vector (ctranslate2/converters/transformers.py: MarianMTLoader). It therefore needs a model in which `<pad>` is
    both the last token and the start token, and has an embedding of zeros.
    """
    pad_id = model.config.pad_token_id
    is_last_token = pad_id == model.config.vocab_size - 1
    is_start_token = pad_id == model.config.decoder_start_token_id
    # The embedding matrix is tied to the output projection, whose rows are therefore the embeddings.
    embedding = model.get_output_embeddings().weight[pad_id]
    is_zero = not embedding.any()
    if is_last_token and is_start_token and is_zero:
        return "by its own loader of Marian models, or convert --to ctranslate2"
    return "convert --to ctranslate2"


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
    """Convert a `MarianMTModel`, such as an OPUS-MT model, and check that the result produces the same outputs.

    The tokenizer files are copied, and `AutoTokenizer` loads them as a `MarianTokenizer`, which needs sentencepiece.
    The decoding settings are taken from the source. No code in the source is run, and pickled weights are read with
    `weights_only=True`.

    Args:
        input (`str`): the folder of a `MarianMTModel`, or its name on the Hub.
        output (`str`): the folder to create.
        positions (`str`): `"hf"` keeps the sinusoids of transformers, so that the result equals the source. `"marian"`
            restores the sinusoids and the LayerNorm epsilon with which Marian trained the model.
        sentences (`list` of `str`): source sentences for the comparison on real input.
        license (`str`, *optional*): the license of the weights, which the model card states. By default, it is read
            from the source's model card.
        force (`bool`): write the model even if it is not equal to its source.
        **hub: `revision` and `token` for a repository on the Hub.

    Returns:
        `Path`: the folder, which includes the certificate `parity.json`.

    Raises:
        OSError: if the source cannot be read, or the folder already holds a model.
        ValueError: if this model cannot represent the source, or the result is not equal to it.
    """
    if positions not in _POSITION_TYPES:
        raise InputError(f'positions is "{positions}"; choose one of {", ".join(_POSITION_TYPES)}.')
    output_folder = check_output(output, input)
    folder = source_folder(input, **hub)
    check_config(MarianConfig, folder, _REQUIRED_FIELDS)
    marian = load_source(MarianMTModel, folder, input)
    model = convert_marian(marian, positions, input)
    if positions == "marian":
        # From here on, `marian` is only compared with `model`, which has these positions, too. This change does not
        # affect `model`, because `convert_marian` leaves out the position tables.
        restore_positions(marian)
    source = Source(
        name=input,
        system="hf_marian",
        reference=marian,
        reference_description=_describe_reference(positions),
        sha256=hashes(weight_files(folder)),
        license=license or read_license(folder),
        in_float64=True,
        tokenizer_folder=folder,
    )
    return write_converted(model, source, _read_tokenizer_files(folder), output_folder, sentences, force)


def _describe_reference(positions: str) -> str:
    """Return the certificate's description of the model that the converted model is compared with."""
    description = f"MarianMTModel of transformers {transformers.__version__}"
    if positions == "marian":
        return f"{description}, with the positions of tensor2tensor and epsilon 1e-6"
    return description


def _read_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Read the tokenizer files in a folder, and return their contents by file name, with the tokenizer's class added.

    The class is added to the returned settings only. The files in the folder do not change.
    """
    files = {}
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            files[name] = path.read_bytes()
    settings: dict[str, object] = {}
    if TOKENIZER_CONFIG in files:
        settings = read_json(folder / TOKENIZER_CONFIG)
    # Without this setting, transformers chooses the class by the model_type in config.json, which a conversion changes.
    settings["tokenizer_class"] = str(settings.get("tokenizer_class") or "MarianTokenizer")
    files[TOKENIZER_CONFIG] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return files


def convert_marian(
    marian: MarianMTModel, positions: str, name: str, **fields: Any
) -> VanillaTransformerForConditionalGeneration:
    """Build a model of this package with the weights and decoding settings of a `MarianMTModel`.

    Args:
        marian: the source.
        positions: `"hf"` or `"marian"`, as in [`from_hf_marian`].
        name: the name of the source, which is used in messages.
        **fields: additional configuration fields of the new model, such as `alignment_heads`.
    """
    state = {key: weight for key, weight in marian.state_dict().items() if not _is_computed(key)}
    bias = marian.final_logits_bias[0]  # (target vocabulary,)
    # The output bias of most OPUS-MT models is zero. Our model then has no output bias.
    has_bias = bool(bias.any())
    if has_bias:
        state["lm_head.bias"] = bias.clone()
    # None means that source and target have one vocabulary.
    source_vocab_size = None
    if not marian.config.share_encoder_decoder_embeddings:
        source_vocab_size = marian.config.vocab_size
    return converted_model(
        marian,
        state,
        name,
        vocab_size=len(bias),
        source_vocab_size=source_vocab_size,
        position_embedding_type=_POSITION_TYPES[positions],
        lm_head_bias=has_bias,
        layer_norm_eps=_EPSILONS[positions],
        **fields,
    )


def _is_computed(name: str) -> bool:
    """Return True if a MarianMTModel tensor is a position table or the output bias, according to its name.

    The position tables are computed, and the output bias is converted separately.
    """
    return any(part in name for part in _COMPUTED_TENSORS)


@torch.no_grad()
def restore_positions(marian: MarianMTModel) -> None:
    """Change a `MarianMTModel` in place, so that it has the sinusoids and the LayerNorm epsilon of Marian itself."""
    for stack in (marian.model.encoder, marian.model.decoder):
        table = stack.embed_positions.weight  # (positions, d_model)
        num_positions, d_model = table.shape
        sinusoids = _compute_marian_sinusoids(num_positions, d_model)
        table.copy_(torch.from_numpy(sinusoids))
    _set_epsilon(marian, _EPSILONS["marian"])


def _compute_marian_sinusoids(num_positions: int, d_model: int) -> np.ndarray:
    """Compute the positions with which Marian trains its models, an array of shape `(num_positions, d_model)`.

    As in tensor2tensor, the rates fall geometrically from 1 to exactly 1/10,000. In the paper, the last rate is
    slightly larger. In each row, all sines come before all cosines.
    """
    num_rates = d_model // 2
    rates = np.exp(-np.log(10000.0) / (num_rates - 1) * np.arange(num_rates))
    # (num_positions, 1) * (num_rates,) -> (num_positions, num_rates)
    angles = np.arange(num_positions)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _set_epsilon(marian: MarianMTModel, epsilon: float) -> None:
    """Set the epsilon of all LayerNorms in place, because MarianConfig has no field for the epsilon."""
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = epsilon
