"""The folder that a run writes: never two models in one, never half a file."""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


# What a run leaves beside its checkpoints; a later run in the same folder may write fewer of them.
_FILES_OF_A_RUN = (
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "scores.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_FILES_TO_RESUME_FROM = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors", "tokenizer.json")


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether what an earlier run left there may be replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds files like those that a run writes, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    found = [path.name for path in (*_checkpoints(folder), *_files_of_a_run(folder))]
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or say "
            "--overwrite to replace them or --resume_from_checkpoint last to go on."
        )


def find_checkpoint(wanted: str, folder: Path) -> Path:
    """The checkpoint to go on from.

    Args:
        wanted (`str`): a checkpoint's folder, or `"last"` for the last complete one in `folder`.
        folder (`Path`): where the run writes.

    Raises:
        ValueError: if there is none, or files are missing or cut off that the training goes on from.
    """
    if wanted != "last":
        missing = [name for name in _FILES_TO_RESUME_FROM if not _is_whole(Path(wanted) / name)]
        if missing:
            raise ValueError(
                f"{wanted} is no checkpoint to resume from: {', '.join(missing)}: missing or cut off; take an earlier "
                "checkpoint."
            )
        return Path(wanted)
    complete = [path for path in _checkpoints(folder) if all(_is_whole(path / name) for name in _FILES_TO_RESUME_FROM)]
    if not complete:
        raise ValueError(f"{folder} holds no checkpoint to resume from; leave out --resume_from_checkpoint.")
    return complete[-1]


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint)


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder`, whose files move into `folder` when all of them are written.

    Args:
        folder (`Path`): made if need be; files of the same names are replaced.
        replace_run (`bool`): whether other files that an earlier run left there go, too.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        earlier = _files_of_a_run(folder) if replace_run else []
        moved = [path.replace(folder / path.name) for path in Path(temporary).iterdir()]
        for path in set(earlier) - set(moved):
            path.unlink()


def _files_of_a_run(folder: Path) -> list[Path]:
    return [path for pattern in _FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file()]


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix == ".pt":
        return zipfile.is_zipfile(path)
    if path.suffix == ".json":
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return False
    return True


def _checkpoints(folder: Path) -> list[Path]:
    steps = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in folder.glob("checkpoint-*")}
    return sorted((path for path, step in steps.items() if step.isdecimal()), key=lambda path: int(steps[path]))
