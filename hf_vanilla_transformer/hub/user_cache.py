"""Results that are computed once and kept in the user's cache, under the hash of what they were computed from."""

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
_HASHED = (".bin", ".json", ".model", ".safetensors", ".spm", ".txt")


def convert_once(kind: str, folder: Path, versions: Mapping[str, str], convert: Callable[[str, str], object]) -> Path:
    """Return the folder that `convert(source, output)` made of a folder, in this call or in an earlier one.

    Args:
        kind: of conversion, for the name of the result.
        folder: of the source; its files are hashed.
        versions: of libraries on which the result depends.
        convert: must write `parity.json`.
    """
    target = result_folder(kind, [folder], versions)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A second process that converts the same folder waits here for the first one.
    with FileLock(target.parent / f"{target.name}.lock"):
        if not (target / CERTIFICATE).is_file():
            logger.info("converting %s into %s", folder, target)
            convert(str(folder), str(target))
    return target


def result_folder(kind: str, folders: Iterable[Path], settings: Mapping[str, object]) -> Path:
    """Return the folder of a result, whose name depends on the files of folders, on settings, and on our version."""
    parts: list[Mapping[str, object]] = []
    for folder in folders:
        parts.append(hashes(path for path in folder.iterdir() if path.suffix in _HASHED))
    parts.append({**settings, "hf_vanilla_transformer": __version__})
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    return CACHE / f"{key}-{kind}"


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by name."""
    hash_of = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            hash_of[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hash_of
