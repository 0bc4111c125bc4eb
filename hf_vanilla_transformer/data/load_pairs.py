"""Load sentence pairs from the Hub, tables, aligned text files, or the built-in number corpus."""

import csv
import glob
import json
import logging
import shutil
from collections.abc import Collection, Iterator
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, config, load_dataset
from datasets.fingerprint import Hasher
from huggingface_hub.utils import WeakFileLock

from ..support.atomic_files import are_same_file, is_stream, whole_file
from ..support.user_errors import InputError, input_errors
from .number_corpus import number_pairs
from .pair_arguments import Files, file_names, languages_of
from .text_lines import TABLES, check_is_input, iterate_lines, opened, suffix_of


_TEXT = pa.schema({"source": pa.string(), "target": pa.string()})
_CSV_OPTIONS = ("delimiter", "quoting", "quotechar", "doublequote", "escapechar", "encoding", "column_names")
_NUMBER = r"^\s*[-+]?[0-9]+([.,][0-9]+)*\s*$"
_QUOTED = "if cells are quoted, give quoting=0 (--quoting 0)"
_UNQUOTED = "quoting=3 (--quoting 3) if no cell is quoted"

logger = logging.getLogger(__name__)


def load_pairs(
    dataset: str | None = None,
    *,
    train_files: Files | None = None,
    validation_files: Files | None = None,
    test_files: Files | None = None,
    source: str = "source",
    target: str = "target",
    **options: Any,
) -> DatasetDict:
    """Load sentence pairs as a `DatasetDict` whose splits have the columns `source` and `target`.

    Give either a data set or files:

    - `load_pairs("numbers", source="en", target="de")`: the built-in corpus, see [`number_pairs`]; `source` and
      `target` are language codes, by default "en" and "de".
    - `load_pairs("user/name", source="en", target="de")`: a data set of the Hub; `source` and `target` are columns, or
      languages in a column `translation`. A split "dev", "valid" or "val" is renamed "validation" if all splits are
      loaded and none has that name.
    - `load_pairs(train_files="train.csv", source="english", target="german")`: a CSV, TSV, JSON lines or parquet file.
    - `load_pairs(train_files=["a.en", "a.de", "b.en", "b.de"])`: one or more pairs of aligned text files, line n of
      the second translating line n of the first.

    Text and tables are copied, a chunk of rows at a time, into the cache of `datasets` (`HF_DATASETS_CACHE`) and
    memory-mapped from there, so a corpus may be larger than memory. Unchanged files are copied only once.

    Args:
        dataset (`str`, *optional*): `"numbers"`, or the name of a Hub data set.
        train_files, validation_files, test_files (*optional*): tables of one format, or aligned text files, for each
            split.
        source, target (`str`): columns or languages, see above.
        **options: for `"numbers"`, arguments of [`number_pairs`]; for a Hub data set or parquet, those of
            `datasets.load_dataset`, such as `name` (the configuration) or `revision`; for JSON, `field`, the one that
            holds the rows; for CSV and TSV, `encoding`, `column_names` of a file without a header, and `delimiter`,
            `quoting`, `quotechar`, `doublequote`, `escapechar` of Python's `csv`. A TSV file has no quoted cells
            unless `quoting=0` is given.

    Returns:
        `DatasetDict`: the splits found or given, with strings in both columns.

    Raises:
        FileNotFoundError: if a file does not exist.
        OSError: if the cache cannot be written.
        ValueError: if a file is empty, malformed or has another number of lines than its partner, text files are no
            pairs of one direction, or a column is missing; the message names the file and, if known, the line.
    """
    given = {"train": train_files, "validation": validation_files, "test": test_files}
    files = {split: _as_paths(split_files) for split, split_files in given.items() if split_files is not None}
    directions = sorted({"-".join(pair) for paths in files.values() for pair in languages_of(paths, same=True)})
    if len(directions) > 1:
        raise InputError(
            f"the names of the text files end in {' and '.join(directions)}; give one direction, and in each pair the "
            "file of the sources first."
        )
    if (dataset is None) == (not files):
        raise InputError('give either a data set ("numbers", or a name on the Hub) or files.')
    if options.get("streaming"):
        raise InputError("streamed pairs have no length; leave streaming out: memory-mapped pairs need little memory.")
    if not isinstance(options.get("split", ""), str):
        raise InputError(f'split is {options["split"]!r}; give one, such as "train[:1%]", or leave it out to load all.')
    if source == target:
        raise InputError(f'source and target are both "{source}"; give two columns or languages.')
    if files:
        with TemporaryDirectory() as folder:
            local = {split: [_without_pipe(path, folder) for path in paths] for split, paths in files.items()}
            return DatasetDict({split: _read_files(paths, source, target, options) for split, paths in local.items()})
    if dataset == "numbers":
        languages = {"source": "en", "target": "de"}
        return number_pairs(languages.get(source, source), languages.get(target, target), **options)
    with input_errors():
        loaded = load_dataset(dataset, **options)
    if isinstance(loaded, Dataset):  # "train[:1%]" is a part of the split "train".
        splits = {str(options.get("split", "train")).partition("[")[0]: loaded}
    else:
        validation = next((name for name in ("validation", "dev", "valid", "val") if name in loaded), None)
        splits = {"validation" if name == validation else name: split for name, split in loaded.items()}
    return DatasetDict(
        {name: _select_columns(split, source, target, f'{name} of "{dataset}"') for name, split in splits.items()}
    )


