"""Define the table formats from which sentence pairs can be read, such as CSV. To add one, extend `TABLE_FORMATS`.

This module imports neither `datasets` nor `pyarrow`, whose imports are slow, because the command line needs the names
of the formats at startup.
"""

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ..support.user_errors import InputError
from .text_lines import is_gzip, iterate_lines, open_bytes


ADVICE_IF_QUOTED = "if cells are quoted, give quoting=0 (--quoting 0)"
_ADVICE_IF_NOT_QUOTED = "quoting=3 (--quoting 3) if no cell is quoted"
_CSV_OPTIONS = ("delimiter", "quoting", "quotechar", "doublequote", "escapechar", "encoding", "column_names")

# The number of the line in which a row ends, and the row: a dict of cells, or any other JSON value.
NumberedRow = tuple[int, object]


@dataclass(frozen=True)
class RowFormat:
    """A table format that this package reads row by row, such as CSV.

    Args:
        read_rows: a function that takes a path, and options by name, and yields the numbered rows of the file.
        options: the names of the `load_pairs` options that `read_rows` takes.
        has_types: True if the format distinguishes text from numbers, so that a column of numbers is an error.
        keeps_quotes: True if quotation marks around cells belong to the text, unless the option `quoting` is given.
    """

    read_rows: Callable[..., Iterator[NumberedRow]]
    options: tuple[str, ...]
    has_types: bool = False
    keeps_quotes: bool = False


@dataclass(frozen=True)
class DatasetsFormat:
    """A table format that `datasets.load_dataset` reads. `builder` is its name for the format, such as "parquet"."""

    builder: str


def suffix_of(path: str | Path) -> str:
    """Return a file name's suffix in lower case and without .gz, for example ".csv" for "a.CSV.gz"."""
    path = Path(path)
    if is_gzip(path):
        path = Path(path.stem)
    return path.suffix.lower()


def is_table(path: str | Path) -> bool:
    """Return True if a file's suffix belongs to a table format. All other files are read as aligned text files."""
    return suffix_of(path) in TABLE_FORMATS


def check_has_column(columns: Collection[str], column: str, origin: str) -> None:
    """Raise ValueError if a table lacks a column. The message begins with `origin` and lists the table's columns."""
    if column in columns:
        return
    listed_columns = ", ".join(f'"{name}"' for name in columns)
    # If the header has the column in quotation marks, they were read as a part of its name.
    column_in_quotes = f'"{column}"'
    if column_in_quotes in columns:
        advice = ADVICE_IF_QUOTED
    else:
        advice = "give two of them as source and target"
    raise InputError(f'{origin} has no column "{column}"; it has: {listed_columns}; {advice}.')


def _read_csv_rows(
    path: Path,
    delimiter: str = ",",
    quoting: Literal[0, 1, 2, 3] | None = None,
    encoding: str = "utf-8-sig",
    column_names: list[str] | None = None,
    **options: Any,
) -> Iterator[NumberedRow]:
    """Yield each row of a CSV file as a dict, together with the number of the line in which the row ends.

    Raises ValueError if a row has fewer or more cells than the header, or if the file is malformed or has a different
    encoding.

    Args:
        path: the file, which may be compressed with gzip.
        delimiter, quoting: settings of Python's `csv`. If `quoting` is None, cells may be quoted, but a quoted cell
            that looks like several rows is an error.
        encoding: the file's encoding; by default UTF-8, with or without a byte order mark.
        column_names: the column names, for a file without a header.
        **options: further settings of Python's `csv`.
    """
    quoting_of_reader: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL
    if quoting is not None:
        quoting_of_reader = quoting
    # With newline="", line breaks inside quoted cells stay as they are, as `csv` requires.
    with open_bytes(path) as binary_file, TextIOWrapper(binary_file, encoding, newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, quoting=quoting_of_reader, strict=True, **options)
        with _errors_with_lines(path, rows):
            header = _read_header(rows, column_names)
            for row in rows:
                is_empty_line = not row
                if is_empty_line:
                    continue
                # This gets `quoting`, which may be None, because only then does it reject a quoted cell that looks like
                # several rows.
                fault = _fault_of_row(row, header, delimiter, quoting)
                if fault is not None:
                    raise InputError(f"{path}, line {rows.line_num}: {fault}.")
                yield rows.line_num, dict(zip(header, row, strict=True))


def _read_header(rows: Iterator[list[str]], column_names: list[str] | None) -> list[str]:
    """Return the column names, by default those in the first row. A file without rows has none."""
    if column_names:
        return column_names
    return next(rows, [])


