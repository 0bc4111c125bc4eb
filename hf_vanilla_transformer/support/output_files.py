"""Check before a long job that its output files can be written, and give each file its name when it is complete."""

import gzip
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import IO, Any

from .atomic_files import are_same_file, is_stream, whole_file
from .user_errors import InputError


# Patterns of the files that are read from a model's folder when the model is loaded.
_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.index.json", "tokenizer*", "*.py")


def check_can_write(*paths: str | None, inputs: Iterable[str | Path | None] = (), made: Iterable[Path] = ()) -> None:
    """Check before a long job that its output files can be written, and differ from each other and from its inputs.

    Raises OSError if a file cannot be written, and InputError if two files are the same.

    Args:
        *paths: the output files. None and streams are skipped.
        inputs: the files that the job reads, and the folders of the models that it loads. None is skipped.
        made: absolute paths of folders that the job will create, so they need not exist yet.
    """
    output_paths = _select_files(paths)
    _check_outputs_differ(output_paths)

    input_files = _find_input_files(inputs)
    for path in output_paths:
        # A file in a folder that does not exist yet cannot overwrite anything.
        if _is_in_folder_to_create(path, made):
            continue
        _check_location(path)
        _check_is_no_input(path, input_files)


def _select_files(paths: Iterable[str | None]) -> list[str]:
    """Return the paths of files, without None and without streams."""
    return [path for path in paths if path is not None and not is_stream(path)]


def _check_outputs_differ(output_paths: list[str]) -> None:
    """Raise InputError if two outputs are the same file."""
    for path, other_path in combinations(output_paths, 2):
        if are_same_file(path, other_path):
            raise InputError(f"{path} and {other_path} are one file; write to different files.")


def _is_in_folder_to_create(path: str, made: Iterable[Path]) -> bool:
    """Return True if a file's folder does not exist yet, and is one of the folders that the job will create."""
    folder = Path(os.path.realpath(path)).parent
    return folder in made and not folder.exists()


def _check_is_no_input(path: str, input_files: Iterable[Path]) -> None:
    """Raise InputError if an output is one of the job's inputs."""
    for input_file in input_files:
        if are_same_file(path, input_file):
            raise InputError(f"{path} is also an input, {input_file}; write to another file.")


def _find_input_files(inputs: Iterable[str | Path | None]) -> list[Path]:
    """Return the input files of a job, including the files that are read from the folders of models.

    An input is the path of a file or of a model's folder. Inputs that are None are skipped.
    """
    paths = [Path(path) for path in inputs if path is not None]
    input_files = list(paths)
    # Weights, for example, match the pattern "*.safetensors". If a path is not a folder, glob() finds nothing.
    for folder in paths:
        for pattern in _MODEL_FILES:
            input_files.extend(folder.glob(pattern))
    return input_files


def _check_location(path: str) -> None:
    """Raise OSError if no file can be written at a path.

    The path may be a folder or a link to itself, or the folder that contains it may be missing or read-only.
    """
    # realpath() follows all links, except for a link that leads back to itself.
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path or 'an empty path'} is a folder; name a file to write.")
    if target.is_symlink():
        raise OSError(f"{path} is a link to itself; name a file to write.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{Path(path).parent} does not exist; create the folder before writing {path}.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"{target.parent} is read-only; choose another folder for {target.name}.")


@contextmanager
def open_output(path: str | None) -> Iterator[IO[Any]]:
    """Open an output file for writing text, or yield standard output if the path is None.

    The file appears under its name only when it is complete. If the name ends in .gz, the file is compressed. If the
    block raises an error, the text that was already written stays in a temporary file in the same folder.
    """
    if path is None:
        # The system's locale may set a different encoding. A notebook replaces standard output by an object whose
        # encoding cannot be changed.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    if path.lower().endswith(".gz"):
        with (
            whole_file(path, binary=True, keeps_part=True) as file,
            gzip.open(file, "wt", encoding="utf-8") as text_file,
        ):
            yield text_file
    else:
        with whole_file(path, keeps_part=True) as file:
            yield file