def _as_paths(files: Files) -> list[Path]:
    paths = [Path(name) for name in file_names(files)]
    for path in paths:
        check_is_input(path)
        if path.is_file() and path.stat().st_size == 0:
            raise InputError(f"{path} is empty; give a file with sentences.")
    suffixes = {suffix_of(path) for path in paths}
    if len(suffixes) > 1 if suffixes & set(TABLES) else len(paths) % 2 or not paths:
        raise InputError(
            f"one split is in {', '.join(map(str, paths))}; give tables of one format ({', '.join(TABLES)}), or two "
            "aligned text files, or several such pairs: a.en a.de b.en b.de."
        )
    for source, target in zip(paths[::2], paths[1::2], strict=False):
        if are_same_file(source, target):
            raise InputError(f"{source} and {target} are one file; give the sources and the targets.")
    return paths


def _without_pipe(path: Path, folder: str) -> Path:
    """The path, or a copy in `folder` of a pipe, which can be read only once."""
    if not is_stream(path):
        return path
    copy = Path(mkdtemp(dir=folder), path.name)
    with path.open("rb") as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


def _read_files(paths: list[Path], source: str, target: str, options: dict[str, Any]) -> Dataset:
    suffix, origin = suffix_of(paths[0]), ", ".join(map(str, paths))
    if suffix not in TABLES:
        if options:
            raise InputError(f"{', '.join(options)}: text files take no options; leave them out.")
        return _copied(paths, "lines", chain.from_iterable(map(_aligned_lines, paths[::2], paths[1::2])))
    if suffix == ".parquet":
        # load_dataset expands patterns, but these are names.
        files = [glob.escape(str(path)) for path in paths]
        try:
            table = load_dataset("parquet", data_files=files, split="train", **options)
        except Exception as error:
            raise InputError(f"{origin} cannot be read as parquet: {error.__cause__ or error}") from error
        return _select_columns(table, source, target, origin)
    read = _READERS[suffix]
    known = ("field",) if read is _json_rows else _CSV_OPTIONS
    if not options.keys() <= set(known):
        raise InputError(f"{', '.join(options)}: {suffix} files take {', '.join(known)} alone.")
    texts = (pair for path in paths for pair in _texts(path, read(path, **options), source, target))
    try:
        pairs = _copied(paths, (suffix, source, target, options), texts)
    except (LookupError, TypeError, UnicodeEncodeError) as error:  # Values of options; surrogates in JSON.
        raise InputError(f"{origin} cannot be read with the options {options}: {error}") from error
    # CSV has no types.
    for column, name in (("source", source), ("target", target)) if read is not _json_rows else ():
        if pc.all(pc.match_substring_regex(pairs.data.column(column), _NUMBER)).as_py():
            logger.warning('%s: column "%s" holds numbers alone; is it the column of the sentences?', origin, name)
        quoted = pc.match_substring_regex(pairs.data.column(column), '^".*"$')
        if suffix == ".tsv" and "quoting" not in options and pc.mean(pc.cast(quoted, "int8")).as_py() > 0.5:
            logger.warning('%s: most of column "%s" is in quotation marks, which stay; %s.', origin, name, _QUOTED)
    return pairs


def _copied(paths: list[Path], settings: Any, pairs: Iterator[tuple[str, str]]) -> Dataset:
    """Copy the pairs of files into a file of the cache, unless an earlier call has, and memory-map it."""
    states = [(str(path.resolve()), path.stat()) for path in paths]
    # These values change when a file is written or replaced.
    key = Hasher.hash([settings, [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in states]])
    copy = Path(config.HF_DATASETS_CACHE) / "pairs" / f"{key}.arrow"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(copy.with_suffix(".lock")):
        if not copy.is_file():
            # Dataset.from_generator takes eight times as long.
            with whole_file(copy, binary=True) as file, pa.ipc.new_stream(file, _TEXT) as writer:
                while chunk := list(islice(pairs, 10_000)):
                    writer.write_table(pa.table(list(zip(*chunk, strict=True)), schema=_TEXT))
    return Dataset.from_file(str(copy))


