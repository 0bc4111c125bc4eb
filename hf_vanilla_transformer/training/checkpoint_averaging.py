"""Average the weights of checkpoints (section 6.1)."""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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


# Patterns of the files that an average has besides its weights.
_OTHER_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES, "*.py")
# Fields that may differ between checkpoints of one model.
_FIELDS_THAT_MAY_DIFFER = {
    # Where and by which version the model was saved.
    "_name_or_path",
    "transformers_version",
    # Settings of the training, which the weights do not show.
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "label_smoothing",
    "initializer_factor",
    # Arguments of the last call of the tokenizer, which tokenizer.json stores.
    "padding",
    "truncation",
}


class _Checkpoint(NamedTuple):
    """A checkpoint without its weights.

    Args:
        folder: folder of the checkpoint.
        tensor_files: the file of each tensor, by the name of the tensor.
        layout: dtype and shape of each tensor in one tuple, by the name of the tensor.
        identity: configuration, tokenizer files and layout by name. All of them are equal in checkpoints of one model.
    """

    folder: Path
    tensor_files: dict[str, Path]
    layout: dict[str, tuple]
    identity: dict[str, object]

    @property
    def parameters(self) -> int:
        """Number of parameters in the files of weights, in which shared parameters occur once."""
        return sum(math.prod(shape) for _, *shape in self.layout.values())


