"""Convert models that were trained with Marian (marian-nmt), a C++ program for machine translation.

The source is a folder with weights (`.npz`) and SentencePiece vocabularies (`.spm`). The weights are first loaded into
transformers' `MarianMTModel`, with Marian's positions, and the converted model is compared with this MarianMTModel. If
pymarian, Marian's Python package, is installed, the converted model also scores n-best lists that Marian generates.
"""

import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from transformers import MarianConfig, MarianMTModel

from ...hub.user_cache import hashes
from ...support.language_codes import language_of
from ...support.user_errors import InputError, needing
from .converted_folder import TOKENIZER_CONFIG, Source, check_output, write_converted
from .hf_marian import convert_marian, restore_positions
from .parity_certificate import LONGEST_OF_MARIAN, SENTENCES, ScoredHypothesis
from .source_folder import UnfitField, check_archive, check_fits, find_unfit, read_license, unfit_error
from .weight_transforms import StateDict


# Values that the settings in special:model.yml must have. A missing setting counts as having its required value.
_REQUIRED_SETTINGS: dict[str, object] = {
    "type": "transformer",
    "right-left": False,
    "word-penalty": 0,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-attention-mask": "default",
    "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0,
    "transformer-train-position-embeddings": False,
    "transformer-disable-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-no-bias": False,
    "transformer-no-affine": False,
    "transformer-tied-layers": [],
    "tied-embeddings-src": False,
    "output-omit-bias": False,
    "lemma-dim-emb": 0,
    "ulr": False,
}
_ACTIVATIONS = ("relu", "swish")

# The names of a layer's modules in transformers, each with Marian's names for the module's weight and bias.
_FEED_FORWARD_WEIGHTS = {
    "fc1": ("ffn_W1", "ffn_b1"),
    "fc2": ("ffn_W2", "ffn_b2"),
    "final_layer_norm": ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias"),
}
_SELF_ATTENTION_WEIGHTS = {
    "self_attn.q_proj": ("self_Wq", "self_bq"),
    "self_attn.k_proj": ("self_Wk", "self_bk"),
    "self_attn.v_proj": ("self_Wv", "self_bv"),
    "self_attn.out_proj": ("self_Wo", "self_bo"),
    "self_attn_layer_norm": ("self_Wo_ln_scale", "self_Wo_ln_bias"),
}
# Marian calls cross-attention "context".
_CROSS_ATTENTION_WEIGHTS = {
    "encoder_attn.q_proj": ("context_Wq", "context_bq"),
    "encoder_attn.k_proj": ("context_Wk", "context_bk"),
    "encoder_attn.v_proj": ("context_Wv", "context_bv"),
    "encoder_attn.out_proj": ("context_Wo", "context_bo"),
    "encoder_attn_layer_norm": ("context_Wo_ln_scale", "context_Wo_ln_bias"),
}
_ENCODER_WEIGHTS = {**_FEED_FORWARD_WEIGHTS, **_SELF_ATTENTION_WEIGHTS}
_DECODER_WEIGHTS = {**_FEED_FORWARD_WEIGHTS, **_SELF_ATTENTION_WEIGHTS, **_CROSS_ATTENTION_WEIGHTS}

# Token ids in Marian's SentencePiece vocabularies. The conversion adds a pad token.
_EOS_TOKEN = 0
_UNKNOWN_TOKEN = 1
# The bias of the added pad token is this far below the smallest bias, in nats, so that its probability is about zero.
_PAD_BIAS_MARGIN = 30.0
# Largest accepted size of all uncompressed arrays, as a multiple of the file's size. A larger archive is probably an
# attack.
_LARGEST_INFLATION = 20


