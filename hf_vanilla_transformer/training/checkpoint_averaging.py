"""Averages of checkpoints (section 6.1)."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..hub.model_card import About, average_facts, fill_model_card
from ..hub.model_folder import TOKENIZER_FILES, check_links, files_of_a_run
from ..hub.staged_folder import staged
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..support.argument_checks import check_number
from ..support.atomic_files import locked
from ..support.checkpoint_marks import MARK, checkpoints_in, complete_checkpoints, fault_of
from ..support.safetensors_layout import INDEX, WEIGHTS, read_json, read_layout


PROVENANCE = "averaged_from.json"
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_OTHER_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES, "*.py")
# Fields that may differ between checkpoints of one model: who wrote it, and how it was trained.
_NOT_OF_THE_MODEL = (
    "_name_or_path",
    "transformers_version",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "label_smoothing",
)
# Settings of the last call, which tokenizers save too.
_NOT_OF_THE_TOKENIZER = ("padding", "truncation")


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
    of those of the last path. `averaged_from.json` lists the folders and the updates after which they were written;
    the model card, README.md, lists the folders too.

    Args:
        paths (`list` of `str` or `PathLike`): folders with `model.safetensors`, whole or in shards, and `config.json`.
        output (`str` or `PathLike`): folder to make.

    Returns:
        `Path`: the folder.

    Raises:
        BlockingIOError: if another process writes `output`.
        FileExistsError: if `output` already holds a model.
        FileNotFoundError: if a folder does not exist, or has no weights or no configuration.
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
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file; name a folder for the average.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        found = [path.name for path in files_of_a_run(target)]
        if found:
            raise FileExistsError(f"{target} already holds a model ({', '.join(found[:4])}); name another folder.")
        checkpoints = _read_matching(paths)
        with staged(target) as folder:
            _write_average(checkpoints, folder)
            _write_card(checkpoints, folder, title=target.resolve().name)
    return target


def write_average(paths: Sequence[str | os.PathLike[str]], folder: Path) -> None:
    """[`average_checkpoints`] without a model card, into an existing folder; an error leaves an incomplete model."""
    _write_average(_read_matching(paths), folder)


def last_checkpoints(run: str | os.PathLike[str], count: int) -> list[Path]:
    """The newest complete checkpoints of a run, oldest first: `count` of them, or all if there are fewer.

    Logs a warning, with the reason, for each checkpoint that it skips.

    Args:
        run (`str` or `PathLike`): folder of a run that was trained with [`CompleteCheckpoints`].
        count (`int`): most checkpoints to return.

    Raises:
        ValueError: if `count` is less than 1.
    """
    check_number("the number of checkpoints to average", count, 1)
    return list(islice(complete_checkpoints(Path(run)), count))[::-1]


def averaged_from(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the averaged folders in a model's `averaged_from.json`; empty for a model that is not an average."""
    path = Path(folder) / PROVENANCE
    return [part["name"] for part in read_json(path)["checkpoints"]] if path.is_file() else []


def _read_matching(paths: Iterable[str | os.PathLike[str]]) -> list[_Checkpoint]:
    """Read all but the weights of each checkpoint, and check that the checkpoints can be averaged."""
    folders = [Path(path) for path in paths]
    if not folders:
        raise ValueError("no checkpoint is given; name at least one checkpoint or saved model.")
    resolved = [folder.resolve() for folder in folders]
    for folder, path in zip(folders, resolved, strict=True):
        if resolved.count(path) > 1:
            raise ValueError(f"{folder} is given twice; name each checkpoint once.")
    checkpoints = [_read_checkpoint(folder) for folder in folders]
    for checkpoint in checkpoints[:-1]:
        _check_match(checkpoint, checkpoints[-1])
    return checkpoints


def _read_checkpoint(folder: Path) -> _Checkpoint:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; name the folder of a checkpoint or of a saved model.")
    _check_mark(folder)
    check_links(path for pattern in (*_OTHER_FILES, PROVENANCE) for path in folder.glob(pattern))
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{folder} has no config.json; name the folder of a checkpoint or of a saved model.")
    fields = read_json(config)
    if fields.get("model_type") != VanillaTransformerConfig.model_type:
        raise ValueError(
            f"{folder} holds a {fields.get('model_type')} model; give {VanillaTransformerConfig.model_type} models."
        )
    # Earlier versions wrote fewer fields.
    fields = _without({**VanillaTransformerConfig().to_dict(), **fields}, _NOT_OF_THE_MODEL)
    files, layout = read_layout(folder)
    return _Checkpoint(folder, files, {**fields, **_read_tokenizer(folder), **layout})


