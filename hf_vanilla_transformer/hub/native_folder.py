"""Find a model in a local folder or on the Hub. Models in other formats are converted when they are first used."""

from pathlib import Path

from huggingface_hub import snapshot_download

from ..support.lazy_functions import LazyFunctions
from ..support.safetensors_layout import read_json
from .model_folder import CARD, TOKENIZER_FILES, WEIGHT_FILES
from .user_cache import convert_once


# Functions `convert(source, output)` that write a model folder in this package's format. The key is the `model_type` in
# the source's config.json. `registration.py` registers the functions from `apps/conversion/`.
IMPORTERS = LazyFunctions()


def native_folder(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return a folder in this package's format for a model of any known type, such as an OPUS-MT model.

    If the model is already in this package's format, its own folder is returned. A model of a different type is
    converted only once, and the result is stored in the user's cache.

    Args:
        name: a local folder, or a repository on the Hub.
        revision: the branch, tag or commit of the repository.
        token: the token for a private repository.

    Raises OSError if the model cannot be read, and ValueError if it cannot be converted.
    """
    folder = source_folder(name, revision, token)
    model_type = str(read_json(folder / "config.json").get("model_type"))
    # An importer is a function that converts models of one type, such as "marian".
    if model_type not in IMPORTERS:
        return folder
    # The importers are part of this package, so the result depends on no version of another library.
    return convert_once(model_type, folder, versions={}, convert=IMPORTERS[model_type])


def source_folder(source: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return a model's local folder. If the model is on the Hub, its files are downloaded, except for code.

    Args:
        source: a local folder, or a repository on the Hub.
        revision: the branch, tag or commit of the repository.
        token: the token for a private repository.

    Raises:
        FileNotFoundError: if there is neither a folder nor a repository with this name, or if it has no `config.json`.
        NotADirectoryError: if `source` is a file.
    """
    folder = Path(source)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if not folder.is_dir():
        folder = _download(source, revision, token)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; name the folder of a model of transformers.")
    return folder


def _download(name: str, revision: str | None, token: str | None) -> Path:
    """Download a model's files from the Hub, and return their folder. Raise FileNotFoundError if this fails."""
    # The patterns do not include *.py, so no code from the repository is downloaded.
    patterns = [*WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "generation_config.json", CARD]
    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"there is no folder {name}, and the Hub answered: {error}") from error
