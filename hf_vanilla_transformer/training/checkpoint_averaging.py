"""Average the weights of several checkpoints into one model (section 6.1 of the paper)."""

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


# Patterns of the files that are copied next to the averaged weights.
_OTHER_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES, "*.py")
# Fields that may differ between checkpoints of one model.
_FIELDS_THAT_MAY_DIFFER = {
    # These tell where and by which version of transformers the model was saved.
    "_name_or_path",
    "transformers_version",
    # Training settings, which do not affect inference.
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "label_smoothing",
    "initializer_factor",
    # tokenizer.json stores these arguments of the tokenizer's last call.
    "padding",
    "truncation",
}


class _Checkpoint(NamedTuple):
    """The weight files of a checkpoint, and the metadata that must be equal in all averaged checkpoints.

    Args:
        folder: folder of the checkpoint.
        tensor_files: maps the name of each tensor to the file that contains it.
        layout: maps the name of each tensor to a tuple of its dtype and the sizes of its dimensions.
        identity: configuration, tokenizer files and layout, by name. They are equal in all checkpoints of one model.
    """

    folder: Path
    tensor_files: dict[str, Path]
    layout: dict[str, tuple]
    identity: dict[str, object]

    @property
    def parameters(self) -> int:
        """Number of parameters in the weight files, where shared parameters are stored once."""
        # A value of `layout` is a dtype followed by sizes, such as ("F32", 512, 2048).
        return sum(math.prod(shape) for _, *shape in self.layout.values())


