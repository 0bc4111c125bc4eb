"""Which file of a folder holds which tensor, from the headers of safetensors files."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .user_errors import InputError


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")


def read_layout(folder: Path) -> tuple[dict[str, Path], dict[str, tuple]]:
    """File of every tensor, and its dtype followed by its shape, by name, from the headers of the files.

    Raises FileNotFoundError without weights, and ValueError if a file is damaged, or a dtype is not one of weights.
    """
    files, layout = {}, {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.offset_keys():
                    part = stored.get_slice(name)
                    files[name], layout[name] = file, (part.get_dtype(), *part.get_shape())
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} is missing, truncated or damaged ({error}); use another checkpoint.") from error
    for name, (dtype, *_) in layout.items():
        if dtype not in _DTYPES:
            raise InputError(f"{name} in {folder} has the dtype {dtype}; weights need one of {', '.join(_DTYPES)}.")
    return files, layout


def _weight_files(folder: Path) -> list[Path]:
    """The files that `from_pretrained` reads the weights from."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    shards = read_json(folder / INDEX).get("weight_map") if (folder / INDEX).is_file() else None
    if not shards:
        raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {INDEX}; name another folder.")
    return [folder / name for name in sorted(set(shards.values()))]


def read_json(path: Path) -> dict[str, Any]:
    """Fields of a JSON object in a file of a checkpoint; ValueError if it holds none."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{path} is truncated or damaged ({error}); use another checkpoint.") from error
