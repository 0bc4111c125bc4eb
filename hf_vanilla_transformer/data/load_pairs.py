"""Load sentence pairs from the Hub, tables, aligned text files, or the built-in number corpus."""

import csv
import glob
import gzip
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
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
from .text_lines import check_is_input, iterate_lines


# Names of the validation split on the Hub; the first that a data set has is it.
_VALIDATION_NAMES = ("validation", "dev", "valid", "val")
_LINES_PER_CHUNK = 10_000
_TEXT = pa.schema({"source": pa.string(), "target": pa.string()})
_TABLE_FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_NUMBER = r"^\s*[-+]?[0-9]+([.,][0-9]+)*\s*$"
# Quoting options that pandas and Python's csv module share.
_QUOTING_OPTIONS = ("quotechar", "quoting", "escapechar", "doublequote")
# Options that may change what the header or a row is; files are then not checked.
_UNCHECKED_OPTIONS = ("header", "names", "column_names", "skiprows", "lineterminator", "comment")

logger = logging.getLogger(__name__)


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
    """Load sentence pairs as a `DatasetDict` whose splits have the columns `source` and `target`.

    Give either a data set or files:

    - `load_pairs("numbers", source="en", target="de")`: the built-in corpus, see [`number_pairs`]; `source` and
      `target` are language codes, by default "en" and "de".
    - `load_pairs("user/name", source="en", target="de")`: a data set of the Hub; `source` and `target` are columns, or
      languages in a column `translation`. A split "dev", "valid" or "val" is renamed "validation" if all splits are
      loaded and none has that name.
    - `load_pairs(train_files="train.csv", source="english", target="german")`: a CSV, TSV, JSON lines or parquet file.
    - `load_pairs(train_files=["train.en", "train.de"])`: two aligned text files, line n of one translating line n of
      the other.

    Text and tables are copied, a chunk of rows at a time, into the cache of `datasets` (`HF_DATASETS_CACHE`) and
    memory-mapped from there, so a corpus may be larger than memory. Unchanged files are copied only once.

    Args:
        dataset (`str`, *optional*): `"numbers"`, or the name of a Hub data set.
        train_files, validation_files, test_files (*optional*): tables of one format, or two aligned text files, for
            each split.
        source, target (`str`): columns or languages, see above.
        **options: for `"numbers"`, arguments of [`number_pairs`]; for a Hub data set or a table, those of
            `datasets.load_dataset`, such as `name` (the configuration), `revision` or `delimiter`.

    Returns:
        `DatasetDict`: the splits found or given, with strings in both columns.

    Raises:
        FileNotFoundError: if a file does not exist.
        OSError: if the cache cannot be written.
        ValueError: if a file is empty, malformed or has another number of lines than its partner, or a column is
            missing; the message names the file and, if known, the line.
    """
    given = {"train": train_files, "validation": validation_files, "test": test_files}
    files = {split: _as_paths(split_files) for split, split_files in given.items() if split_files is not None}
    if (dataset is None) == (not files):
        raise InputError('give either a data set ("numbers", or a name on the Hub) or files.')
    if options.get("streaming"):
        raise InputError("streamed pairs have no length; leave streaming out: memory-mapped pairs need little memory.")
    if not isinstance(options.get("split", ""), str):
        raise InputError(f'split is {options["split"]!r}; give one, such as "train[:1%]", or leave it out to load all.')
    if files:
        with TemporaryDirectory() as folder:
            readable = {split: [_without_pipe(path, folder) for path in paths] for split, paths in files.items()}
            return DatasetDict(
                {split: _read_files(paths, source, target, options) for split, paths in readable.items()}
            )
    if dataset == "numbers":
        languages = {"source": "en", "target": "de"}
        return number_pairs(languages.get(source, source), languages.get(target, target), **options)
    with input_errors():
        loaded = load_dataset(dataset, **options)
    if isinstance(loaded, Dataset):  # "train[:1%]" is a part of the split "train".
        splits = {str(options.get("split", "train")).partition("[")[0]: loaded}
    else:
        validation = next((name for name in _VALIDATION_NAMES if name in loaded), None)
        splits = {"validation" if name == validation else name: split for name, split in loaded.items()}
    return DatasetDict(
        {name: _select_columns(split, source, target, f'{name} of "{dataset}"') for name, split in splits.items()}
    )


def _as_paths(files: str | Path | Sequence[str | Path]) -> list[Path]:
    paths = [Path(files)] if isinstance(files, (str, Path)) else [Path(file) for file in files]
    for path in paths:
        check_is_input(path)
        if path.is_file() and path.stat().st_size == 0:
            raise InputError(f"{path} is empty; give a file with sentences.")
    if len(paths) == 2 and are_same_file(*paths):
        raise InputError(f"{paths[0]} and {paths[1]} are one file; give the sources and the targets.")
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
    suffixes = {_suffix_of(path) for path in paths}
    if len(suffixes) == 1 and suffixes <= set(_TABLE_FORMATS):
        return _read_tables(paths, source, target, options)
    if len(paths) != 2 or suffixes & set(_TABLE_FORMATS):
        raise InputError(
            f"one split is in {', '.join(map(str, paths))}; give tables of one format ({', '.join(_TABLE_FORMATS)}), "
            "or two aligned text files."
        )
    if options:
        raise InputError(f"{', '.join(options)}: text files take no options; leave them out.")
    return _read_aligned(*paths)


