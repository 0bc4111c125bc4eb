"""Output files of the verbs."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..files import whole_file


def check_can_write(*paths: str | None) -> None:
    """Check before the work that its output files can be written.

    Raises:
        OSError: if the folder of a file does not exist or is read-only, or a folder has the file's name.
        ValueError: if two outputs have the same path.
    """
    given = [Path(path) for path in paths if path is not None]
    if len(set(given)) < len(given):
        raise ValueError(f"{given[0]} is given twice; write to different files.")
    for path in given:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; name a file to write.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} does not exist; create the folder before writing {path}.")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path.parent} is read-only; choose another folder for {path.name}.")


def one_line(text: str) -> str:
    """A text without line breaks, so that line n of an output belongs to line n of the input."""
    return " ".join(text.splitlines())


@contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """A file that appears when it is complete, or standard output."""
    if path is not None:
        with whole_file(path, keeps_part=True) as file:
            yield file
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    yield sys.stdout
