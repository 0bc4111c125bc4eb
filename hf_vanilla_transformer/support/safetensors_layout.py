"""Read safetensors headers to find the file, the dtype and the shape of each tensor, without loading any weights."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .user_errors import InputError


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The dtypes that weights may have, by their names in safetensors. Other dtypes, such as int8, belong to quantized
# models.
_DTYPES = ("F64", "F32", "F16", "BF16")


def read_layout(folder: Path) -> tuple[dict[str, Path], dict[str, tuple[str | int, ...]]]:
    """Read the names, dtypes and shapes of all weights in a folder, without loading the weights themselves.

    Returns:
        Two dicts whose keys are tensor names. The first contains the file of each tensor. The second contains a tuple
        for each tensor: its dtype, followed by the dimensions of its shape.

    Raises:
        FileNotFoundError: if the folder has no weights.
        ValueError: if a file is damaged, or if a tensor has a dtype that is not allowed for weights, such as int8.
    """
    files: dict[str, Path] = {}
    layout: dict[str, tuple[str | int, ...]] = {}
    for file in _weight_files(folder):
        layout_of_file = _read_layout_of_file(file)
        layout.update(layout_of_file)
        for name in layout_of_file:
            files[name] = file
    _check_dtypes(layout, folder)
    return files, layout


def _read_layout_of_file(file: Path) -> dict[str, tuple[str | int, ...]]:
    """Return the dtype and shape of each tensor in one file, in the file's order. Raise InputError if it is damaged."""
    layout: dict[str, tuple[str | int, ...]] = {}
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.offset_keys():
                # The values would be read only if this object were indexed.
                tensor_slice = tensors.get_slice(name)
                layout[name] = (tensor_slice.get_dtype(), *tensor_slice.get_shape())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is missing, truncated or damaged ({error}); use another checkpoint.") from error
    return layout


def _check_dtypes(layout: dict[str, tuple[str | int, ...]], folder: Path) -> None:
    """Raise ValueError if a tensor has a dtype that is not allowed for weights.

    `layout` maps the name of each tensor to its dtype and shape, as returned by [`read_layout`].
    """
    for name, dtype_and_shape in layout.items():
        dtype = dtype_and_shape[0]
        if dtype not in _DTYPES:
            raise InputError(f"{name} in {folder} has the dtype {dtype}; weights need one of {', '.join(_DTYPES)}.")


def _weight_files(folder: Path) -> list[Path]:
    """Return the files from which `from_pretrained` reads the weights: either a single file or several shards."""
    single_file = folder / WEIGHTS
    if single_file.is_file():
        return [single_file]
    shard_of_each_tensor = _read_index(folder / INDEX)
    if not shard_of_each_tensor:
        raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {INDEX}; name another folder.")
    shards = sorted(set(shard_of_each_tensor.values()))
    return [folder / shard for shard in shards]


def _read_index(index_file: Path) -> dict[str, str] | None:
    """Return the file name of each tensor's shard, by the tensor's name; None if there is no index."""
    if not index_file.is_file():
        return None
    return read_json(index_file).get("weight_map")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file in a checkpoint. Raises ValueError if the file does not contain an object."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{path} is truncated or damaged ({error}); use another checkpoint.") from error