def average_checkpoints(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Average the weights of checkpoints, or of saved models, that have the same architecture and tokenizer.

    Section 6.1 averages the last 5 checkpoints of the base model and the last 20 of the big one. Each tensor is summed
    in float64, divided by the number of checkpoints, and rounded once to its dtype in the checkpoints. The number of
    checkpoints does not change the memory that this needs: the average of one file of weights (one shard, if the last
    checkpoint has shards), and up to 20 bytes for each element of the tensor that is being averaged.

    `output` becomes a folder for `from_pretrained`. Configuration, generation settings, tokenizer and code are copied
    from the last path. The model card, README.md, lists the averaged folders.

    Args:
        paths (`list` of `str` or `PathLike`): folders with `config.json` and `model.safetensors`, whole or in shards.
        output (`str` or `PathLike`): folder to create.

    Returns:
        `Path`: the folder.

    Raises:
        BlockingIOError: if another process writes `output`.
        FileExistsError: if `output` already holds a model.
        FileNotFoundError: if a folder has no weights or no configuration.
        NotADirectoryError: if `output` is a file.
        TypeError: if `paths` is one string.
        ValueError: if there is no path, or a path occurs twice; if a checkpoint is truncated, lacks the mark that other
            checkpoints of its run have, or has links to files elsewhere; if the checkpoints differ in names, shapes or
            dtypes of weights, in the tokenizer, or in the configuration other than the rates of dropout and label
            smoothing; or if weights are NaN or infinite.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths is one path, {os.fspath(paths)}; give a list of the folders to average.")
    target = Path(output)
    check_holds_no_model(target, "the average")
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        # Another process may have written a model before this one got the lock.
        check_holds_no_model(target, "the average")
        with staged(target) as folder:
            checkpoints = write_average(paths, folder)
            config = VanillaTransformerConfig.from_pretrained(folder)
            about = About(target.resolve().name, location=location_of(target))
            facts = average_facts(_name_folders(checkpoints))
            card = fill_model_card(about, config, checkpoints[-1].parameters, facts)
            (folder / "README.md").write_text(card.content, encoding="utf-8")
    return target


def _name_folders(checkpoints: Sequence[_Checkpoint]) -> list[str]:
    """Return the names of the checkpoints' folders, with the parent folders if some names are equal."""
    folders = [checkpoint.folder.resolve() for checkpoint in checkpoints]
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    return names


def write_average(paths: Sequence[str | os.PathLike[str]], folder: Path) -> list[_Checkpoint]:
    """Write the average of checkpoints, without a model card, into an existing folder.

    An error may leave an incomplete model there. [`average_checkpoints`] says what is averaged, and which errors are
    raised.

    Args:
        paths: folders of the checkpoints.
        folder: folder for the average.

    Returns:
        `list`: the checkpoints, in the order of their paths.
    """
    checkpoint_folders = [Path(path) for path in paths]
    if not checkpoint_folders:
        raise InputError("no checkpoint is given; name at least one checkpoint or saved model.")
    distinct_folders = {checkpoint_folder.resolve() for checkpoint_folder in checkpoint_folders}
    if len(distinct_folders) < len(checkpoint_folders):
        folder_list = ", ".join(map(str, checkpoint_folders))
        raise InputError(f"one of {folder_list} is given twice; name each checkpoint once.")

    checkpoints = [_read_checkpoint(checkpoint_folder) for checkpoint_folder in checkpoint_folders]
    last = checkpoints[-1]
    for checkpoint in checkpoints[:-1]:
        _check_match(checkpoint, last)

    # A dict keeps the order of the files, each of which holds many tensors.
    for weight_file in dict.fromkeys(last.tensor_files.values()):
        _write_weights(weight_file, checkpoints, folder / weight_file.name)
    patterns = list(_OTHER_FILES)
    if not (last.folder / WEIGHTS).is_file():
        # The index of the shards.
        patterns.append(INDEX)
    for pattern in patterns:
        for path in last.folder.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    return checkpoints


def last_checkpoints(run: str | os.PathLike[str], count: int) -> list[Path]:
    """Return the newest complete checkpoints of a run, oldest first.

    A warning with the reason is logged for each checkpoint that is skipped.

    Args:
        run: folder of the run.
        count: number of checkpoints. If the run has fewer, all of them are returned.

    Raises:
        ValueError: if `count` is less than 1.
    """
    check_number("the number of checkpoints to average", count, 1)
    newest_first = list(islice(complete_checkpoints(Path(run)), count))
    return newest_first[::-1]


def _read_checkpoint(folder: Path) -> _Checkpoint:
    """Read everything of a checkpoint but its weights.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the checkpoint is not complete, has links to files elsewhere, or holds a different kind of model.
    """
    _check_is_complete(folder)
    for pattern in _OTHER_FILES:
        check_links(folder.glob(pattern))
    stored_config = read_json(folder / "config.json")
    model_type = stored_config.get("model_type")
    if model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{folder} holds a {model_type} model; give {VanillaTransformerConfig.model_type} models.")
    tensor_files, layout = read_layout(folder)

    # Earlier versions saved fewer fields of the configuration, so missing ones get their defaults.
    identity: dict[str, object] = dict(VanillaTransformerConfig().to_dict())
    identity.update(stored_config)
    identity.update(_read_tokenizer(folder))
    identity.update(layout)
    return _Checkpoint(folder, tensor_files, layout, _drop_fields_that_may_differ(identity))


def _check_is_complete(folder: Path) -> None:
    """Raise ValueError if a checkpoint is truncated, or lacks the mark that other checkpoints of its run have."""
    checkpoint = folder.resolve()
    run_checkpoints = checkpoints_in(checkpoint.parent)
    # Saved models, and checkpoints of a Trainer without `CompleteCheckpoints`, have no marks.
    run_has_marks = checkpoint in run_checkpoints and any((path / MARK).exists() for path in run_checkpoints)
    if not run_has_marks and not (folder / MARK).exists():
        return
    fault = fault_of(folder)
    if fault is not None:
        raise InputError(f"{folder} is not complete: {fault}; use another checkpoint.")


def _read_tokenizer(folder: Path) -> dict[str, object]:
    """Return the content of a tokenizer's files by the names of the files, for a comparison."""
    contents: dict[str, object] = {}
    for name in TOKENIZER_FILES:
        path = folder / name
        if not path.is_file():
            continue
        if name == "tokenizer_config.json":
            # Only the special tokens matter. Other fields depend on the version of transformers.
            contents[name] = {field: value for field, value in read_json(path).items() if field.endswith("_token")}
        elif path.suffix == ".json":
            contents[name] = _drop_fields_that_may_differ(read_json(path))
        else:
            contents[name] = path.read_bytes()
    return contents


def _drop_fields_that_may_differ(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that are equal in all checkpoints of one model."""
    return {name: value for name, value in fields.items() if name not in _FIELDS_THAT_MAY_DIFFER}


def _check_match(checkpoint: _Checkpoint, last: _Checkpoint) -> None:
    """Raise ValueError if two checkpoints differ in their architecture, tokenizer or tensors."""
    # A dict keeps the order of the names, of which each checkpoint may lack some.
    for name in {**checkpoint.identity, **last.identity}:
        value = checkpoint.identity.get(name)
        last_value = last.identity.get(name)
        if value == last_value:
            continue
        difference = name
        # The content of a tokenizer's file would be too long for a message.
        if name not in TOKENIZER_FILES:
            difference += f": {value} and {last_value}"
        raise InputError(
            f"{checkpoint.folder} and {last.folder} differ in {difference}; average one model's checkpoints."
        )


def _write_weights(last_file: Path, checkpoints: Sequence[_Checkpoint], target: Path) -> None:
    """Write the average of one file of weights.

    Args:
        last_file: a file of the last checkpoint. The average has the same tensors and metadata.
        checkpoints: all checkpoints, whose tensors may be in files with different names.
        target: file for the average.
    """
    with safe_open(last_file, framework="pt") as stored:
        names = stored.keys()
        metadata = stored.metadata()
    averages = {}
    for name in names:
        files = [checkpoint.tensor_files[name] for checkpoint in checkpoints]
        averages[name] = _average_tensor(files, name)
    try:
        save_file(averages, target, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{target} could not be written ({error}); make room, or name another folder.") from error


def _average_tensor(files: Sequence[Path], name: str) -> torch.Tensor:
    """Return the average of a tensor over several files, summed in float64, in the dtype of the files.

    Raises:
        ValueError: if the tensor has values that are NaN or infinite.
    """
    # The sum starts with the first tensor and not with 0, because 0 + -0 is 0.
    first = _read_tensor(files[0], name)
    dtype = first.dtype
    total = first.to(torch.float64, copy=True)
    # Free its memory before the next tensor is read.
    del first
    for file in files[1:]:
        total += _read_tensor(file, name)
    if not total.isfinite().all():
        # Finite values may also have an infinite sum. Then the last file is named.
        spoiled_file = files[-1]
        for file in files:
            if not _read_tensor(file, name).isfinite().all():
                spoiled_file = file
                break
        raise InputError(f"{name} in {spoiled_file} has values that are NaN or infinite; leave this checkpoint out.")
    return total.div_(len(files)).to(dtype)


def _read_tensor(file: Path, name: str) -> torch.Tensor:
    """Read one tensor of a file of weights."""
    # An open file keeps all pages that were read in memory, so it is opened anew for each tensor.
    with safe_open(file, framework="pt") as stored:
        return stored.get_tensor(name)