def _aligned_lines(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    sources, targets = iterate_lines(source_path), iterate_lines(target_path)
    for count, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            more = count + 1 + sum(1 for _ in chain(sources, targets))
            lines = (count, more) if source is None else (more, count)
            raise InputError(
                f"{source_path} has {lines[0]} lines and {target_path} has {lines[1]}; give files whose lines n "
                "translate each other."
            )
        yield source, target


def _texts(path: Path, rows: Iterator[tuple[int, Any]], source: str, target: str) -> Iterator[tuple[str, str]]:
    """The two cells of each row of a table; rows are numbered by the lines of the file."""
    line = 0
    for line, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {line}: a {type(row).__name__}; each line must be a JSON object.")
        if source not in row and isinstance(row.get("translation"), dict):
            row = row["translation"]
        for column in (source, target):
            _check_has(row, column, f"{path}, line {line},")
            if not isinstance(row[column], str):
                raise InputError(f'{path}, line {line}: column "{column}" holds {row[column]!r}, not text.')
        yield row[source], row[target]
    if not line:
        raise InputError(f"{path} has no rows; give a file with sentences.")


def _csv_rows(
    path: Path, delimiter: str = ",", quoting: Any = None, encoding: str = "utf-8-sig", **options: Any
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with the lines in which they end; each has as many cells as the header."""
    header = options.pop("column_names", None)
    advice = f'quote cells that contain "{delimiter}"'
    if quoting == csv.QUOTE_NONE:
        advice = _QUOTED
    with opened(path) as binary, TextIOWrapper(binary, encoding, newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, quoting=quoting or csv.QUOTE_MINIMAL, strict=True, **options)
        try:
            header = header or next(rows, [])
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, line {rows.line_num}: {len(row)} cells, but the header has {len(header)}; {advice}."
                    )
                if quoting is None and any("\n" in cell and delimiter in cell for cell in row):
                    raise InputError(
                        f'{path}, line {rows.line_num}: a quoted cell holds "{delimiter}" and a line break, so it may '
                        f"be several rows; give quoting=0 (--quoting 0) if it is one cell, or {_UNQUOTED}."
                    )
                yield rows.line_num, dict(zip(header, row, strict=True))
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {rows.line_num + 1} or later: {error}; convert it to UTF-8, or give its encoding "
                "(--encoding latin-1)."
            ) from error
        except csv.Error as error:
            raise InputError(
                f"{path}, line {rows.line_num}: {error}. Quote cells that contain quotation marks and double these, or "
                f"give {_UNQUOTED}."
            ) from error


def _json_rows(path: Path, field: str | None = None) -> Iterator[tuple[int, Any]]:
    """The rows of JSON lines, or of one array of objects, which may be a field of an object."""
    lines, number = iterate_lines(path), 1
    first = next(lines, "")
    try:
        if field is None and not first.lstrip().startswith("["):
            for number, line in enumerate(chain([first], lines), start=1):
                if line.strip():
                    yield number, json.loads(line)
            return
        content = json.loads("\n".join([first, *lines]))
    except json.JSONDecodeError as error:
        allowed = "write one object per line, or one array of objects"
        raise InputError(f"{path}, line {number}: not valid JSON ({error}); {allowed}.") from error
    if field is not None:
        _check_has(content, field, str(path))
        content = content[field]
    yield from enumerate(content, start=1)


_READERS: dict[str, Any] = {".csv": _csv_rows, ".json": _json_rows, ".jsonl": _json_rows}
# Translators' TSV has no quotation marks around cells.
_READERS[".tsv"] = partial(_csv_rows, delimiter="\t", quoting=csv.QUOTE_NONE)


def _check_has(names: Collection[str], column: str, origin: str) -> None:
    if column not in names:
        known = ", ".join(f'"{name}"' for name in names)
        advice = _QUOTED if f'"{column}"' in names else "give two of them as source and target"
        raise InputError(f'{origin} has no column "{column}"; it has: {known}; {advice}.')


def _select_columns(table: Dataset, source: str, target: str, origin: str) -> Dataset:
    if "translation" in table.column_names and source not in table.column_names:
        table = table.flatten()
        source, target = f"translation.{source}", f"translation.{target}"
    for column in (source, target):
        _check_has(table.column_names, column, origin)
        if getattr(table.features[column], "dtype", None) not in ("string", "large_string"):
            raise InputError(f'{origin}: column "{column}" holds {table.features[column]}, not text.')
    pairs = table.select_columns([source, target]).rename_columns({source: "source", target: "target"})
    for name in pairs.column_names:
        missing = pairs.data.column(name).null_count
        if missing:
            raise InputError(f"{origin}: {missing} of {len(pairs)} rows have no {name}; fill or remove them.")
    return pairs
