"""Averages of checkpoints (section 6.1)."""

import math
import os
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..hub.model_card import About, average_facts, fill_model_card, location_of
from ..hub.model_folder import TOKENIZER_FILES, check_holds_no_model, check_links, staged
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..support.argument_checks import check_number
from ..support.atomic_files import locked
from ..support.checkpoint_marks import MARK, checkpoints_in, complete_checkpoints, fault_of
from ..support.safetensors_layout import INDEX, WEIGHTS, read_json, read_layout
from ..support.user_errors import InputError


_OTHER_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES, "*.py")
# Fields that may differ between checkpoints of one model: who wrote it, how it was trained, and the tokenizer's last
# call.
_NOT_OF_THE_MODEL = {"_name_or_path", "transformers_version", "padding", "truncation"}
_NOT_OF_THE_MODEL |= {"dropout", "attention_dropout", "activation_dropout", "label_smoothing", "initializer_factor"}


class _Checkpoint(NamedTuple):
    """A checkpoint without its weights: the file of each tensor, and what must be equal in checkpoints of one model."""

    folder: Path
    files: dict[str, Path]
    identity: dict[str, Any]


def average_checkpoints(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Average the weights of checkpoints, or of saved models, of one architecture with one tokenizer.

    Section 6.1 averages the last 5 checkpoints of the base model and the last 20 of the big one. Each tensor is summed
    in float64, divided by the number of checkpoints, and rounded once, to its dtype in the checkpoints. However many
    checkpoints there are, memory holds the average of one file of weights (of one shard, if the last checkpoint has
    shards), and up to 20 bytes for each element of the tensor in work.

    `output` becomes a folder for `from_pretrained`: configuration, generation settings, tokenizer and code are copies
    of those of the last path. The model card, README.md, lists the folders.

    Args:
        paths (`list` of `str` or `PathLike`): folders with `model.safetensors`, whole or in shards, and `config.json`.
        output (`str` or `PathLike`): folder to make.

    Returns:
        `Path`: the folder.

    Raises:
        BlockingIOError: if another process writes `output`.
        FileExistsError: if `output` already holds a model.
        FileNotFoundError: if a folder has no weights or no configuration.
        NotADirectoryError: if `output` is a file.
        TypeError: if `paths` is one string.
        ValueError: if no path is given, or one twice; if a checkpoint is truncated, lacks the mark that others of its
            run have, or has links to files elsewhere; if names, shapes or dtypes of the weights, tokenizers or
            configurations differ, other than in the rates of dropout and label smoothing; if weights are NaN or
            infinite.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths is one path, {os.fspath(paths)}; give a list of the folders to average.")
    target = Path(output)
    check_holds_no_model(target, "the average")
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        check_holds_no_model(target, "the average")
        with staged(target) as folder:
            checkpoints = write_average(paths, folder)
            last, config = checkpoints[-1], VanillaTransformerConfig.from_pretrained(folder)
            parameters = sum(math.prod(last.identity[name][1:]) for name in last.files)
            folders = [checkpoint.folder.resolve() for checkpoint in checkpoints]
            names = [each.name for each in folders]
            if len(set(names)) < len(names):
                names = [f"{each.parent.name}/{each.name}" for each in folders]
            about = About(target.resolve().name, location=location_of(target))
            card = fill_model_card(about, config, parameters, average_facts(names))
            (folder / "README.md").write_text(card.content, encoding="utf-8")
    return target


def write_average(paths: Sequence[str | os.PathLike[str]], folder: Path) -> list[_Checkpoint]:
    """[`average_checkpoints`] without a model card, into an existing folder; an error leaves an incomplete model."""
    folders = [Path(path) for path in paths]
    if not folders:
        raise InputError("no checkpoint is given; name at least one checkpoint or saved model.")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(f"one of {', '.join(map(str, folders))} is given twice; name each checkpoint once.")
    checkpoints = [_read_checkpoint(each) for each in folders]
    last = checkpoints[-1]
    for checkpoint in checkpoints[:-1]:
        _check_match(checkpoint, last)
    for file in dict.fromkeys(last.files.values()):
        _write_weights(file, checkpoints, folder / file.name)
    index = () if (last.folder / WEIGHTS).is_file() else (INDEX,)
    for path in (path for pattern in (*_OTHER_FILES, *index) for path in last.folder.glob(pattern)):
        shutil.copyfile(path, folder / path.name)
    return checkpoints


def last_checkpoints(run: str | os.PathLike[str], count: int) -> list[Path]:
    """The newest complete checkpoints of a run, oldest first: `count` of them, or all if there are fewer.

    Logs a warning, with the reason, for each checkpoint that it skips; raises ValueError if `count` is less than 1.
    """
    check_number("the number of checkpoints to average", count, 1)
    return list(islice(complete_checkpoints(Path(run)), count))[::-1]


def _read_checkpoint(folder: Path) -> _Checkpoint:
    path, siblings = folder.resolve(), checkpoints_in(folder.resolve().parent)
    run_marks = path in siblings and any((each / MARK).exists() for each in siblings)
    if (run_marks or (folder / MARK).exists()) and (fault := fault_of(folder)) is not None:
        raise InputError(f"{folder} is not complete: {fault}; use another checkpoint.")
    check_links(path for pattern in _OTHER_FILES for path in folder.glob(pattern))
    fields = read_json(folder / "config.json")
    if fields.get("model_type") != VanillaTransformerConfig.model_type:
        raise InputError(
            f"{folder} holds a {fields.get('model_type')} model; give {VanillaTransformerConfig.model_type} models."
        )
    files, layout = read_layout(folder)
    # Earlier versions wrote fewer fields.
    fields = {**VanillaTransformerConfig().to_dict(), **fields, **_read_tokenizer(folder), **layout}
    return _Checkpoint(folder, files, _identity(fields))


def _read_tokenizer(folder: Path) -> dict[str, Any]:
    """The content of a tokenizer's files, by their names, for comparison."""
    found: dict[str, Any] = {}
    for path in (folder / name for name in TOKENIZER_FILES if (folder / name).is_file()):
        found[path.name] = _identity(read_json(path)) if path.suffix == ".json" else path.read_bytes()
        if path.name == "tokenizer_config.json":
            found[path.name] = {name: each for name, each in found[path.name].items() if name.endswith("_token")}
    return found


def _identity(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _NOT_OF_THE_MODEL}


def _check_match(one: _Checkpoint, last: _Checkpoint) -> None:
    """Raise ValueError if two checkpoints differ in their architecture, tokenizer or tensors."""
    for name in {**one.identity, **last.identity}:
        values = [checkpoint.identity.get(name) for checkpoint in (one, last)]
        if values[0] != values[1]:
            # The content of a tokenizer is long.
            what = "" if name in TOKENIZER_FILES else f": {values[0]} and {values[1]}"
            raise InputError(f"{one.folder} and {last.folder} differ in {name}{what}; average one model's checkpoints.")


def _write_weights(file: Path, checkpoints: Sequence[_Checkpoint], target: Path) -> None:
    """Write a file like one of the last checkpoint, metadata included, with the mean of all checkpoints."""
    with safe_open(file, framework="pt") as stored:
        names, metadata = stored.keys(), stored.metadata()
    means = {name: _mean([checkpoint.files[name] for checkpoint in checkpoints], name) for name in names}
    try:
        save_file(means, target, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{target} could not be written ({error}); make room, or name another folder.") from error


def _mean(files: Sequence[Path], name: str) -> torch.Tensor:
    """The mean of one tensor, summed in float64, in the dtype of the files."""
    # The sum starts from a tensor, because 0 + -0 is 0.
    total = _read_tensor(files[0], name)
    dtype = total.dtype
    total = total.to(torch.float64, copy=True)
    for file in files[1:]:
        total += _read_tensor(file, name)
    if not total.isfinite().all():
        spoiled = next((file for file in files if not _read_tensor(file, name).isfinite().all()), files[-1])
        raise InputError(f"{name} in {spoiled} has values that are NaN or infinite; leave this checkpoint out.")
    return total.div_(len(files)).to(dtype)


def _read_tensor(file: Path, name: str) -> torch.Tensor:
    # An open file keeps the pages of every tensor that was read from it, so it is opened anew for each.
    with safe_open(file, framework="pt") as stored:
        return stored.get_tensor(name)