def average_checkpoints(paths: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Average the weights of checkpoints or saved models that have the same architecture and tokenizer.

    Section 6.1 averages the last 5 checkpoints of the base model and the last 20 of the big one. Each tensor is summed
    in float64, and rounded once to its dtype in the checkpoints. The memory does not depend on the number of
    checkpoints: it holds the average of one weight file (one shard, if the last checkpoint has shards), and up to 20
    bytes for each element of the tensor that is being averaged.

    You can load the new folder with `from_pretrained`. Its configuration, generation settings, tokenizer and code are
    copied from the last path. The model card, README.md, lists the averaged folders.

    Args:
        paths (`list` of `str` or `PathLike`): folders with `config.json` and `model.safetensors`, or with its shards.
        output (`str` or `PathLike`): folder to create.

    Returns:
        `Path`: the new folder.

    Raises:
        BlockingIOError: if another process is writing to `output`.
        FileExistsError: if `output` already holds a model.
        FileNotFoundError: if a folder has no weights or no configuration.
        NotADirectoryError: if `output` is a file.
        TypeError: if `paths` is one string.
        ValueError: in these cases:

            - There is no path, or a path occurs twice.
            - A checkpoint is truncated, contains links to files elsewhere, or has no completion mark although other
              checkpoints of its run have one.
            - The checkpoints differ in the names, shapes or dtypes of weights, in the tokenizer, or in the
              configuration. Dropout and label smoothing may differ.
            - Weights are NaN or infinite.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths is one path, {os.fspath(paths)}; give a list of the folders to average.")
    target = Path(output)
    check_holds_no_model(target, "the average")
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        # Check again, because another process may have written a model before this one got the lock.
        check_holds_no_model(target, "the average")
        # The files are moved to `target` only when all of them are complete.
        with staged(target) as folder:
            checkpoints = write_average(paths, folder)
            _write_card(folder, target, checkpoints)
    return target


def _write_card(folder: Path, target: Path, checkpoints: Sequence[_Checkpoint]) -> None:
    """Write the model card of an average to `README.md`.

    Args:
        folder: the temporary folder that contains the average.
        target: the folder to which the files will be moved. The card's title and its example name this folder.
        checkpoints: the averaged checkpoints, which the card lists.
    """
    config = VanillaTransformerConfig.from_pretrained(folder)
    about = About(target.resolve().name, location=location_of(target))
    # The card's table has a row such as "average of 2 checkpoints: checkpoint-8, checkpoint-9".
    training_facts = average_facts(_name_folders(checkpoints))
    # All checkpoints have the same number of parameters, because their tensors have the same shapes.
    parameters = checkpoints[-1].parameters
    card = fill_model_card(about, config, parameters, training_facts)
    (folder / "README.md").write_text(card.content, encoding="utf-8")


def _name_folders(checkpoints: Sequence[_Checkpoint]) -> list[str]:
    """Return the checkpoints' folder names. If two are equal, every name gets its parent: `run1/checkpoint-9`."""
    folders = [checkpoint.folder.resolve() for checkpoint in checkpoints]
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    return names


def write_average(paths: Sequence[str | os.PathLike[str]], folder: Path) -> list[_Checkpoint]:
    """Write the average of checkpoints into an existing folder, without a model card.

    [`average_checkpoints`] documents the errors. After an error, an incomplete model may remain in the folder.

    Args:
        paths: folders of the checkpoints.
        folder: folder for the average.

    Returns:
        `list`: the checkpoints, in the order of their paths.
    """
    checkpoint_folders = [Path(path) for path in paths]
    _check_distinct(checkpoint_folders)
    checkpoints = [_read_checkpoint(checkpoint_folder) for checkpoint_folder in checkpoint_folders]
    *earlier_checkpoints, last = checkpoints
    # All checkpoints are compared before anything is written.
    for checkpoint in earlier_checkpoints:
        _check_match(checkpoint, last)

    # The weights are divided into files as in the last checkpoint.
    for weight_file in _list_weight_files(last):
        _write_weights(weight_file, checkpoints, folder / weight_file.name)
    _copy_other_files(last.folder, folder)
    return checkpoints


def _list_weight_files(checkpoint: _Checkpoint) -> list[Path]:
    """Return the files that contain a checkpoint's tensors, each of them once, in the order of the tensors."""
    weight_files: list[Path] = []
    for file in checkpoint.tensor_files.values():
        if file not in weight_files:
            weight_files.append(file)
    return weight_files


def _check_distinct(folders: Sequence[Path]) -> None:
    """Raise InputError if no folder is given, or if one is given twice."""
    if not folders:
        raise InputError("no checkpoint is given; name at least one checkpoint or saved model.")
    distinct_folders = {folder.resolve() for folder in folders}
    if len(distinct_folders) < len(folders):
        folder_list = ", ".join(map(str, folders))
        raise InputError(f"one of {folder_list} is given twice; name each checkpoint once.")


def _copy_other_files(checkpoint_folder: Path, target_folder: Path) -> None:
    """Copy the files that belong to a checkpoint's weights, such as the configuration and the tokenizer."""
    # `_OTHER_FILES` has the patterns of the names of these files.
    patterns = list(_OTHER_FILES)
    if not (checkpoint_folder / WEIGHTS).is_file():
        # The weights are in shards, so their index is needed.
        patterns.append(INDEX)
    for pattern in patterns:
        for path in checkpoint_folder.glob(pattern):
            shutil.copyfile(path, target_folder / path.name)


def last_checkpoints(run: str | os.PathLike[str], count: int) -> list[Path]:
    """Return the `count` newest complete checkpoints of a run, oldest first.

    Incomplete checkpoints are skipped, and a warning with the reason is logged for each of them.

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
    """Read a checkpoint's configuration, tokenizer and tensor layout, but not its weights.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the checkpoint is incomplete, contains links to files elsewhere, or is of a different model type.
    """
    _check_is_complete(folder)
    for pattern in _OTHER_FILES:
        check_links(folder.glob(pattern))
    stored_config = _read_config(folder)
    tensor_files, layout = read_layout(folder)

    # The values in which averaged checkpoints must agree. The keys are names of configuration fields, of tokenizer
    # files and of tensors.
    identity: dict[str, object] = {
        # Earlier versions saved fewer configuration fields, so missing fields have their defaults.
        **VanillaTransformerConfig().to_dict(),
        **stored_config,
        **_read_tokenizer(folder),
        **layout,
    }
    return _Checkpoint(folder, tensor_files, layout, _drop_fields_that_may_differ(identity))


def _read_config(folder: Path) -> dict[str, object]:
    """Return the fields of a checkpoint's configuration. Raise InputError if they are of a different model type."""
    stored_config = read_json(folder / "config.json")
    model_type = stored_config.get("model_type")
    if model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{folder} holds a {model_type} model; give {VanillaTransformerConfig.model_type} models.")
    return stored_config


def _check_is_complete(folder: Path) -> None:
    """Raise InputError if a checkpoint is incomplete. This can be checked only in runs that write completion marks.

    A completion mark is the file `complete.json`, which lists the sizes of all files of a checkpoint. Runs that use
    `CompleteCheckpoints` write it after all other files.
    """
    # Saved models, and checkpoints of a Trainer without `CompleteCheckpoints`, have no marks to check. A checkpoint
    # without a mark is incomplete only if other checkpoints of its run have marks.
    must_have_mark = (folder / MARK).exists() or _is_of_run_with_marks(folder.resolve())
    if not must_have_mark:
        return
    # `fault_of` returns what is wrong with a checkpoint that should have a mark, or None.
    fault = fault_of(folder)
    if fault is not None:
        raise InputError(f"{folder} is not complete: {fault}; use another checkpoint.")


def _is_of_run_with_marks(folder: Path) -> bool:
    """Return True if a folder is a checkpoint of a run in which at least one checkpoint has a completion mark.

    Args:
        folder: the absolute path of the folder.
    """
    checkpoints_of_run = checkpoints_in(folder.parent)
    if folder not in checkpoints_of_run:
        return False
    return any((checkpoint / MARK).exists() for checkpoint in checkpoints_of_run)


def _read_tokenizer(folder: Path) -> dict[str, object]:
    """Return the contents of a tokenizer's files by file name, so that two tokenizers can be compared.

    Files that the tokenizer does not have are left out.
    """
    contents: dict[str, object] = {}
    for name in TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            contents[name] = _read_tokenizer_file(path)
    return contents


def _read_tokenizer_file(path: Path) -> object:
    """Return the content of a tokenizer's file, without fields that may differ between two equal tokenizers."""
    if path.name == "tokenizer_config.json":
        return _read_special_tokens(path)
    if path.suffix == ".json":
        # For example, tokenizer.json contains the padding of the tokenizer's last call.
        return _drop_fields_that_may_differ(read_json(path))
    return path.read_bytes()


def _read_special_tokens(path: Path) -> dict[str, object]:
    """Return the special tokens in `tokenizer_config.json`. Other fields depend on the version of transformers."""
    fields = read_json(path)
    return {name: token for name, token in fields.items() if name.endswith("_token")}


def _drop_fields_that_may_differ(fields: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of a dict without the fields that may differ between checkpoints of one model."""
    return {name: value for name, value in fields.items() if name not in _FIELDS_THAT_MAY_DIFFER}


def _check_match(checkpoint: _Checkpoint, last: _Checkpoint) -> None:
    """Raise ValueError if two checkpoints differ in their architecture, tokenizer or tensors."""
    # `identity` maps names to configuration values, contents of tokenizer files, and shapes and dtypes of tensors.
    # Either checkpoint may lack some names. Merging the dicts gives all names, and keeps their order.
    all_names = list({**checkpoint.identity, **last.identity})
    for name in all_names:
        value = checkpoint.identity.get(name)
        last_value = last.identity.get(name)
        if value == last_value:
            continue
        difference = name
        if name not in TOKENIZER_FILES:
            # The contents of a tokenizer file would be too long for a message, but other values are not.
            difference += f": {value} and {last_value}"
        raise InputError(
            f"{checkpoint.folder} and {last.folder} differ in {difference}; average one model's checkpoints."
        )


def _write_weights(last_file: Path, checkpoints: Sequence[_Checkpoint], target: Path) -> None:
    """Average the tensors of one weight file over all checkpoints, and write them to a new file.

    Args:
        last_file: a weight file of the last checkpoint. The new file has the same tensor names and metadata.
        checkpoints: all checkpoints. Each may store these tensors in files with different names.
        target: the file to write.
    """
    with safe_open(last_file, framework="pt") as stored:
        names = stored.keys()
        # The header of the file, such as {"format": "pt"}.
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
    """Average one tensor over several files. It is summed in float64 and returned in the dtype of the files.

    Raises:
        ValueError: if the tensor has values that are NaN or infinite.
    """
    # The sum starts with the first tensor and not with 0, because 0 + -0 is 0.
    first_tensor = _read_tensor(files[0], name)
    dtype = first_tensor.dtype
    # `total` is changed in place below. Without `copy=True`, it would be `first_tensor` itself if this is in float64.
    total = first_tensor.to(torch.float64, copy=True)
    # Free this tensor's memory before the next tensor is read.
    del first_tensor
    for file in files[1:]:
        # An in-place addition keeps the dtype of the left side, float64.
        total += _read_tensor(file, name)
    if not total.isfinite().all():
        spoiled_file = _find_spoiled_file(files, name)
        raise InputError(f"{name} in {spoiled_file} has values that are NaN or infinite; leave this checkpoint out.")
    return total.div_(len(files)).to(dtype)


def _find_spoiled_file(files: Sequence[Path], name: str) -> Path:
    """Return the first file in which a tensor has values that are NaN or infinite.

    If all files have finite values, but their sum is infinite, the result is the last file.
    """
    for file in files:
        if not _read_tensor(file, name).isfinite().all():
            return file
    return files[-1]


def _read_tensor(file: Path, name: str) -> torch.Tensor:
    """Read one tensor from a weight file."""
    # An open file keeps all pages in memory that were read, so the file is opened anew for each tensor.
    with safe_open(file, framework="pt") as stored:
        return stored.get_tensor(name)
