"""Atomic writes: a file gets its name when all of it is written, so that no reader finds half a file."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


logger = logging.getLogger(__name__)


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, binary: bool = False, keeps_part: bool = False, sync: bool = False
) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces `path` on success; on an error `path` stays as it was.

    Args:
        path (`str` or `PathLike`): the file to write. A temporary file `.NAME.part` next to it holds the content until
            then.
        binary (`bool`): write bytes instead of UTF-8 text.
        keeps_part (`bool`): on an error keep the temporary file, unless it is empty, and log its path as a warning.
        sync (`bool`): flush the content to the disk before the file gets its name.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.part")
    try:
        with temporary.open("wb") if binary else temporary.open("w", encoding="utf-8") as file:
            yield file
        if sync:
            flush(temporary)
        temporary.replace(target)
    except BaseException:
        if keeps_part and temporary.exists() and temporary.stat().st_size:
            logger.warning("the part that was written is in %s", temporary)
        else:
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically, see [`whole_file`]."""
    with whole_file(path) as file:
        file.write(text)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, from the system's cache to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders.
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
