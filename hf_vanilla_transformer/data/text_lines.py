"""Lines of UTF-8 text from files, compressed files, pipes and standard input."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from ..support.user_errors import InputError


_CARRIAGE_RETURNS = "carriage returns alone end its lines; convert it, for example with mac2unix."
_ADVICE = "convert it to UTF-8, for example with iconv, or decompress it"


# Suffixes of tables; other files of pairs are aligned text files.
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def check_is_input(path: Path) -> None:
    """Raise OSError if a path names neither a file nor a pipe, before the work that comes before reading it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path.")


def suffix_of(path: str | Path) -> str:
    """The suffix of a name without .gz, in lower case: ".csv" of a.CSV.gz."""
    path = Path(path)
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file or pipe for reading bytes; a .gz is decompressed.

    Raises:
        OSError: if there is no such file, or it cannot be read.
        ValueError: if the file is not a whole gzip file although its name ends in .gz.
    """
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        try:
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file ({error}); compress it again.") from error


def iterate_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file or pipe without line ends and byte order mark; a .gz is decompressed.

    Raises:
        OSError, ValueError: see [`opened`] and [`decode_lines`].
    """
    lines, line = 0, ""
    with opened(path) as file:
        for line in decode_lines(file, str(path)):
            lines += 1
            yield line
    if lines == 1 and "\r" in line:
        raise InputError(f"{path}: {_CARRIAGE_RETURNS}")


def read_lines(path: Path, count: int) -> list[str]:
    """The lines of a file with one for each pair; raises as [`iterate_lines`], and ValueError for another number."""
    lines = list(iterate_lines(path))
    if len(lines) != count:
        raise InputError(f"{path} has {len(lines)} lines, but there are {count} pairs; give one line per pair.")
    return lines


def lines_as_they_arrive(stream: BufferedIOBase, name: str) -> Iterator[list[str]]:
    """Yield lists of lines: all that a stream holds at the time, so that a slow writer's lines do not wait."""
    rest, number = b"", 1
    while arrived := stream.read1(1 << 20):
        *lines, rest = (rest + arrived).split(b"\n")
        if lines:
            yield list(decode_lines([line + b"\n" for line in lines], name, number))
            number += len(lines)
    if rest:
        yield list(decode_lines([rest], name, number))


def decode_lines(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """Decode lines of UTF-8 without line ends and byte order mark; errors have the name, and count from `first`.

    Raises:
        ValueError: if a line is not UTF-8, or holds NUL characters, as UTF-16 does, or if carriage returns alone end
            the lines.
    """
    # Not str.splitlines(), which splits at characters that occur inside sentences.
    for number, line in enumerate(lines, start=first):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x}"
            raise InputError(f"{name}, line {number}: {byte} is not UTF-8; {_ADVICE}.") from error
        if "\0" in text:
            raise InputError(f"{name}, line {number}: NUL characters, as in UTF-16; {_ADVICE}.")
        if number == 1 and not text.endswith("\n") and "\r" in text.rstrip("\r"):
            raise InputError(f"{name}: {_CARRIAGE_RETURNS}")
        yield text.rstrip("\r\n")


def one_line(text: str) -> str:
    """A text without line breaks, so that line n of an output belongs to line n of the input."""
    return " ".join(text.splitlines())