def _fault_of_row(row: list[str], header: list[str], delimiter: str, quoting: int | None) -> str | None:
    """Return what is wrong with a row of a CSV file, together with advice, or None if the row is as it should be."""
    if len(row) != len(header):
        # The usual cause is a text that contains the delimiter. With QUOTE_NONE, quotation marks are ordinary
        # characters, so a delimiter ends a cell even between them.
        advice = f'quote cells that contain "{delimiter}"'
        if quoting == csv.QUOTE_NONE:
            advice = ADVICE_IF_QUOTED
        return f"{len(row)} cells, but the header has {len(header)}; {advice}"
    # If the user gives `quoting`, every cell is taken as it is.
    if quoting is None and _has_cell_like_several_rows(row, delimiter):
        return (
            f'a quoted cell holds "{delimiter}" and a line break, so it may be several rows; give quoting=0 '
            f"(--quoting 0) if it is one cell, or {_ADVICE_IF_NOT_QUOTED}"
        )
    return None


@contextmanager
def _errors_with_lines(path: Path, rows: Any) -> Iterator[None]:
    """Convert decoding errors and `csv` errors into errors that name the file and the line, and advise what to do.

    Args:
        path: the file.
        rows: its `csv.reader`. The attribute `line_num` is the number of lines that were read.
    """
    try:
        # The caller reads the rows while the block runs, so the errors are raised here. Other errors pass unchanged.
        yield
    except UnicodeDecodeError as error:
        # The file is decoded in blocks, so the wrong byte may be in the next line or in a later one.
        raise InputError(
            f"{path}, line {rows.line_num + 1} or later: {error}; convert it to UTF-8, or give its encoding "
            "(--encoding latin-1)."
        ) from error
    except csv.Error as error:
        raise InputError(
            f"{path}, line {rows.line_num}: {error}. Quote cells that contain quotation marks and double these, or "
            f"give {_ADVICE_IF_NOT_QUOTED}."
        ) from error


def _has_cell_like_several_rows(row: list[str], delimiter: str) -> bool:
    """Return True if a cell looks like several rows, because it contains a line break and the delimiter.

    Such a cell may be caused by a stray quotation mark, which joins all text up to the next quotation mark.
    """
    cells_with_line_breaks = [cell for cell in row if "\n" in cell]
    return any(delimiter in cell for cell in cells_with_line_breaks)


def _read_json_rows(path: Path, field: str | None = None) -> Iterator[NumberedRow]:
    """Yield the objects in a JSON file, each with its line number or its position in the array, counted from 1.

    The file has one object per line (JSON lines), or a single array of objects. It may be compressed with gzip. Raises
    ValueError if it is not valid JSON, or does not have the field.

    Args:
        field: the field that contains the array, if the file is a single object.
    """
    lines = iterate_lines(path)
    first_line = next(lines, "")
    all_lines = chain([first_line], lines)
    # An array begins with a bracket, and only a single object has fields to choose from.
    is_json_lines = field is None and not first_line.lstrip().startswith("[")
    if is_json_lines:
        yield from _parse_json_lines(all_lines, path)
    else:
        yield from enumerate(_parse_json_array(all_lines, path, field), start=1)


def _parse_json_lines(lines: Iterable[str], path: Path) -> Iterator[NumberedRow]:
    """Yield the object in each line that is not blank, with its line number."""
    for line_number, line in enumerate(lines, start=1):
        if line.strip():
            yield line_number, _parse_json(line, path, line_number)


def _parse_json_array(lines: Iterable[str], path: Path, field: str | None) -> Iterable[object]:
    """Return the array that the lines of a file form, or the array in a field of the object that they form."""
    content: Any = _parse_json("\n".join(lines), path, line_number=1)
    if field is None:
        return content
    check_has_column(content, field, str(path))
    return content[field]


def _parse_json(text: str, path: Path, line_number: int) -> object:
    """Parse JSON. If the text is not valid, raises ValueError with the path and the number of its first line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {line_number}: not valid JSON ({error}); write one object per line, or one array of objects."
        ) from error


# The formats by file suffix, in the order in which messages list them.
TABLE_FORMATS: dict[str, RowFormat | DatasetsFormat] = {
    ".csv": RowFormat(_read_csv_rows, _CSV_OPTIONS),
    # TSV files with translations usually have no quotation marks around cells.
    ".tsv": RowFormat(partial(_read_csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE), _CSV_OPTIONS, keeps_quotes=True),
    ".json": RowFormat(_read_json_rows, ("field",), has_types=True),
    ".jsonl": RowFormat(_read_json_rows, ("field",), has_types=True),
    ".parquet": DatasetsFormat("parquet"),
}
