"""The folder or repository that a model is converted from."""

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import ModelCard, snapshot_download
from transformers import AutoTokenizer

from ..hub.model_folder import TOKENIZER_FILES
from ..support.argument_checks import reason_of
from ..support.safetensors_layout import read_json
from ..support.user_errors import InputError


CARD = "README.md"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def source_folder(source: str, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a source: itself, or a copy of a repository of the Hub, without code.

    Raises:
        FileNotFoundError: if there is neither a folder nor a repository of this name, or it has no configuration.
        NotADirectoryError: if it is a file.
    """
    folder = Path(source)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if not folder.is_dir():
        try:
            patterns = [*_WEIGHTS, *TOKENIZER_FILES, "config.json", "generation_config.json", CARD]
            folder = Path(snapshot_download(source, revision=revision, token=token, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; name the folder of a model of transformers.")
    return folder


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
    """Raise ValueError if a file claims more than `inflation` times its bytes, before memory is taken for them.

    torch does not compress its files.
    """
    if not zipfile.is_zipfile(path):
        return
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > inflation * size:
        raise InputError(
            f"{path} claims {claimed:,} bytes, but the file holds {size:,}; convert a complete checkpoint."
        )


def load_tokenizer(folder: Path, source: str) -> Any:
    """The tokenizer of a source, or ValueError if its files are missing or damaged."""
    try:
        return AutoTokenizer.from_pretrained(folder)
    except ImportError:
        raise
    except Exception as error:  # Transformers and tokenizers raise many kinds.
        raise InputError(f"the tokenizer of {source} cannot be read: {reason_of(error)}") from error


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, by name."""
    found = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder of transformers."""
    return [path for pattern in _WEIGHTS for path in folder.glob(pattern)]


def license_of(folder: Path) -> str | None:
    """The licence that the card of a source states, if there is one."""
    try:
        stated = ModelCard.load(folder / CARD).data.get("license")
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return stated if isinstance(stated, str) else None