def from_marian(
    input: str,
    output: str,
    *,
    sentences: Sequence[str] = SENTENCES,
    license: str | None = None,
    force: bool = False,
) -> Path:
    """Convert a model that was trained with Marian, and check that the result produces the same outputs.

    The result has the positions with which Marian trained the model. The conversion uses these files and settings:

    - The weights are the newest `.npz` file that is neither an optimizer state nor a copy of the weights before
      exponential smoothing.
    - The `.npz.yml` or `.decoder.yml` file next to the weights names the SentencePiece vocabularies, the number of
      beams and the length penalty. Without these files, the only `.spm` file is the vocabulary of both languages.
    - The language codes are the suffixes of the training files, or else of the vocabularies.
    - If Marian used guided alignment, `align` uses the attention head that was trained with it.

    If pymarian, Marian's Python package, is installed, the converted model also scores its n-best lists.

    Args:
        input (`str`): the training folder, or a weight file in it.
        output, sentences, license, force: see [`~hf_vanilla_transformer.from_hf_marian`], which also describes the
            returned value and the errors.

    Raises:
        ImportError: if sentencepiece is not installed.
    """
    output_folder = check_output(output, input)
    # Without this library, the vocabularies cannot be read.
    with needing("marian", "Marian's vocabulary needs"):
        import sentencepiece  # noqa: F401

    weight_path, vocabulary_paths = find_files(Path(input))
    arrays, settings = _read_arrays_and_settings(weight_path)
    languages = find_languages(settings, vocabulary_paths)
    # The conversion adds a pad token, whose id is `pad_token`.
    tokenizer_contents, pad_token = tokenizer_files(vocabulary_paths, arrays, languages)
    marian = build_marian(arrays, settings, pad_token, weight_path)
    n_best = _generate_n_best(weight_path, vocabulary_paths, sentences)
    source = Source(
        name=Path(input).resolve().name,
        system="marian",
        # The converted model is compared with this model.
        reference=marian,
        reference_description=_describe_reference(),
        sha256=hashes([weight_path, *vocabulary_paths]),
        license=license or read_license(weight_path.parent),
        in_float64=True,
        n_best=n_best,
    )

    alignment_heads = find_guided_heads(settings, weight_path)
    model = convert_marian(marian, "marian", str(weight_path), alignment_heads=alignment_heads)
    return write_converted(model, source, tokenizer_contents, output_folder, sentences, force)


def _read_arrays_and_settings(weights: Path) -> tuple[StateDict, dict[str, Any]]:
    """Read the arrays and all settings of a model. Raises ValueError if they are damaged or cannot be represented."""
    arrays, settings_in_weights = read_arrays(weights)
    # The settings in the weight file take precedence, because they are stored together with the weights.
    settings = {**read_settings(weights), **settings_in_weights}
    check_settings(settings, weights)
    return arrays, settings


def _has_pymarian() -> bool:
    """Return True if pymarian, Marian's Python package, is installed."""
    return find_spec("pymarian") is not None


def _generate_n_best(weights: Path, vocabularies: Sequence[Path], sentences: Sequence[str]) -> list[ScoredHypothesis]:
    """Return Marian's own n-best lists for the sentences, or an empty list if pymarian is not installed."""
    if not _has_pymarian():
        return []
    return translate_by_marian(weights, vocabularies, sentences)


def _describe_reference() -> str:
    """Return the certificate's description of what the converted model is compared with."""
    description = f"MarianMTModel of transformers {transformers.__version__} with these weights and Marian's positions"
    if _has_pymarian():
        return f"{description}, and n-best lists of pymarian"
    return f"{description}; pymarian, which is Marian itself, is not installed"


def find_files(path: Path) -> tuple[Path, list[Path]]:
    """Find the weights of a model that Marian trained, and its source and target vocabularies.

    Args:
        path: the training folder, or a weight file in it.

    Returns:
        The weight file, and the two SentencePiece vocabularies.

    Raises:
        FileNotFoundError: if there are no weights.
        ValueError: if `path` is a file without the suffix `.npz`, or if there are not two SentencePiece vocabularies.
    """
    if not path.is_file():
        weights = _find_newest_weights(path)
    elif path.suffix == ".npz":
        weights = path
    else:
        raise InputError(f"{path} is not a .npz file of weights; name the folder that Marian trained in.")
    return weights, _find_vocabularies(weights)


def _find_vocabularies(weights: Path) -> list[Path]:
    """Return the paths of the source and target vocabularies that belong to a weight file.

    Raises ValueError if there are not two SentencePiece vocabularies.
    """
    folder = weights.parent
    file_names = _list_vocabulary_names(weights)
    are_sentencepiece = all(Path(name).suffix == ".spm" for name in file_names)
    are_two_models = len(file_names) == 2 and are_sentencepiece
    if not are_two_models:
        listed_names = ", ".join(file_names) or "none"
        raise InputError(
            f"the vocabularies of {folder} are {listed_names}; two SentencePiece models (.spm) are needed. Instead of "
            "an archive of OPUS-MT, whose scripts split the text, convert the Hub's version: --from hf_marian --input "
            "Helsinki-NLP/opus-mt-..."
        )
    return [folder / name for name in file_names]


