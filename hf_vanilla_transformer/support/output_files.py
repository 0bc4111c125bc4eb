"""Output files: checked before the work, and complete when they get their name."""

import gzip
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import IO, cast

from .atomic_files import are_same_file, is_stream, whole_file


# What loading reads from the folder of a model.
_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.index.json", "tokenizer*", "*.py")


def check_can_write(*paths: str | None, inputs: Iterable[str | Path | None] = ()) -> None:
    """Check before the work that its output files can be written, and that they replace none of its inputs.

    Args:
        *paths: the outputs, those that were given.
        inputs: files that the verb reads, and folders of models.

    Raises:
        OSError: if the folder of a file does not exist or is read-only, or the path is a folder or a circle of links.
        ValueError: if an output is an input too, or two outputs are one file.
    """
    given = [path for path in paths if path is not None and not is_stream(path)]
    for one, other in combinations(given, 2):
        if are_same_file(one, other):
            raise ValueError(f"{one} and {other} are one file; write to different files.")
    for path in given:
        _check_target(path)
        for read in _files_of(inputs):
            if are_same_file(path, read):
                raise ValueError(f"{path} is also an input, {read}; write to another file.")


def _check_target(path: str) -> None:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path or 'an empty path'} is a folder; name a file to write.")
    if target.is_symlink():
        raise OSError(f"{path} is a link to itself; name a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{Path(path).parent} does not exist; create the folder before writing {path}.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"{target.parent} is read-only; choose another folder for {target.name}.")


def _files_of(inputs: Iterable[str | Path | None]) -> Iterator[Path]:
    for path in (Path(each) for each in inputs if each is not None):
        if path.is_dir():
            yield from (file for pattern in _MODEL_FILES for file in path.glob(pattern))
        else:
            yield path


@contextmanager
def open_output(path: str | None) -> Iterator[IO[str]]:
    """A file that appears when it is complete, compressed if its name ends in .gz, or standard output."""
    if path is not None and path.lower().endswith(".gz"):
        with (
            whole_file(path, binary=True, keeps_part=True) as file,
            gzip.open(file, "wt", encoding="utf-8") as compressed,
        ):
            yield cast(IO[str], compressed)
        return
    if path is not None:
        with whole_file(path, keeps_part=True) as file:
            yield file
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    yield sys.stdout
