"""Mark checkpoints as complete, and find the complete ones.

The mark of a checkpoint is a file that lists every other file of the checkpoint with its size in bytes.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from .atomic_files import flush, whole_file


logger = logging.getLogger(__name__)

MARK = "complete.json"
# The beginning of a checkpoint's name, before the number of updates. The Trainer has a constant for it, but importing
# that takes a second.
_PREFIX = "checkpoint-"


def mark_complete(checkpoint: Path) -> None:
    """Flush a checkpoint's files to the disk, then mark the checkpoint as complete."""
    mark = checkpoint / MARK
    mark.unlink(missing_ok=True)
    # A process that was killed while it wrote the mark leaves this file.
    mark.with_name(f".{MARK}.part").unlink(missing_ok=True)

    sizes = {}
    for path in sorted(checkpoint.rglob("*")):
        flush(path)
        if path.is_file():
            sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
    # The names of files are content of their folders.
    flush(checkpoint)
    flush(checkpoint.parent)

    with whole_file(mark, sync=True) as file:
        file.write(json.dumps({"files": sizes}, indent=2) + "\n")
    flush(checkpoint)


def complete_checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the complete checkpoints of a run, the newest first, and log a warning for each incomplete one."""
    for checkpoint in reversed(checkpoints_in(folder)):
        fault = fault_of(checkpoint)
        if fault is None:
            yield checkpoint
        else:
            logger.warning("skipping %s: %s.", checkpoint, fault)


def newest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, None without one. Unlike `complete_checkpoints`, log nothing."""
    for checkpoint in reversed(checkpoints_in(folder)):
        if fault_of(checkpoint) is None:
            return checkpoint
    return None


def checkpoints_in(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, complete or not, sorted by their number of updates."""
    checkpoints = []
    for path in folder.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and path.is_dir():
            checkpoints.append(path)
    return sorted(checkpoints, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the number of updates after which a checkpoint was written, which is a part of its name."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def fault_of(checkpoint: Path) -> str | None:
    """Describe why a checkpoint is not complete. Returns None if it is complete."""
    try:
        sizes = dict(json.loads((checkpoint / MARK).read_text(encoding="utf-8"))["files"])
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return f"it has no mark ({MARK}): the run stopped while writing it, or did not use CompleteCheckpoints"
    faulty_names = []
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            faulty_names.append(name)
    if faulty_names:
        return f"{', '.join(faulty_names)}: missing or truncated"
    return None