def _list_vocabulary_names(weights: Path) -> list[str]:
    """List the file names of the source and the target vocabulary that belong to a weight file.

    The settings next to the weight file name the vocabularies. Without such settings, the names of all `.spm` files in
    the folder are listed twice, as source and as target vocabularies. The caller must reject a result that does not
    have exactly two names.

    Raises ValueError if the settings have vocabularies that are not a list.
    """
    settings = read_settings(weights)
    if "vocabs" not in settings:
        # Each file may be the vocabulary of the source, of the target, or of both.
        names_in_folder = [path.name for path in weights.parent.glob("*.spm")]
        return [*names_in_folder, *names_in_folder]
    vocabulary_paths = settings["vocabs"]
    if not isinstance(vocabulary_paths, list):
        raise InputError(
            f"vocabs in the settings of {weights} is {vocabulary_paths!r}; it must be a list of two names."
        )
    # Only the file names are used, because the paths are those on the machine that trained the model.
    return [Path(str(path)).name for path in vocabulary_paths]


def _find_newest_weights(folder: Path) -> Path:
    """Return the newest weight file in a training folder. Raises FileNotFoundError if there is none."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; name the folder that Marian trained in.")
    candidates = []
    for path in folder.glob("*.npz"):
        # Marian saves the optimizer's state, and the weights before their exponential smoothing, next to the weights.
        if not path.name.endswith((".optimizer.npz", ".orig.npz")):
            candidates.append(path)
    if not candidates:
        raise FileNotFoundError(f"{folder} holds no .npz of weights; name the folder that Marian trained in.")
    return max(candidates, key=lambda path: path.stat().st_mtime)


def read_settings(weights: Path) -> dict[str, Any]:
    """Read the training settings and the decoder settings from the YAML files next to the weights.

    Decoder settings override training settings. A file for these particular weights overrides a file for all weights of
    the training run.
    """
    # Checkpoints such as model.iter500.npz and model.npz.best-bleu.npz come from the training run of model.npz.
    run_name = re.sub(r"(\.iter\d+)?\.npz.*", ".npz", weights.name)
    # Later files override earlier ones. A file is read only once if the weights have the name of the run.
    settings_files = [
        f"{run_name}.yml",
        f"{weights.name}.yml",
        "decoder.yml",
        f"{run_name}.decoder.yml",
        f"{weights.name}.decoder.yml",
    ]
    settings: dict[str, Any] = {}
    for name in dict.fromkeys(settings_files):
        path = weights.with_name(name)
        if path.is_file():
            settings.update(read_yaml(path.read_bytes(), path))
    return settings


def find_languages(settings: Mapping[str, Any], vocabularies: Sequence[Path]) -> list[str | None]:
    """Return the source and target language codes, or None for both if they are unknown.

    The codes are the suffixes of the training files, such as `en` in `train.en.gz`, or else of the vocabularies.
    """
    training_files = settings.get("train-sets")
    # The settings may be damaged, so `training_files` need not be a list.
    if isinstance(training_files, list):
        training_languages = _find_languages_of_files(training_files)
        if training_languages is not None:
            return training_languages
    vocabulary_languages = _find_languages_of_files(vocabularies)
    if vocabulary_languages is not None:
        return vocabulary_languages
    return [None, None]


def _find_languages_of_files(paths: Sequence[object]) -> list[str | None] | None:
    """Return the language codes that end two file names, such as `en` in `train.en.gz` and `de` in `train.de.gz`.

    Returns None if the names do not end in two different codes.
    """
    codes: list[str | None] = []
    for path in paths:
        path_without_suffix = re.sub(r"\.(gz|spm)$", "", str(path))
        # The code follows the last dot, as in train.en.gz, or the last slash, as in vocab/en.spm.
        code = re.split(r"[./]", path_without_suffix)[-1]
        if not language_of(code):
            return None
        codes.append(code)
    if len(codes) != 2 or codes[0] == codes[1]:
        return None
    return codes


def read_arrays(path: Path) -> tuple[StateDict, dict[str, Any]]:
    """Read the arrays of an `.npz` file as tensors, and the model settings that Marian stores in the same file.

    Raises ValueError if the file is damaged, contains pickled objects, or is not a Marian model.
    """
    check_archive(path, _LARGEST_INFLATION)
    try:
        with np.load(path, allow_pickle=False) as stored:
            # An array is read when it is accessed, so all of them are read while the file is open.
            arrays = dict(stored)
        # Marian stores its settings as YAML, in a byte array that ends in zeros.
        content = bytes(arrays.pop("special:model.yml")).rstrip(b"\0")
        settings = read_yaml(content, path)
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    except KeyError as error:
        raise InputError(f"{path} has no special:model.yml; it is not a model of Marian.") from error
    except (EOFError, MemoryError, OSError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return state, settings


def read_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """Parse YAML settings that were read from the file `path`. Raises ValueError if they are damaged."""
    try:
        settings = yaml.safe_load(content.decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        # PyYAML's messages have several lines.
        message = " ".join(str(error).split())
        raise InputError(f"the settings in {path} are damaged: {message}") from error
    if not isinstance(settings, dict):
        raise InputError(f"the settings in {path} are damaged: they have no fields.")
    return settings


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError if this package's model cannot represent some of Marian's settings. The message lists them."""
    unfit_fields = find_unfit(settings, _REQUIRED_SETTINGS)
    # A missing setting passes the checks, because the defaults below are valid.
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        unfit_fields.append(UnfitField("transformer-ffn-activation", activation, " or ".join(_ACTIVATIONS)))
    num_beams = settings.get("beam-size", 1)
    if type(num_beams) is not int or num_beams < 1:
        unfit_fields.append(UnfitField("beam-size", num_beams, "a whole number from 1"))
    length_penalty = settings.get("normalize", 0)
    if type(length_penalty) not in (int, float):
        unfit_fields.append(UnfitField("normalize", length_penalty, "a number"))
    check_fits(path, unfit_fields, "CTranslate2's ct2-marian-converter accepts some of them, such as pre-norm.")