def _suffix_of(path: Path) -> str:
    """The suffix that tells the format: ".csv" of a.CSV.gz."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _read_aligned(source_path: Path, target_path: Path) -> Dataset:
    """Copy two text files into one file of the cache, unless an earlier call has, and memory-map it."""
    states = [(path.resolve(), path.stat()) for path in (source_path, target_path)]
    # These values change when a file is written or replaced.
    key = Hasher.hash([(str(path), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in states])
    copy = Path(config.HF_DATASETS_CACHE) / "pairs" / f"{key}.arrow"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(copy.with_suffix(".lock")):
        if not copy.is_file():
            # Dataset.from_generator takes eight times as long.
            with whole_file(copy, binary=True) as file, pa.ipc.new_stream(file, _TEXT) as writer:
                for table in _aligned_tables(source_path, target_path):
                    writer.write_table(table)
    return Dataset.from_file(str(copy))


def _aligned_tables(source_path: Path, target_path: Path) -> Iterator[pa.Table]:
    sources, targets = iterate_lines(source_path), iterate_lines(target_path)
    begin = 0
    while True:
        source, target = list(islice(sources, _LINES_PER_CHUNK)), list(islice(targets, _LINES_PER_CHUNK))
        if len(source) != len(target):
            raise InputError(
                f"{source_path} has {begin + len(source) + sum(1 for _ in sources)} lines and {target_path} has "
                f"{begin + len(target) + sum(1 for _ in targets)}; give files whose lines n translate each other."
            )
        if not source:
            return
        yield pa.table({"source": source, "target": target})
        begin += len(source)


def _read_tables(paths: list[Path], source: str, target: str, options: dict[str, Any]) -> Dataset:
    """Read and concatenate tables."""
    suffix, origin = _suffix_of(paths[0]), ", ".join(map(str, paths))
    kind = _TABLE_FORMATS[suffix]
    if kind == "json" and "field" not in options:
        for path in paths:
            _check_json_lines(path)
    if kind == "csv":
        if suffix == ".tsv" and "sep" not in options:
            options = {"delimiter": "\t", **options}
        names = set.intersection(*(set(_check_csv(path, options)) for path in paths))
        # Other columns are not read, because their type may change further down.
        only = {"usecols": [source, target]} if {source, target} <= names else {}
        # By default pandas reads words such as the German "null" as missing values, and digits as numbers.
        options = {"keep_default_na": False, "converters": {source: str, target: str}, **only, **options}
    try:
        # load_dataset expands patterns, but these are names.
        files = [glob.escape(str(path)) for path in paths]
        table = load_dataset(kind, data_files=files, split="train", **options)
    except Exception as error:
        raise InputError(f"{origin} cannot be read as {kind}: {error.__cause__ or error}") from error
    pairs = _select_columns(table, source, target, origin)
    # CSV has no types.
    for column, name in (("source", source), ("target", target)) if kind == "csv" else ():
        if pc.all(pc.match_substring_regex(pairs.data.column(column), _NUMBER)).as_py():
            logger.warning('%s: column "%s" holds numbers alone; is it the column of the sentences?', origin, name)
    return pairs


def _check_csv(path: Path, options: dict[str, Any]) -> list[str]:
    """Check that every row has as many cells as the header; pandas would shift or fill cells silently.

    Returns:
        `list[str]`: the names in the header; empty if options say that the first line is not a header.
    """
    delimiter = options.get("delimiter", options.get("sep", ","))
    if len(delimiter) > 1 or any(name in options for name in _UNCHECKED_OPTIONS):
        return []
    quoting = {name: options[name] for name in _QUOTING_OPTIONS if name in options}
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding=options.get("encoding", "utf-8-sig"), newline="") as file:
        rows = csv.reader(file, delimiter=delimiter, strict=True, **quoting)
        try:
            header = next(rows, [])
            row = None
            for row in rows:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {rows.line_num}: {len(row)} cells, but the header has {len(header)}; quote "
                        f'cells that contain "{delimiter}".'
                    )
            if row is None:
                raise InputError(f"{path} has a header but no rows; give a file with sentences.")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}, line {rows.line_num + 1} or later: {error}; convert it to UTF-8, or give its encoding "
                "(--encoding latin-1)."
            ) from error
        except csv.Error as error:
            raise InputError(
                f"{path}, line {rows.line_num}: {error}. Quote cells that contain quotation marks and double these; if "
                "no cell is quoted, give quoting=3 (--quoting 3)."
            ) from error
    return header


def _check_json_lines(path: Path) -> None:
    for number, line in enumerate(iterate_lines(path), start=1):
        if number == 1 and line.lstrip().startswith("["):  # One array of objects instead of lines.
            return
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: a {type(row).__name__}; each line must be a JSON object.")


def _select_columns(table: Dataset, source: str, target: str, origin: str) -> Dataset:
    if source == target:
        raise InputError(f'source and target are both column "{source}"; give two columns.')
    if "translation" in table.column_names and source not in table.column_names:
        table = table.flatten()
        source, target = f"translation.{source}", f"translation.{target}"
    for column in (source, target):
        if column not in table.column_names:
            columns = ", ".join(f'"{name}"' for name in table.column_names)
            raise InputError(
                f'{origin} has no column "{column}"; it has: {columns}. Give two of them as source and target.'
            )
        if getattr(table.features[column], "dtype", None) not in ("string", "large_string"):
            raise InputError(f'{origin}: column "{column}" holds {table.features[column]}, not text.')
    pairs = table.select_columns([source, target]).rename_columns({source: "source", target: "target"})
    for name in pairs.column_names:
        missing = pairs.data.column(name).null_count
        if missing:
            raise InputError(f"{origin}: {missing} of {len(pairs)} rows have no {name}; fill or remove them.")
    return pairs
