"""The folder that a run writes: never two models in one, never half a file."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


# What a run leaves beside its checkpoints; a later run in the same folder may write fewer of them.
_FILES_OF_A_RUN = ("README.md", "scores.json", "*config.json", "model*.safetensors*", "tokenizer.json")
_FILES_TO_RESUME_FROM = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors", "tokenizer.json")


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether what an earlier run left there may be replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds a model or checkpoints, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    holds_a_run = bool(_checkpoints(folder)) or (folder / "config.json").exists()
    if holds_a_run and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints; name another folder, or say --overwrite to replace them "
            "or --resume_from_checkpoint last to go on."
        )


def find_checkpoint(wanted: str, folder: Path) -> Path:
    """The checkpoint to go on from.

    Args:
        wanted (`str`): a checkpoint's folder, or `"last"` for the last complete one in `folder`.
        folder (`Path`): where the run writes.

    Raises:
        ValueError: if there is none, or files are missing that the training goes on from.
    """
    if wanted != "last":
        missing = [name for name in _FILES_TO_RESUME_FROM if not (Path(wanted) / name).is_file()]
        if missing:
            raise ValueError(f"{wanted} is no checkpoint to resume from: it has no {', '.join(missing)}.")
        return Path(wanted)
    complete = [path for path in _checkpoints(folder) if all((path / name).is_file() for name in _FILES_TO_RESUME_FROM)]
    if not complete:
        raise ValueError(f"{folder} holds no checkpoint to resume from; leave out --resume_from_checkpoint.")
    return complete[-1]


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)


def remove_files_of_a_run(folder: Path) -> None:
    """Remove what an earlier run left beside its checkpoints; other files stay."""
    for pattern in _FILES_OF_A_RUN:
        for path in folder.glob(pattern):
            path.unlink()


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, whose files move into `folder` when all of them are written.

    Args:
        folder (`Path`): made if need be; files of the same names are replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        for path in Path(temporary).iterdir():
            path.replace(folder / path.name)


def _checkpoints(folder: Path) -> list[Path]:
    steps = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path, step in steps.items() if step.isdecimal()), key=lambda path: int(steps[path]))
