"""Mark checkpoints as complete when they have been fully written, and find the complete checkpoints of a run.

The mark is a file in the checkpoint's folder. It lists all other files in the folder with their sizes in bytes.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from .atomic_files import flush, whole_file


logger = logging.getLogger(__name__)

MARK = "complete.json"
# The beginning of a checkpoint's name, before the number of updates. The Trainer has a constant for it, but importing
# that constant takes a second.
_PREFIX = "checkpoint-"


def mark_complete(checkpoint: Path) -> None:
    """Flush a checkpoint's files to the disk, and then mark the checkpoint as complete."""
    mark = checkpoint / MARK
    # An earlier mark is removed first, because it may list other files, and a mark must not list itself.
    _remove_mark(mark)

    sizes = _flush_files(checkpoint)
    # A file's name is stored in its folder, so the folders must be flushed as well.
    flush(checkpoint)
    flush(checkpoint.parent)

    # The mark is written last, so that it exists only if all other files are already on the disk. Its content is, for
    # example, {"files": {"config.json": 1024}}.
    with whole_file(mark, sync=True) as file:
        file.write(json.dumps({"files": sizes}, indent=2) + "\n")
    flush(checkpoint)


def _remove_mark(mark: Path) -> None:
    """Remove a mark, and the part of a mark that remains if a process was killed while it wrote it."""
    mark.unlink(missing_ok=True)
    mark.with_name(f".{MARK}.part").unlink(missing_ok=True)


def _flush_files(checkpoint: Path) -> dict[str, int]:
    """Flush everything in a checkpoint's folder to the disk, and return the size of each file by its relative path."""
    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        flush(path)
        if path.is_file():
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    return sizes


def complete_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the complete checkpoints in a run's folder, the newest first. Logs a warning for each incomplete one."""
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = fault_of(checkpoint)
        if fault is None:
            yield checkpoint
        else:
            logger.warning("skipping %s: %s.", checkpoint, fault)


def newest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a run's folder, or None if there is none. Nothing is logged."""
    for checkpoint in reversed(checkpoints_in(folder)):
        if fault_of(checkpoint) is None:
            return checkpoint
    return None


def checkpoints_in(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, such as `checkpoint-500`, sorted by their numbers of updates.

    Incomplete checkpoints are included.
    """
    checkpoints = []
    for path in folder.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and path.is_dir():
            checkpoints.append(path)
    return sorted(checkpoints, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the number of updates after which a checkpoint was written, for example 500 for `checkpoint-500`."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def fault_of(checkpoint: Path) -> str | None:
    """Return the reason why a checkpoint is incomplete, such as "trainer_state.json: missing or truncated".

    Returns None if the checkpoint is complete.
    """
    sizes = _read_sizes(checkpoint / MARK)
    if sizes is None:
        return f"it has no mark ({MARK}): the run stopped while writing it, or did not use CompleteCheckpoints"
    faulty_names = []
    for name, size in sizes.items():
        if not _is_intact(checkpoint / name, size):
            faulty_names.append(name)
    if faulty_names:
        return f"{', '.join(faulty_names)}: missing or truncated"
    return None


def _read_sizes(mark: Path) -> dict[str, int] | None:
    """Return the file sizes that [`mark_complete`] has written to a mark; None if there is no valid mark."""
    try:
        content = json.loads(mark.read_text(encoding="utf-8"))
        return dict(content["files"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def _is_intact(path: Path, size: int) -> bool:
    """Return True if a file exists and has the given size in bytes."""
    return path.is_file() and path.stat().st_size == size