def find_guided_heads(settings: Mapping[str, Any], path: Path) -> list[list[int]] | None:
    """Return the attention head that guided alignment trained, or None if Marian did not use guided alignment.

    Guided alignment trains the first head of one decoder layer to align words. The setting
    `transformer-guided-alignment-layer` is the number of the layer, counted from 1, and by default the last layer.

    The result is a list with one pair of layer and head, both counted from 0. For example, it is `[[5, 0]]` for the
    number 6. Raises ValueError if there is no such layer.
    """
    if settings.get("guided-alignment", "none") == "none":
        return None
    num_layers = settings["dec-depth"]
    setting = settings.get("transformer-guided-alignment-layer", "last")
    layer_number = _parse_layer_number(setting, num_layers)
    if layer_number is None:
        unfit_field = UnfitField("transformer-guided-alignment-layer", setting, f'"last" or from 1 to {num_layers}')
        raise unfit_error(path, [unfit_field])
    layer_index = layer_number - 1
    first_head = 0
    return [[layer_index, first_head]]


def _parse_layer_number(setting: object, num_layers: int) -> int | None:
    """Return the number of a layer, counted from 1, or None if `setting` does not name one of the layers.

    The setting may be `"last"`, or a number as an int or a text. In damaged settings, it may be any other object.
    """
    text = str(num_layers) if setting == "last" else str(setting)
    if not text.isdecimal():
        return None
    layer_number = int(text)
    if not 1 <= layer_number <= num_layers:
        return None
    return layer_number


