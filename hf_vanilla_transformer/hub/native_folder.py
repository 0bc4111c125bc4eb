"""Find the folder of a model, also on the Hub, and convert models of other types when they are first used."""

from pathlib import Path

from huggingface_hub import snapshot_download

from ..support.lazy_functions import LazyFunctions
from ..support.safetensors_layout import read_json
from .model_folder import CARD, TOKENIZER_FILES, WEIGHT_FILES
from .user_cache import convert_once


# Functions `convert(source, output)` that write a folder of this package, by the `model_type` of the source's
# config.json. `registration.py` registers the functions of `apps/conversion/`.
IMPORTERS = LazyFunctions()


def native_folder(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return a folder in this package's format for a model of any known type, such as an OPUS-MT model.

    A model of this package needs no conversion, so its own folder is returned. A model of another type is converted
    once, into the user's cache.

    Args:
        name: a folder, or a repository of the Hub.
        revision: the branch, tag or commit of the repository.
        token: the token for a private repository.

    Raises OSError if the model cannot be read, and ValueError if it cannot be converted.
    """
    folder = source_folder(name, revision, token)
    model_type = str(read_json(folder / "config.json").get("model_type"))
    if model_type not in IMPORTERS:
        return folder
    return convert_once(model_type, folder, {}, IMPORTERS[model_type])


def source_folder(source: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a model, or for a repository of the Hub the folder of its copy, which has no code.

    Args:
        source: a folder, or a repository of the Hub.
        revision: the branch, tag or commit of the repository.
        token: the token for a private repository.

    Raises:
        FileNotFoundError: if there is neither a folder nor a repository of this name, or it has no configuration.
        NotADirectoryError: if `source` is a file.
    """
    folder = Path(source)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if not folder.is_dir():
        try:
            # Without *.py, no code of the repository reaches this machine.
            patterns = [*WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "generation_config.json", CARD]
            folder = Path(snapshot_download(source, revision=revision, token=token, allow_patterns=patterns))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"there is no folder {source}, and the Hub answered: {error}") from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; name the folder of a model of transformers.")
    return folder
