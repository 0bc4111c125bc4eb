"""Store results that take long to compute, such as converted models, in the user's cache.

Each result is computed only once. Its name contains a hash of everything from which it was computed.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from ..support.version import __version__
from .model_folder import CERTIFICATE


logger = logging.getLogger(__name__)

CACHE = Path(HF_HOME) / "hf_vanilla_transformer"
# Suffixes of the files that are hashed: weights, configurations and vocabularies.
_HASHED_SUFFIXES = (".bin", ".json", ".model", ".safetensors", ".spm", ".txt")


def convert_once(
    conversion: str, folder: Path, versions: Mapping[str, str], convert: Callable[[str, str], object]
) -> Path:
    """Convert a model's folder unless the cache already contains the result, and return the result's folder.

    Args:
        conversion: the name of the conversion, which becomes a part of the result's name.
        folder: the folder to convert. Its files are hashed.
        versions: the versions of the libraries on which the result depends, by the library's name.
        convert: a function `convert(source, output)` that takes the paths of two folders. It must write `parity.json`
            to the output folder, which marks the result as complete.
    """
    target = result_folder(conversion, [folder], versions)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A second process that converts the same folder waits here for the first one.
    with FileLock(target.parent / f"{target.name}.lock"):
        # CERTIFICATE is "parity.json". After an interrupted conversion it is missing, and the conversion is repeated.
        is_complete = (target / CERTIFICATE).is_file()
        if not is_complete:
            logger.info("converting %s into %s", folder, target)
            convert(str(folder), str(target))
    return target


def result_folder(label: str, folders: Iterable[Path], settings: Mapping[str, object]) -> Path:
    """Return the path of the cache folder for a result. The folder may not exist yet.

    The folder's name depends on everything from which the result is computed, and on the version of this package.

    Args:
        label: the last part of the folder's name.
        folders: folders whose files determine the result.
        settings: other values that determine the result, by name.
    """
    # These are one dict for each folder, from file names to hashes, and one dict of settings and versions.
    determining_values: list[Mapping[str, object]] = []
    for folder in folders:
        # Weights, configurations and vocabularies. The other files do not change the result.
        paths = [path for path in folder.iterdir() if path.suffix in _HASHED_SUFFIXES]
        determining_values.append(hashes(paths))
    other_values = dict(settings)
    other_values["hf_vanilla_transformer"] = __version__
    determining_values.append(other_values)
    serialized_values = json.dumps(determining_values, sort_keys=True)
    digest = hashlib.sha256(serialized_values.encode()).hexdigest()
    # 32 hexadecimal digits are 128 bits, with which no two results get the same name in practice.
    return CACHE / f"{digest[:32]}-{label}"


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 hash of each file's content in hexadecimal, by the file's name without its folder.

    If several files have the same name, the result contains only the last of them in sorted order.
    """
    digests = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