def tokenizer_files(
    vocabularies: Sequence[Path], arrays: StateDict, languages: Sequence[str | None] = (None, None)
) -> tuple[dict[str, bytes], int]:
    """Create the files of a transformers `MarianTokenizer` from Marian's SentencePiece vocabularies.

    Args:
        vocabularies: the source and target SentencePiece models.
        arrays: the weights, whose embeddings must fit the vocabularies.
        languages: the source and target language codes, if known.

    Returns:
        The contents of the files by file name, and the id of the pad token. Marian has no pad token, so the first id
        that neither vocabulary uses is taken.

    Raises:
        ValueError: if a vocabulary is damaged, or if its size differs from the number of embeddings.
    """
    source_path, target_path = vocabularies
    source_size, target_size = _count_embeddings(arrays)
    pad_token = max(source_size, target_size)
    source_token_ids = {**_read_vocabulary(source_path, source_size), "<pad>": pad_token}
    target_token_ids = {**_read_vocabulary(target_path, target_size), "<pad>": pad_token}
    files = {
        "source.spm": source_path.read_bytes(),
        "vocab.json": json.dumps(source_token_ids).encode(),
        "target.spm": target_path.read_bytes(),
    }
    if not _has_joint_vocabulary(arrays):
        files["target_vocab.json"] = json.dumps(target_token_ids).encode()
    settings = _make_tokenizer_settings(arrays, languages)
    files[TOKENIZER_CONFIG] = json.dumps(settings, indent=2).encode()
    return files, pad_token


def _make_tokenizer_settings(arrays: StateDict, languages: Sequence[str | None]) -> dict[str, object]:
    """Return the settings of a `MarianTokenizer` for source and target languages, which may be None."""
    source_language, target_language = languages
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source_language,
        "target_lang": target_language,
        "separate_vocabs": not _has_joint_vocabulary(arrays),
        # Marian treats "</s>" in a text as text, not as the end of the sentence.
        "split_special_tokens": True,
    }


def _has_joint_vocabulary(arrays: StateDict) -> bool:
    """Return True if one embedding matrix serves both languages. Otherwise, they are encoder_Wemb and decoder_Wemb."""
    return "Wemb" in arrays


def _count_embeddings(arrays: StateDict) -> tuple[int, int]:
    """Return the number of source embeddings and the number of target embeddings in Marian's arrays."""
    if _has_joint_vocabulary(arrays):
        joint_size = len(arrays["Wemb"])
        return joint_size, joint_size
    return len(arrays["encoder_Wemb"]), len(arrays["decoder_Wemb"])


def _read_vocabulary(path: Path, num_embeddings: int) -> dict[str, int]:
    """Read a SentencePiece vocabulary, and return a dict from tokens to token ids.

    Raises ValueError if the file is damaged, or if the number of its tokens is not `num_embeddings`.
    """
    token_ids = {token: token_id for token_id, token in enumerate(_list_tokens(path))}
    if len(token_ids) != num_embeddings:
        raise InputError(f"{path} has {len(token_ids)} tokens, but the embeddings {num_embeddings} rows.")
    return token_ids


def _list_tokens(path: Path) -> list[str]:
    """List the tokens of a SentencePiece vocabulary in the order of their ids. Raises ValueError if it is damaged."""
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is damaged, or is no model of SentencePiece: {error}") from error
    return [processor.id_to_piece(token_id) for token_id in range(processor.get_piece_size())]


def build_marian(arrays: StateDict, settings: Mapping[str, Any], pad_token: int, path: Path) -> MarianMTModel:
    """Build a `MarianMTModel` with the weights, positions and decoding settings of a Marian model.

    Args:
        arrays, settings: the weights and the settings of the Marian model.
        pad_token: the id of the added pad token, which is the last id in both vocabularies.
        path: the weight file, which messages name.

    Raises:
        ValueError: if an array is missing or unexpected.
    """
    config = _build_config(settings, pad_token, _has_joint_vocabulary(arrays))
    marian = MarianMTModel._from_config(config, attn_implementation="eager").eval()
    state = _to_marian_state(arrays, config, path)
    # Loading is not strict because `state` lacks the position tables, which `restore_positions` computes, and the
    # output projection, which `tie_weights` makes equal to the loaded target embeddings.
    marian.load_state_dict(state, strict=False)
    marian.tie_weights()
    restore_positions(marian)
    _set_decoding_settings(marian, settings, pad_token)
    return marian


