"""Conversions that are made once, and kept in the user's cache under the hash of what was converted."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from ...support.safetensors_layout import read_json
from ...support.version import __version__
from .. import conversion
from .converted_folder import CERTIFICATE
from .source_folder import MODEL_TYPES, hashes, source_folder


logger = logging.getLogger(__name__)

CACHE = Path(HF_HOME) / "hf_vanilla_transformer"
_HASHED = (".bin", ".json", ".model", ".safetensors", ".spm", ".txt")


def cached(kind: str, folder: Path, versions: Mapping[str, str], convert: Callable[[str, str], object]) -> Path:
    """The folder that `convert(source, output)` made of a folder, in this call or in an earlier one.

    Args:
        kind: of conversion, for the name of the result.
        folder: of the source; its files are hashed.
        versions: of libraries on which the result depends.
        convert: must write `parity.json`.
    """
    target = CACHE / f"{result_key([folder], versions)}-{kind}"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Another process that converts the same folder is waited for.
    with FileLock(CACHE / f"{target.name}.lock"):
        if not (target / CERTIFICATE).is_file():
            logger.info("converting %s into %s", folder, target)
            convert(str(folder), str(target))
    return target


def result_key(folders: Iterable[Path], settings: Mapping[str, object]) -> str:
    """A hash of the files of folders, of settings, and of the version of this package."""
    found = [hashes(path for path in folder.iterdir() if path.suffix in _HASHED) for folder in folders]
    parts = [*found, {**settings, "hf_vanilla_transformer": __version__}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def native_folder(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model of this package, or of the conversion of another one, such as an OPUS-MT model.

    Raises OSError if it cannot be read, and ValueError if it cannot be converted.
    """
    folder = source_folder(name, revision, token)
    system = MODEL_TYPES.get(str(read_json(folder / "config.json").get("model_type")))
    return folder if system is None else cached(system, folder, {}, getattr(conversion, f"from_{system}"))
