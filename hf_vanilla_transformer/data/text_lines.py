"""Read lines of UTF-8 text from files, gzip files, pipes and standard input."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path

from ..support.user_errors import InputError


_ONLY_CARRIAGE_RETURNS = "its lines end in carriage returns alone; convert it, for example with mac2unix."
_CONVERT_OR_DECOMPRESS = "convert it to UTF-8, for example with iconv, or decompress it"
# The most bytes to read at a time from a stream, which limits the memory. A slow writer delivers fewer.
_BYTES_AT_ONCE = 1 << 20


def check_is_input(path: Path) -> None:
    """Raise OSError if an input path is a folder or does not exist, so that a long job fails before it starts."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path.")


def is_gzip(path: Path) -> bool:
    """Return True if a file name ends in .gz."""
    return path.suffix.lower() == ".gz"


@contextmanager
def open_bytes(path: Path) -> Iterator[gzip.GzipFile | BufferedReader]:
    """Open a file or a pipe for reading bytes. The content is decompressed if the name ends in .gz.

    Raises:
        OSError: if the file does not exist or cannot be read.
        ValueError: if the file's name ends in .gz, but the file is not a complete gzip file.
    """
    open_file = gzip.open if is_gzip(path) else open
    with open_file(path, "rb") as file:
        try:
            # gzip finds a fault only when the caller reads, so the caller's block is inside of this `try`.
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file ({error}); compress it again.") from error


def iterate_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, gzip file or pipe, without line breaks and without the byte order mark.

    Raises:
        OSError, ValueError: see [`open_bytes`] and [`decode_lines`].
    """
    line_count = 0
    line = ""
    with open_bytes(path) as file:
        for line in decode_lines(file, str(path)):
            line_count += 1
            yield line
    # A file with only carriage returns is read as a single line. If it ends in "\n", `decode_lines` cannot detect this.
    if line_count == 1 and "\r" in line:
        raise InputError(f"{path}: {_ONLY_CARRIAGE_RETURNS}")


def read_lines(path: Path, count: int) -> list[str]:
    """Return the lines of a file that must have exactly one line for each of `count` sentence pairs.

    Raises ValueError if the number of lines differs, and the errors of [`iterate_lines`].
    """
    lines = list(iterate_lines(path))
    if len(lines) != count:
        raise InputError(f"{path} has {len(lines)} lines, but there are {count} pairs; give one line per pair.")
    return lines


def lines_as_they_arrive(stream: BufferedIOBase, name: str) -> Iterator[list[str]]:
    """Yield the lines of a stream as soon as they arrive, so that the lines of a slow writer are not delayed.

    Each item is a list with all complete lines that have arrived since the last one.

    Args:
        stream: a binary stream, such as standard input.
        name: the stream's name in error messages.
    """
    next_number = 1
    for lines in _split_as_it_arrives(stream):
        yield list(decode_lines(lines, name, first=next_number))
        next_number += len(lines)


def _split_as_it_arrives(stream: BufferedIOBase) -> Iterator[list[bytes]]:
    """Yield lists of the complete lines that have arrived, with their line breaks. The last line may have none."""
    unfinished_line = b""
    while True:
        # read1() waits only if no byte has arrived. It returns no bytes at the end of the stream.
        arrived = stream.read1(_BYTES_AT_ONCE)
        if not arrived:
            break
        # The last part is empty if a line has just ended.
        *complete_parts, unfinished_line = (unfinished_line + arrived).split(b"\n")
        if complete_parts:
            yield [part + b"\n" for part in complete_parts]
    if unfinished_line:
        yield [unfinished_line]


def decode_lines(lines: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """Decode UTF-8 lines, and remove their line breaks and the byte order mark.

    The lines must have been split only at newlines, because `str.splitlines()` would also split at characters that
    occur inside sentences.

    Args:
        lines: the encoded lines, including their line breaks.
        name: the file's name in error messages.
        first: the number of the first line in error messages.

    Raises:
        ValueError: if a line is not UTF-8, if it contains NUL characters, which are typical of UTF-16, or if the file's
            lines end only in carriage returns.
    """
    for number, line in enumerate(lines, start=first):
        encoding = "utf-8"
        if number == 1:
            # Only the first line may begin with a byte order mark, which this encoding removes.
            encoding = "utf-8-sig"
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x}"
            raise InputError(f"{name}, line {number}: {byte} is not UTF-8; {_CONVERT_OR_DECOMPRESS}.") from error
        if "\0" in text:
            raise InputError(f"{name}, line {number}: NUL characters, as in UTF-16; {_CONVERT_OR_DECOMPRESS}.")
        if number == 1 and _is_joined_by_carriage_returns(text):
            raise InputError(f"{name}: {_ONLY_CARRIAGE_RETURNS}")
        yield text.rstrip("\r\n")


def _is_joined_by_carriage_returns(first_line: str) -> bool:
    """Return True if the lines of a file end in carriage returns alone, so that the whole file was read as one line."""
    # A first line with a newline is not the whole file. In it, carriage returns are a part of the text.
    if first_line.endswith("\n"):
        return False
    # A single line may end in a carriage return. Only one inside the line separates it from a second line.
    return "\r" in first_line.rstrip("\r")


def one_line(text: str) -> str:
    """Replace line breaks in a text by spaces, so that line n of an output file matches line n of the input."""
    return " ".join(text.splitlines())