def _read_tokenizer(folder: Path) -> dict[str, Any]:
    """The content of a tokenizer's files, by their names, for comparison."""
    paths = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    found: dict[str, Any] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    if _TOKENIZER in found:
        found[_TOKENIZER] = _without(read_json(folder / _TOKENIZER), _NOT_OF_THE_TOKENIZER)
    if _TOKENIZER_CONFIG in found:
        fields = read_json(folder / _TOKENIZER_CONFIG)
        found[_TOKENIZER_CONFIG] = {name: value for name, value in fields.items() if name.endswith("_token")}
    return found


def _check_mark(folder: Path) -> None:
    """Raise ValueError if a checkpoint is truncated, or is not marked in a run that marks its checkpoints."""
    path = folder.resolve()
    of_the_run = checkpoints_in(path.parent)
    run_marks = path in of_the_run and any((checkpoint / MARK).exists() for checkpoint in of_the_run)
    fault = fault_of(folder) if run_marks or (folder / MARK).exists() else None
    if fault is not None:
        raise ValueError(f"{folder} is not complete: {fault}; use another checkpoint.")


def _check_match(one: _Checkpoint, last: _Checkpoint) -> None:
    """Raise ValueError if two checkpoints differ in their architecture, tokenizer or tensors."""
    for name in {**one.identity, **last.identity}:
        values = [checkpoint.identity.get(name) for checkpoint in (one, last)]
        if values[0] != values[1]:
            # The content of a tokenizer is long.
            what = "" if name in TOKENIZER_FILES else f": {values[0]} and {values[1]}"
            raise ValueError(
                f"{one.folder} and {last.folder} differ in {name}{what}; average checkpoints of one model."
            )


def _write_average(checkpoints: Sequence[_Checkpoint], folder: Path) -> None:
    last = checkpoints[-1]
    for file in dict.fromkeys(last.files.values()):
        _write_weights(file, checkpoints, folder / file.name)
    index = () if (last.folder / WEIGHTS).is_file() else (INDEX,)
    for path in (path for pattern in (*_OTHER_FILES, *index) for path in last.folder.glob(pattern)):
        shutil.copyfile(path, folder / path.name)
    names = _names([checkpoint.folder.resolve() for checkpoint in checkpoints])
    parts = [_describe(name, checkpoint) for name, checkpoint in zip(names, checkpoints, strict=True)]
    (folder / PROVENANCE).write_text(json.dumps({"checkpoints": parts}, indent=2) + "\n", encoding="utf-8")


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
        raise ValueError(f"{name} in {spoiled} has values that are NaN or infinite; leave this checkpoint out.")
    return total.div_(len(files)).to(dtype)


def _read_tensor(file: Path, name: str) -> torch.Tensor:
    # An open file keeps the pages of every tensor that was read from it, so it is opened anew for each.
    with safe_open(file, framework="pt") as stored:
        return stored.get_tensor(name)


def _names(folders: Sequence[Path]) -> list[str]:
    """Names of folders, preceded by their parents' names if two are equal."""
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [f"{folder.parent.name}/{folder.name}" for folder in folders]


def _describe(name: str, checkpoint: _Checkpoint) -> dict[str, Any]:
    """The name and updates of one averaged folder, and its own parts if it is an average itself."""
    earlier = checkpoint.folder / PROVENANCE
    return {
        "name": name,
        "updates": _updates(checkpoint),
        **(read_json(earlier) if earlier.is_file() else {}),
    }


def _write_card(checkpoints: Sequence[_Checkpoint], folder: Path, *, title: str) -> None:
    last = checkpoints[-1]
    parameters = sum(math.prod(last.identity[name][1:]) for name in last.files)
    config = VanillaTransformerConfig.from_pretrained(folder)
    card = fill_model_card(About(title), config, parameters, average_facts(averaged_from(folder)))
    (folder / "README.md").write_text(card.content, encoding="utf-8")


def _updates(checkpoint: _Checkpoint) -> int | None:
    """Number of updates before a checkpoint of the Trainer; None for a saved model."""
    state = checkpoint.folder / "trainer_state.json"
    return read_json(state).get("global_step") if state.is_file() else None


def _without(fields: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