def _set_decoding_settings(marian: MarianMTModel, settings: Mapping[str, Any], pad_token: int) -> None:
    """Change the decoding settings of a `MarianMTModel` in place to those of Marian."""
    generation_config = marian.generation_config
    assert generation_config is not None
    # Marian never generates padding, and by default it does not generate <unk>.
    generation_config.suppress_tokens = [_UNKNOWN_TOKEN, pad_token]
    # OPUS-MT models on the Hub have the same limit.
    generation_config.max_length = 512
    # Without this setting, the model gets the paper's 4 beams.
    generation_config.num_beams = settings.get("beam-size", 4)
    # Both programs divide log P by a power of the length. The exponent 0 turns this off.
    generation_config.length_penalty = float(settings.get("normalize", 0))


def _build_config(settings: Mapping[str, Any], pad_token: int, has_joint_vocabulary: bool) -> MarianConfig:
    """Convert the settings of a Marian model into the configuration of a `MarianMTModel`.

    Marian's decoder starts from a zero vector instead of a start token's embedding (src/models/decoder.h,
    `embeddingsFromPrediction`). The MarianMTModel therefore starts from the pad token, whose embedding is zero.

    Args:
        settings: Marian's settings, which `check_settings` has accepted.
        pad_token: the id of the added pad token, which is the last id in both vocabularies.
        has_joint_vocabulary: True if one embedding matrix serves both languages.
    """
    encoder_width = settings["transformer-dim-ffn"]
    # If the decoder's width is missing or 0, it is the encoder's width.
    decoder_width = settings.get("transformer-decoder-dim-ffn") or encoder_width
    return MarianConfig(
        vocab_size=pad_token + 1,
        decoder_vocab_size=pad_token + 1,
        share_encoder_decoder_embeddings=has_joint_vocabulary,
        d_model=settings["dim-emb"],
        encoder_layers=settings["enc-depth"],
        decoder_layers=settings["dec-depth"],
        encoder_attention_heads=settings["transformer-heads"],
        decoder_attention_heads=settings["transformer-heads"],
        encoder_ffn_dim=encoder_width,
        decoder_ffn_dim=decoder_width,
        activation_function=settings.get("transformer-ffn-activation", "swish"),
        scale_embedding=True,
        pad_token_id=pad_token,
        eos_token_id=_EOS_TOKEN,
        decoder_start_token_id=pad_token,
        forced_eos_token_id=None,
        tie_word_embeddings=True,
    )


def _pop_embeddings(arrays: StateDict, config: MarianConfig) -> StateDict:
    """Remove the embedding matrices from Marian's arrays, and return them under transformers' names.

    The matrices get rows for the tokens that the conversion adds. Raises KeyError if a matrix is missing.
    """
    if config.share_encoder_decoder_embeddings:
        # One matrix serves both languages.
        joint_embeddings = arrays.pop("Wemb")
        return {"model.shared.weight": _append_zero_rows(joint_embeddings, config.vocab_size)}
    source_embeddings = arrays.pop("encoder_Wemb")
    target_embeddings = arrays.pop("decoder_Wemb")
    return {
        "model.encoder.embed_tokens.weight": _append_zero_rows(source_embeddings, config.vocab_size),
        "model.decoder.embed_tokens.weight": _append_zero_rows(target_embeddings, config.vocab_size),
    }


def _append_zero_rows(table: torch.Tensor, size: int) -> torch.Tensor:
    """Append rows of zeros to an embedding matrix until it has `size` rows. The last row is for the pad token."""
    missing_rows = table.new_zeros(size - len(table), table.shape[1])
    return torch.cat([table, missing_rows])


