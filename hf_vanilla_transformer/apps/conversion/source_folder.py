"""Recognize which system a model comes from, load its files safely, and check that it can be converted.

The files are untrusted. No code in them is run, and damaged files raise ValueError.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...hub.model_folder import CARD, WEIGHT_FILES
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.input_checks import check_vocabulary, check_weights
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.argument_checks import reason_of
from ...support.safetensors_layout import read_json
from ...support.user_errors import InputError


Model = TypeVar("Model", bound=PreTrainedModel)

# The systems that models come from, by the `model_type` in config.json.
MODEL_TYPES = {"marian": "hf_marian", "fsmt": "fsmt"}
# The systems that models come from, by the suffix of the weight files.
_SYSTEMS_BY_SUFFIX = {".npz": "marian", ".pt": "fairseq"}
# Files in Trainer checkpoints that contain no weights, although they have fairseq's suffix.
_TRAINER_FILES = {"optimizer.pt", "scheduler.pt", "scaler.pt"}


@dataclass(frozen=True)
class UnfitField:
    """A setting whose value prevents a conversion, with a description of the values that would be accepted."""

    name: str
    value: object
    requirement: str


def load_source(model_class: type[Model], folder: Path, source: str) -> Model:
    """Load a transformers model from a folder, in float32 and in evaluation mode.

    Args:
        model_class: the class of the model, or an Auto class.
        folder: the local folder.
        source: the name of the source, which is used in messages.

    Raises:
        ValueError: if files are damaged or outside of the folder, if weights are missing, or if their shapes are wrong.
    """
    _check_weight_paths(folder)
    # These weight files, which PyTorch has written, may be zip archives.
    for path in folder.glob("*.bin"):
        check_archive(path)
    try:
        loaded: Any = model_class.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    except ImportError:
        # The message says which package must be installed.
        raise
    except Exception as error:  # transformers, torch and safetensors raise many exception types.
        raise InputError(f"{source} cannot be read: {reason_of(error)}") from error
    model, loading_info = loaded
    _check_complete(sorted(loading_info["missing_keys"]), source)
    return model.eval()


def _check_complete(missing_names: Sequence[str], source: str) -> None:
    """Raise ValueError if weights are missing. The message states their number and two of their names."""
    if missing_names:
        raise InputError(
            f"{len(missing_names)} weights are not in the files of {source} ({', '.join(missing_names[:2])}, ...); "
            "use a complete model."
        )


def _check_weight_paths(folder: Path) -> None:
    """Raise ValueError if a weight index (`*.index.json`) names a file outside of the folder."""
    for index in folder.glob("*.index.json"):
        weight_map = read_json(index).get("weight_map", {})
        for name in set(weight_map.values()):
            if Path(name).name != name:
                raise InputError(f'{index} names "{name}", which is not a file of its folder; use a complete model.')


def check_archive(path: Path, inflation: int = 1) -> None:
    """Raise ValueError if a zip file is damaged, or if its uncompressed content would be too large.

    Files that are not zip archives pass, because their own loaders check them.

    Args:
        path: the weight file.
        inflation: the largest accepted size of the uncompressed content, as a multiple of the file's size. The default
            is 1, because PyTorch does not compress its checkpoints.
    """
    if not zipfile.is_zipfile(path):
        return
    file_size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            content_size = sum(entry.file_size for entry in archive.infolist())
    except (NotImplementedError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if content_size > inflation * file_size:
        raise InputError(
            f"{path} claims {content_size:,} bytes, but the file has {file_size:,}; convert a complete checkpoint."
        )


def load_trained(
    folder: Path, source: str
) -> tuple[PreTrainedTokenizerBase, VanillaTransformerForConditionalGeneration]:
    """Load the tokenizer and the model in a folder of this package's format, and check that they can be exported.

    Raises ValueError if the folder holds a model of a different type, or weights that are quantized, NaN or infinite.
    """
    tokenizer = load_tokenizer(folder, source)
    auto_class: Any = AutoModelForSeq2SeqLM
    model = load_source(auto_class, folder, source)
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{source} holds a {type(model).__name__}; convert it with convert --from first.")
    if hasattr(model.config, "quantization_config"):
        raise InputError(f"{source} has quantized weights; convert the model that it was made from.")
    check_vocabulary(model.config, tokenizer)
    check_weights(model)
    return tokenizer, model


def load_tokenizer(folder: Path, source: str) -> PreTrainedTokenizerBase:
    """Load a source's tokenizer. Raises ValueError if its files are missing or damaged."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except ImportError:
        # The message says which package must be installed.
        raise
    except Exception as error:  # transformers and tokenizers raise many exception types.
        raise InputError(f"the tokenizer of {source} cannot be read: {reason_of(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """List the weight files in a folder that transformers has saved."""
    return [path for pattern in WEIGHT_FILES for path in folder.glob(pattern)]


def read_license(folder: Path) -> str | None:
    """Read the license from a source's model card. Returns None if there is no card, or if the card has no license."""
    try:
        license = ModelCard.load(folder / CARD).data.get("license")
    except Exception:  # huggingface_hub raises many exception types.
        return None
    return license if isinstance(license, str) else None


def recognize(source: str, revision: str | None = None, token: str | None = None) -> str:
    """Return the system that a model comes from: `marian`, `hf_marian`, `fairseq` or `fsmt`.

    The system is recognized by the `model_type` in config.json and by the suffixes of the files.

    Args:
        source: a folder, a weight file, or a name on the Hub.
        revision: the branch, tag or commit on the Hub.
        token: the access token for the Hub.

    Raises:
        FileNotFoundError: if there is neither such a folder nor such a repository.
        ValueError: if the model comes from none of the supported systems, or seems to come from several.
    """
    path = Path(source)
    file_names = _list_file_names(path)
    systems = _find_systems_by_suffix(file_names)
    # A path that does not exist may be a name on the Hub.
    may_be_on_hub = not path.exists()
    model_type = None
    if may_be_on_hub or "config.json" in file_names:
        model_type = _read_model_type(source, revision, token)
    if model_type in MODEL_TYPES:
        systems.add(MODEL_TYPES[model_type])

    if not systems:
        raise InputError(_describe_unknown_system(source, model_type))
    if len(systems) > 1:
        raise InputError(f"{source} holds models of {' and '.join(sorted(systems))}; choose one of them with --from.")
    return systems.pop()


def _find_systems_by_suffix(file_names: set[str]) -> set[str]:
    """Return the systems to which the suffixes of the files point."""
    suffixes = {Path(name).suffix for name in file_names}
    return {system for suffix, system in _SYSTEMS_BY_SUFFIX.items() if suffix in suffixes}


def _list_file_names(path: Path) -> set[str]:
    """Return the names of the files and subfolders in a folder, or the name of a single file.

    Files that only a Trainer reads are left out. The set is empty if `path` does not exist.
    """
    if path.is_dir():
        names = {entry.name for entry in path.iterdir()}
        return names - _TRAINER_FILES
    if path.exists():
        return {path.name}
    return set()


def _describe_unknown_system(source: str, model_type: str | None) -> str:
    """Return the error message for a source whose system is not supported. `model_type` is from its config.json."""
    fault = f"no config.json whose model_type is {' or '.join(MODEL_TYPES)}"
    if model_type:
        fault += f", but {model_type}"
    return f"{source} has no .npz (marian), no .pt (fairseq), and {fault}; nothing else can be converted."


def _read_model_type(source: str, revision: str | None, token: str | None) -> str | None:
    """Read `model_type` from the config.json of a local folder or a Hub repository. Returns None if it is missing."""
    try:
        fields, _ = PreTrainedConfig.get_config_dict(source, revision=revision, token=token)
    except (OSError, ValueError) as error:
        if Path(source).exists():
            raise InputError(f"the config.json of {source} cannot be read: {error}") from error
        raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    return fields.get("model_type")


def check_config(config_class: type[PreTrainedConfig], folder: Path, required_fields: Mapping[str, object]) -> None:
    """Raise ValueError if this package's model cannot represent a configuration. The message lists all wrong fields.

    `required_fields` are checked in config.json itself, because `config_class` may lack some of them. In addition, the
    encoder and the decoder must have the same number of heads.
    """
    stored_fields, _ = config_class.get_config_dict(folder)
    # config.json may leave out the numbers of heads, so they are read from the complete configuration.
    all_fields = config_class.from_dict(stored_fields).to_dict()
    required_heads = {"decoder_attention_heads": all_fields["encoder_attention_heads"]}
    unfit_fields = find_unfit(stored_fields, required_fields)
    unfit_fields += find_unfit(all_fields, required_heads)
    check_fits(folder, unfit_fields)


def check_fits(source: object, unfit_fields: Sequence[UnfitField], hint: str = "") -> None:
    """Raise ValueError if fields of a source prevent its conversion. The message lists them, and ends in `hint`."""
    if unfit_fields:
        raise unfit_error(source, unfit_fields, hint)


def unfit_error(source: object, unfit_fields: Sequence[UnfitField], hint: str = "") -> InputError:
    """Return the error for a source whose fields prevent its conversion, for the caller to raise.

    The message lists the fields, of which there must be at least one, and ends in `hint`.
    """
    faults = [f"{field.name} is {field.value!r}, but must be {field.requirement}" for field in unfit_fields]
    message = f"{source} cannot be converted: {'; '.join(faults)}."
    if hint:
        message += f" {hint}"
    return InputError(message)


def find_unfit(fields: Mapping[str, Any], required_fields: Mapping[str, object]) -> list[UnfitField]:
    """List the fields whose values differ from the required ones.

    A missing field counts as having its required value.
    """
    unfit_fields = []
    for name, required_value in required_fields.items():
        value = fields.get(name, required_value)
        if value != required_value:
            unfit_fields.append(UnfitField(name, value, repr(required_value)))
    return unfit_fields
