"""Marks of complete checkpoints: a file that lists every other file with its size in bytes."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from .atomic_files import flush, whole_file


logger = logging.getLogger(__name__)

MARK = "complete.json"
# Before the number of updates in the name of a checkpoint. Importing the Trainer's name for it takes a second.
_PREFIX = "checkpoint-"


def mark_complete(checkpoint: Path) -> None:
    """Flush a checkpoint's files to the disk, then mark it as complete."""
    (checkpoint / MARK).unlink(missing_ok=True)
    # A process that was killed while it wrote the mark leaves this file.
    (checkpoint / f".{MARK}.part").unlink(missing_ok=True)
    contents = sorted(checkpoint.rglob("*"))
    for path in (*contents, checkpoint, checkpoint.parent):
        flush(path)
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in contents if path.is_file()}
    with whole_file(checkpoint / MARK, sync=True) as file:
        file.write(json.dumps({"files": sizes}, indent=2) + "\n")
    flush(checkpoint)


def complete_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the complete checkpoints of a run, newest first; log a warning for each that is skipped."""
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = fault_of(checkpoint)
        if fault is None:
            yield checkpoint
        else:
            logger.warning("skipping %s: %s.", checkpoint, fault)


def newest_complete(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, without a word about others."""
    complete = [checkpoint for checkpoint in checkpoints_in(folder) if fault_of(checkpoint) is None]
    return complete[-1] if complete else None


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints in a folder, complete or not, by step."""
    names = {path: path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")}
    return sorted((path for path, step in names.items() if step.isdecimal() and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def fault_of(checkpoint: Path) -> str | None:
    """Why a checkpoint is not complete; None if it is."""
    try:
        sizes = dict(json.loads((checkpoint / MARK).read_text(encoding="utf-8"))["files"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return f"it has no mark ({MARK}): the run stopped while writing it, or did not use CompleteCheckpoints"
    files = {name: checkpoint / name for name in sizes}
    wrong = [name for name, path in files.items() if not path.is_file() or path.stat().st_size != sizes[name]]
    return f"{', '.join(wrong)}: missing or truncated" if wrong else None