def _extend_output_bias(bias: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Extend Marian's output bias to the tokens that the conversion adds, and return it with shape `(1, vocab_size)`.

    `bias` is a vector. The added values are so low that the added tokens have a probability of about zero.
    """
    num_added_tokens = vocab_size - len(bias)
    low_bias = float(bias.min()) - _PAD_BIAS_MARGIN
    added_bias = bias.new_full((num_added_tokens,), low_bias)
    return torch.cat([bias, added_bias])[None]


def _to_marian_state(arrays: StateDict, config: MarianConfig, path: Path) -> StateDict:
    """Convert Marian's arrays to the weights of a `MarianMTModel`, except for its positions.

    Raises ValueError if an array is missing or unexpected.
    """
    # `_pop_weights` removes each array that it uses, so the arrays that remain are unexpected.
    remaining = dict(arrays)
    try:
        state = _pop_weights(remaining, config)
    except KeyError as error:
        raise InputError(f"{path} lacks the array {error}; use a complete model.") from error
    if remaining:
        raise InputError(f"{path} has {min(remaining)}, which cannot be converted: this model has no such weights.")
    return state


def _pop_weights(arrays: StateDict, config: MarianConfig) -> StateDict:
    """Remove all weights of a model from Marian's arrays, and return them under transformers' names.

    Raises KeyError if an array is missing.
    """
    embeddings = _pop_embeddings(arrays, config)
    bias = arrays.pop("decoder_ff_logit_out_b").flatten()  # (1, vocabulary) -> (vocabulary,)
    return {
        **embeddings,
        "final_logits_bias": _extend_output_bias(bias, config.vocab_size),
        **_pop_layers(arrays, _ENCODER_WEIGHTS, "encoder", config.encoder_layers),
        **_pop_layers(arrays, _DECODER_WEIGHTS, "decoder", config.decoder_layers),
    }


def _pop_layers(arrays: StateDict, names: Mapping[str, tuple[str, str]], stack: str, num_layers: int) -> StateDict:
    """Remove the weights of all layers of a stack from `arrays`, and return them under transformers' names.

    `stack` is `"encoder"` or `"decoder"`, and `names` is described by [`_pop_layer`], which also raises the errors.
    """
    state: StateDict = {}
    for layer in range(num_layers):
        # Marian counts layers from 1, and transformers counts them from 0.
        marian_prefix = f"{stack}_l{layer + 1}"
        hf_prefix = f"model.{stack}.layers.{layer}"
        state.update(_pop_layer(arrays, names, marian_prefix, hf_prefix))
    return state


def _pop_layer(
    arrays: StateDict, names: Mapping[str, tuple[str, str]], marian_prefix: str, hf_prefix: str
) -> StateDict:
    """Remove the weights of one layer from `arrays`, and return them under transformers' names.

    Args:
        arrays: Marian's arrays, by name. The arrays of the layer are removed.
        names: Marian's names of a weight and a bias, by the name of their module in transformers. For example, the
            module `"fc1"` has the names `("ffn_W1", "ffn_b1")`.
        marian_prefix, hf_prefix: the name of the layer in Marian and in transformers.

    Raises:
        KeyError: if an array is missing.
    """
    state = {}
    for module, (weight_name, bias_name) in names.items():
        weight = arrays.pop(f"{marian_prefix}_{weight_name}")
        bias = arrays.pop(f"{marian_prefix}_{bias_name}")
        state[f"{hf_prefix}.{module}.weight"] = _to_torch_layout(weight)
        state[f"{hf_prefix}.{module}.bias"] = _to_torch_layout(bias)
    return state


def _to_torch_layout(array: torch.Tensor) -> torch.Tensor:
    """Convert an array from Marian's layout to PyTorch's.

    A matrix of shape `(in, out)` is transposed. A vector, which Marian stores as a matrix with one row, is flattened.
    """
    if len(array) > 1:
        return array.T
    return array.flatten()


def translate_by_marian(
    weights: Path, vocabularies: Sequence[Path], sentences: Sequence[str]
) -> list[ScoredHypothesis]:
    """Translate sentences with pymarian, Marian's Python package, and return the 4 best hypotheses of each sentence.

    `weights` and `vocabularies` are Marian's weight file, and its source and target vocabularies.
    """
    import pymarian

    translator = pymarian.Translator(
        models=[str(weights)],
        vocabs=[str(path) for path in vocabularies],
        beam_size=4,
        n_best=True,
        # The tokens are not joined into words, because `add_scores` needs the tokens.
        no_spm_decode=True,
        max_length_factor=LONGEST_OF_MARIAN,
        cpu_threads=1,
        quiet=True,
        quiet_translation=True,
    )
    hypotheses = []
    # Each line is a hypothesis with four fields: the sentence's number, the tokens, the models' scores, and their sum.
    # An example is "0 ||| ▁Das ▁Haus ||| F0= -1.5 ||| -1.5".
    for line in translator.translate(list(sentences)):
        number, tokens, _, log_prob = line.split(" ||| ")
        hypotheses.append(ScoredHypothesis(sentences[int(number)], tokens, float(log_prob)))
    return hypotheses
