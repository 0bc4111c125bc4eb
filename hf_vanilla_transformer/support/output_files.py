"""Output files: checked before the work, and complete when they get their name."""

import gzip
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import combinations
from pathlib import Path
from typing import IO, Any

from .atomic_files import are_same_file, is_stream, whole_file
from .user_errors import InputError


# What loading reads from the folder of a model.
_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.index.json", "tokenizer*", "*.py")


def check_can_write(*paths: str | None, inputs: Iterable[str | Path | None] = (), made: Iterable[Path] = ()) -> None:
    """Check before the work that its output files can be written, and replace none of its inputs or each other.

    Inputs may be folders of models; the work makes the folders `made`, which are absolute. Raises OSError where a file
    cannot be written, and ValueError for equal files.
    """
    given = [path for path in paths if path is not None and not is_stream(path)]
    for one, other in combinations(given, 2):
        if are_same_file(one, other):
            raise InputError(f"{one} and {other} are one file; write to different files.")
    read = [Path(each) for each in inputs if each is not None]
    read += [file for folder in read for pattern in _MODEL_FILES for file in folder.glob(pattern)]
    for path in given:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(f"{path or 'an empty path'} is a folder; name a file to write.")
        if target.is_symlink():
            raise OSError(f"{path} is a link to itself; name a file to write.")
        if not target.parent.exists() and target.parent in made:
            continue
        if not target.parent.is_dir():
            raise FileNotFoundError(f"{Path(path).parent} does not exist; create the folder before writing {path}.")
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(f"{target.parent} is read-only; choose another folder for {target.name}.")
        for file in read:
            if are_same_file(path, file):
                raise InputError(f"{path} is also an input, {file}; write to another file.")


@contextmanager
def open_output(path: str | None) -> Iterator[IO[Any]]:
    """A file that appears when it is complete, compressed if its name ends in .gz, or standard output."""
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    is_gzip = path.lower().endswith(".gz")
    with (
        whole_file(path, binary=is_gzip, keeps_part=True) as file,
        gzip.open(file, "wt", encoding="utf-8") if is_gzip else nullcontext(file) as opened,
    ):
        yield opened
