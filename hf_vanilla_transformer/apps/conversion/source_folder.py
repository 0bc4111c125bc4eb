"""The folder or repository that a model is converted from: which system it is of, and whether it can be carried."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig

from ...hub.model_folder import CARD, WEIGHT_FILES
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.input_checks import check_vocabulary, check_weights
from ...support.argument_checks import reason_of
from ...support.safetensors_layout import read_json
from ...support.user_errors import InputError


# Systems by the `model_type` of a config.json, and by the ending of files of weights.
MODEL_TYPES = {"marian": "hf_marian", "fsmt": "fsmt"}
_ENDINGS = {".npz": "marian", ".pt": "fairseq"}
_OF_THE_TRAINER = {"optimizer.pt", "scheduler.pt", "scaler.pt"}


def load_source(kind: Any, folder: Path, source: str) -> Any:
    """A model of transformers in float32 and evaluation mode, with all of its weights.

    Raises:
        ValueError: if files are damaged or outside of the folder, or weights are missing or of another shape.
    """
    for index in folder.glob("*.index.json"):
        for name in set(read_json(index).get("weight_map", {}).values()):
            if Path(name).name != name:
                raise InputError(f'{index} names "{name}", which is not a file of its folder; use a complete model.')
    for path in folder.glob("*.bin"):
        check_archive(path)
    try:
        options = {"attn_implementation": "eager", "dtype": torch.float32, "output_loading_info": True}
        model, info = kind.from_pretrained(folder, **options)
    except ImportError:
        raise
    except Exception as error:  # Transformers, torch and safetensors raise many kinds.
        raise InputError(f"{source} cannot be read: {reason_of(error)}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise InputError(
            f"{len(missing)} weights are not in the files of {source} ({', '.join(missing[:2])}, ...); use a complete "
            "model."
        )
    return model.eval()


def check_archive(path: Path, inflation: int = 1) -> None:
    """Raise ValueError if a file is damaged, or claims more than `inflation` times its bytes; torch compresses none."""
    if not zipfile.is_zipfile(path):
        return
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
    except (NotImplementedError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if claimed > inflation * size:
        raise InputError(f"{path} claims {claimed:,} bytes, but the file has {size:,}; convert a complete checkpoint.")


def load_trained(folder: Path, source: str) -> tuple[Any, Any]:
    """Tokenizer and model of a folder of this package, to be converted; ValueError if it holds another model."""
    tokenizer, model = load_tokenizer(folder, source), load_source(AutoModelForSeq2SeqLM, folder, source)
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{source} holds a {type(model).__name__}; bring it in by convert --from first.")
    if hasattr(model.config, "quantization_config"):
        raise InputError(f"{source} has quantized weights; convert the model that it was made from.")
    check_vocabulary(model.config, tokenizer)
    check_weights(model)
    return tokenizer, model


def load_tokenizer(folder: Path, source: str) -> Any:
    """The tokenizer of a source, or ValueError if its files are missing or damaged."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except ImportError:
        raise
    except Exception as error:  # Transformers and tokenizers raise many kinds.
        raise InputError(f"the tokenizer of {source} cannot be read: {reason_of(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder of transformers."""
    return [path for pattern in WEIGHT_FILES for path in folder.glob(pattern)]


def license_of(folder: Path) -> str | None:
    """The licence that the card of a source states, if there is one."""
    try:
        stated = ModelCard.load(folder / CARD).data.get("license")
    except Exception:  # huggingface_hub raises many kinds.
        return None
    return stated if isinstance(stated, str) else None


def recognize(source: str, revision: str | None = None, token: str | None = None) -> str:
    """The system of a folder, a file of weights or a repository, by its config.json and the names of its files.

    Raises ValueError if it is of none of these systems, or of several.
    """
    path = Path(source)
    names = sorted({each.name for each in path.iterdir()} - _OF_THE_TRAINER) if path.is_dir() else [path.name]
    found = {_ENDINGS[suffix] for name in names if (suffix := Path(name).suffix) in _ENDINGS and path.exists()}
    model_type = None
    if "config.json" in names or not path.exists():
        model_type = _model_type(source, revision=revision, token=token)
    if model_type in MODEL_TYPES:
        found.add(MODEL_TYPES[model_type])
    if not found:
        raise InputError(
            f"{source} has no .npz (marian), no .pt (fairseq), and no config.json whose model_type is "
            f"{' or '.join(MODEL_TYPES)}{f', but {model_type}' if model_type else ''}; nothing else can be converted."
        )
    if len(found) > 1:
        raise InputError(f"{source} holds models of {' and '.join(sorted(found))}; choose one of them with --from.")
    return found.pop()


def _model_type(source: str, **options: str | None) -> str | None:
    try:
        fields, _ = PreTrainedConfig.get_config_dict(source, **options)
    except (OSError, ValueError) as error:
        if Path(source).exists():
            raise InputError(f"the config.json of {source} cannot be read: {error}") from error
        raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    return fields.get("model_type")


def check_config(kind: type[PreTrainedConfig], folder: Path, needed: Mapping[str, Any]) -> None:
    """Raise ValueError naming what this model cannot hold of one of transformers, by its class of configurations."""
    fields, _ = kind.get_config_dict(folder)
    config: Any = kind.from_dict(fields)
    heads = {"decoder_attention_heads": config.encoder_attention_heads}
    refuse(folder, unlike(fields, needed) + unlike(config.to_dict(), heads))


def refuse(source: object, unfit: Iterable[tuple[str, Any, str]], hint: str = "") -> None:
    """Raise ValueError if there are unfit fields (name, value, what it must be in words), with a hint on what to do."""
    fields = "; ".join(f"{name} is {given!r}, but must be {needed}" for name, given, needed in unfit)
    if fields:
        raise InputError(f"{source} cannot be converted: {fields}.{hint and ' '}{hint}")


def unlike(fields: Mapping[str, Any], needed: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Fields that have other values than needed, for `refuse`; one that is missing has the value that is needed."""
    return [(name, fields[name], repr(value)) for name, value in needed.items() if fields.get(name, value) != value]
