"""Sentence pairs from wherever they are: the Hub, tables, aligned text files, or the built-in number corpus."""

import csv
import glob
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, load_dataset
from datasets.fingerprint import Hasher

from .cache import cached_pairs
from .numbers import number_pairs


SPLITS = ("train", "validation", "test")
# What data sets of the Hub call their validation pairs, too.
_OF_VALIDATION = ("dev", "valid", "val")
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".tgz")
_LINES_AT_ONCE = 10_000
_TABLE_FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
# Options of a CSV file that say how cells are quoted, of the same names in Python's own csv.
_QUOTING = ("quotechar", "quoting", "escapechar", "doublequote")
# Options with which the first line may hold no names, or a row be no line of cells.
_NOT_LINES_OF_CELLS = ("header", "names", "column_names", "skiprows", "lineterminator", "comment")


def load_pairs(
    dataset: str | None = None,
    *,
    train_files: str | Path | Sequence[str | Path] | None = None,
    validation_files: str | Path | Sequence[str | Path] | None = None,
    test_files: str | Path | Sequence[str | Path] | None = None,
    source: str = "source",
    target: str = "target",
    **options: Any,
) -> DatasetDict:
    """Sentence pairs as a `DatasetDict` whose splits have the columns `source` and `target`.

    Give either a data set or files:

    - `load_pairs("numbers", source="en", target="de")`: the built-in corpus, see [`number_pairs`]; `source` and
      `target` are language codes ("en" and "de" where they are not given).
    - `load_pairs("user/name", source="en", target="de")`: a data set of the Hub; `source` and `target` are columns, or
      languages in a column `translation`. A split "dev", "valid" or "val" is that of validation, where there is
      none of this name and all splits are loaded.
    - `load_pairs(train_files="train.csv", source="english", target="german")`: a CSV, TSV, JSON lines or parquet file.
    - `load_pairs(train_files=["train.en", "train.de"])`: two aligned text files, line n of one translating line n of
      the other.

    Text and tables are copied into the cache of `datasets` (`HF_DATASETS_CACHE`), some rows at a time, and mapped into
    memory from there, so a corpus may be larger than the memory. Files that have not changed are copied once.

    Args:
        dataset (`str`, *optional*): `"numbers"`, or the name of a Hub data set.
        train_files, validation_files, test_files (*optional*): tables of one kind, or two aligned text files, for each
            split.
        source, target (`str`): columns or languages, see above.
        **options: for `"numbers"`, arguments of [`number_pairs`]; for a Hub data set or a table, of
            `datasets.load_dataset`, such as `name` (the configuration), `revision` or `delimiter`.

    Returns:
        `DatasetDict`: of the splits that were found or given, strings in both columns.

    Raises:
        FileNotFoundError: if a file does not exist.
        OSError: if the cache cannot be written.
        ValueError: if a file is empty, malformed or of another length than its partner, or a column is missing; the
            message names the file, and the line where there is one.
    """
    given = zip(SPLITS, (train_files, validation_files, test_files), strict=True)
    files = {split: _as_paths(split_files) for split, split_files in given if split_files is not None}
    if (dataset is None) == (not files):
        raise ValueError('give either a data set ("numbers", or a name on the Hub) or files.')
    if options.get("streaming"):
        raise ValueError("streaming pairs have no number; leave streaming out: they lie in a file, and not in memory.")
    if not isinstance(options.get("split", ""), str):
        raise ValueError(f'split is {options["split"]!r}; name one, such as "train[:1%]", or leave it out for all.')
    if files:
        return DatasetDict({split: _read_files(paths, source, target, options) for split, paths in files.items()})
    if dataset == "numbers":
        languages = {"source": "en", "target": "de"}
        return number_pairs(languages.get(source, source), languages.get(target, target), **options)
    loaded = load_dataset(dataset, **options)
    # "train[:1%]" is some of the split "train".
    if not isinstance(loaded, dict):
        name = str(options.get("split", "train")).partition("[")[0]
        return DatasetDict({name: _select_columns(loaded, source, target, f'{name} of "{dataset}"')})
    return DatasetDict(
        {
            _usual_name(name, loaded): _select_columns(split, source, target, f'{name} of "{dataset}"')
            for name, split in loaded.items()
        }
    )


def _usual_name(name: str, splits: dict[str, Dataset]) -> str:
    others = [each for each in _OF_VALIDATION if each in splits]
    return "validation" if "validation" not in splits and name in others[:1] else name


def _as_paths(files: str | Path | Sequence[str | Path]) -> list[Path]:
    paths = [Path(files)] if isinstance(files, (str, Path)) else [Path(file) for file in files]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; check the path.")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; it should hold sentences.")
    return paths


def _read_files(paths: list[Path], source: str, target: str, options: dict[str, Any]) -> Dataset:
    suffixes = {path.suffix for path in paths}
    if len(paths) == 1 or (len(suffixes) == 1 and suffixes <= set(_TABLE_FORMATS)):
        return _read_tables(paths, source, target, options)
    names = ", ".join(str(path) for path in paths)
    if len(paths) != 2 or suffixes & set(_TABLE_FORMATS):
        raise ValueError(
            f"one split has {len(paths)} files ({names}); give tables of one kind, or two aligned text files."
        )
    if options:
        raise ValueError(f"{', '.join(options)}: text files are read without options.")
    return _read_aligned(*paths)


