"""Folders of trained models, from the Hub too, and the conversion of models of other types on first use."""

from pathlib import Path

from huggingface_hub import snapshot_download

from ..support.lazy_functions import LazyFunctions
from ..support.safetensors_layout import read_json
from .model_folder import CARD, TOKENIZER_FILES, WEIGHT_FILES
from .user_cache import convert_once


# By the `model_type` of a config.json, functions `convert(source, output)` that write a folder of this package.
# `registration.py` registers those of `apps/conversion/`.
IMPORTERS = LazyFunctions()


def native_folder(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a model of this package, or of the conversion of another one, such as an OPUS-MT model.

    A model is converted once, into the user's cache.

    Raises OSError if it cannot be read, and ValueError if it cannot be converted.
    """
    folder = source_folder(name, revision, token)
    model_type = str(read_json(folder / "config.json").get("model_type"))
    if model_type not in IMPORTERS:
        return folder
    return convert_once(model_type, folder, {}, IMPORTERS[model_type])


def source_folder(source: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a model: itself, or a copy of a repository of the Hub, without code.

    Raises:
        FileNotFoundError: if there is neither a folder nor a repository of this name, or it has no configuration.
        NotADirectoryError: if it is a file.
    """
    folder = Path(source)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if not folder.is_dir():
        try:
            patterns = [*WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "generation_config.json", CARD]
            folder = Path(snapshot_download(source, revision=revision, token=token, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; name the folder of a model of transformers.")
    return folder