def _read_aligned(source_path: Path, target_path: Path) -> Dataset:
    key = Hasher.hash([_identity(path) for path in (source_path, target_path)])
    return cached_pairs(key, lambda: _aligned_tables(source_path, target_path))


def _identity(path: Path) -> list[Any]:
    """What changes when a file is written, and when another comes into its place."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def _aligned_tables(source_path: Path, target_path: Path) -> Iterator[pa.Table]:
    sources, targets = iterate_lines(source_path), iterate_lines(target_path)
    begin = 0
    while True:
        source, target = list(islice(sources, _LINES_AT_ONCE)), list(islice(targets, _LINES_AT_ONCE))
        if len(source) != len(target):
            raise ValueError(
                f"{source_path} has {begin + len(source) + sum(1 for _ in sources)} lines and {target_path} has "
                f"{begin + len(target) + sum(1 for _ in targets)}; line n of one must translate line n of the other."
            )
        if not source:
            return
        yield pa.table({"source": source, "target": target})
        begin += len(source)


def iterate_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 text file, without what ends them; a byte order mark is dropped.

    Raises:
        ValueError: if the file is not UTF-8.
    """
    # Not str.splitlines(), which also splits at characters that occur inside sentences.
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line in file:
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        advice = "unpack it" if path.suffix in _PACKED else "convert it, for example with iconv"
        raise ValueError(f"{path} is not UTF-8 ({error}); {advice}.") from error


def _read_tables(paths: list[Path], source: str, target: str, options: dict[str, Any]) -> Dataset:
    """The rows of one table below those of the other."""
    suffix, origin = paths[0].suffix, ", ".join(map(str, paths))
    if suffix not in _TABLE_FORMATS:
        raise ValueError(
            f'{origin} is one file ending in "{suffix}"; a table ends in {", ".join(_TABLE_FORMATS)}, and plain '
            "text comes as two aligned files."
        )
    kind = _TABLE_FORMATS[suffix]
    if kind == "json" and "field" not in options:
        for path in paths:
            _check_json_lines(path)
    if kind == "csv":
        if suffix == ".tsv" and "sep" not in options:
            options = {"delimiter": "\t", **options}
        names = set.intersection(*(set(_check_csv(path, options)) for path in paths))
        # Other columns are not asked for, and may be of another type further down.
        only = {"usecols": [source, target]} if {source, target} <= names else {}
        # Left to itself, pandas takes words such as the German zero for missing values, and digits for numbers.
        options = {"keep_default_na": False, "converters": {source: str, target: str}, **only, **options}
    try:
        # What looks like a pattern is a name.
        files = [glob.escape(str(path)) for path in paths]
        table = load_dataset(kind, data_files=files, split="train", **options)
    except Exception as error:
        raise ValueError(f"{origin} cannot be read as {kind}: {error.__cause__ or error}") from error
    return _select_columns(table, source, target, origin)


def _check_csv(path: Path, options: dict[str, Any]) -> list[str]:
    """Every row has as many cells as the first; pandas would shift or fill the others silently.

    Returns:
        `list[str]`: the names in the first line; none where options say that they are elsewhere.
    """
    delimiter = options.get("delimiter", options.get("sep", ","))
    if len(delimiter) > 1 or any(name in options for name in _NOT_LINES_OF_CELLS):
        return []
    quoting = {name: options[name] for name in _QUOTING if name in options}
    with path.open(encoding=options.get("encoding", "utf-8-sig"), newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, strict=True, **quoting)
        try:
            header = next(rows, [])
            row = None
            for row in rows:
                if row and len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {rows.line_num}: {len(row)} cells, but the first line has {len(header)}; put "
                        f'cells that hold "{delimiter}" in quotation marks.'
                    )
            if row is None:
                raise ValueError(f"{path} has a first line with names, and no rows.")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} cannot be read as csv: {error}; convert it to UTF-8, with iconv, say, or give encoding=."
            ) from error
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {rows.line_num}: {error}. A cell with quotation marks in it is put in quotation marks, "
                "and its own are doubled; where all of them are text, give quoting=3."
            ) from error
    return header


def _check_json_lines(path: Path) -> None:
    for number, line in enumerate(iterate_lines(path), start=1):
        if number == 1 and line.lstrip().startswith("["):  # One array of objects instead of lines.
            return
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: a {type(row).__name__}; each line must be an object.")


def _select_columns(table: Dataset, source: str, target: str, origin: str) -> Dataset:
    if source == target:
        raise ValueError(f'source and target are both column "{source}"; name two.')
    if "translation" in table.column_names and source not in table.column_names:
        table = table.flatten()
        source, target = f"translation.{source}", f"translation.{target}"
    for column in (source, target):
        if column not in table.column_names:
            columns = ", ".join(f'"{name}"' for name in table.column_names)
            raise ValueError(
                f'{origin} has no column "{column}"; it has: {columns}. Name the right ones as source and target.'
            )
        if getattr(table.features[column], "dtype", None) not in ("string", "large_string"):
            raise ValueError(f'{origin}: column "{column}" holds {table.features[column]}, not text.')
    pairs = table.select_columns([source, target]).rename_columns({source: "source", target: "target"})
    for name in pairs.column_names:
        missing = pairs.data.column(name).null_count
        if missing:
            raise ValueError(f"{origin}: {missing} of {len(pairs)} rows have no {name}; fill or remove them.")
    return pairs
