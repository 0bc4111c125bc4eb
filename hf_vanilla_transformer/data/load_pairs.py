"""Load sentence pairs from the Hub, from tables, from aligned text files or from the built-in number corpus."""

import glob
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest
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
from .pair_arguments import Files, directions_of, file_names
from .table_formats import (
    ADVICE_IF_QUOTED,
    TABLE_FORMATS,
    DatasetsFormat,
    NumberedRow,
    RowFormat,
    check_has_column,
    is_table,
    suffix_of,
)
from .text_lines import check_is_input, iterate_lines


_PAIR_SCHEMA = pa.schema({"source": pa.string(), "target": pa.string()})
# Large enough that writing takes little time compared with reading, and small enough to fit in any memory.
_PAIRS_PER_CHUNK = 10_000
# A cell that is a number, such as "-1,234.5".
_NUMBER = r"^\s*[-+]?[0-9]+([.,][0-9]+)*\s*$"
# Names of the validation split in Hub data sets, the most common one first.
_VALIDATION_NAMES = ("validation", "dev", "valid", "val")

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

    Give either a data set or files. For example:

    - `load_pairs("numbers", source="en", target="de")` generates the built-in corpus, see [`number_pairs`].
    - `load_pairs("user/name", source="en", target="de")` loads a data set from the Hub. If all splits are loaded and
      none is named "validation", a split named "dev", "valid" or "val" is renamed to "validation".
    - `load_pairs(train_files="train.csv", source="english", target="german")` reads a CSV, TSV, JSON lines or parquet
      file.
    - `load_pairs(train_files=["a.en", "a.de", "b.en", "b.de"])` reads pairs of aligned text files, in which line n of
      the second file translates line n of the first.

    Files are copied into the cache of `datasets` (`HF_DATASETS_CACHE`), only once unless they change, and memory-mapped
    from there, so a corpus may be larger than the memory.

    Args:
        dataset (`str`, *optional*): `"numbers"`, or the name of a Hub data set.
        train_files, validation_files, test_files (*optional*): the files of each split: tables of one format, or
            aligned text files.
        source, target (`str`): names of columns, or languages in a column `translation`. For `"numbers"`, they are
            language codes, by default "en" and "de".
        **options: options that depend on where the pairs come from:

            - `"numbers"`: arguments of [`number_pairs`];
            - a Hub data set or parquet: arguments of `datasets.load_dataset`, such as `name` (the configuration) or
              `revision`;
            - JSON: `field`, the field that contains the rows;
            - CSV and TSV: `encoding`; `column_names` for a file without a header; and `delimiter`, `quoting`,
              `quotechar`, `doublequote` and `escapechar`, which Python's `csv` defines. Pass `quoting=0` if the cells
              of a TSV file are quoted.

    Returns:
        `DatasetDict`: the loaded splits, with strings in both columns.

    Raises:
        FileNotFoundError: if a file does not exist.
        OSError: if the cache cannot be written.
        ValueError: if the arguments contradict each other, or if a file or its content is unsuitable. The message names
            the file and, if known, the line.
    """
    files = _check_files_of_splits({"train": train_files, "validation": validation_files, "test": test_files})
    _check_directions(files.values())
    has_dataset = dataset is not None
    has_files = len(files) > 0
    if has_dataset == has_files:
        raise InputError('give either a data set ("numbers", or a name on the Hub) or files.')
    _check_options(options)
    if source == target:
        raise InputError(f'source and target are both "{source}"; give two columns or languages.')

    if dataset is None:
        return _load_files(files, source, target, options)
    if dataset == "numbers":
        return _generate_number_pairs(source, target, options)
    return _load_hub_dataset(dataset, source, target, options)


def _generate_number_pairs(source: str, target: str, options: Mapping[str, Any]) -> DatasetDict:
    """Return the built-in corpus in the languages `source` and `target`.

    The defaults of [`load_pairs`], "source" and "target", are no languages, and stand for "en" and "de" here.
    """
    source_language = source
    if source == "source":
        source_language = "en"
    target_language = target
    if target == "target":
        target_language = "de"
    return number_pairs(source_language, target_language, **options)


def _check_files_of_splits(files_by_split: Mapping[str, Files | None]) -> dict[str, list[Path]]:
    """Check the files of all splits, and return the paths by split. Splits without files are left out."""
    paths_by_split = {}
    for split, files in files_by_split.items():
        if files is not None:
            paths_by_split[split] = _check_files(files)
    return paths_by_split


def _check_files(files: Files) -> list[Path]:
    """Check the files of one split, and return their paths.

    Raises an error if a file is missing or empty, if the files are neither tables of one format nor aligned text files,
    or if the two files of a pair are the same file.
    """
    paths = [Path(name) for name in file_names(files)]
    for path in paths:
        check_is_input(path)
        _check_is_not_empty(path)
    if not _have_one_format(paths):
        raise InputError(
            f"one split is in {_join(paths)}; give tables of one format ({', '.join(TABLE_FORMATS)}), or two "
            "aligned text files, or several such pairs: a.en a.de b.en b.de."
        )
    # Tables do not come in pairs, but this loop also rejects some lists that name the same table twice.
    for source_path, target_path in _pair_files(paths):
        if are_same_file(source_path, target_path):
            raise InputError(f"{source_path} and {target_path} are one file; give the sources and the targets.")
    return paths


def _check_is_not_empty(path: Path) -> None:
    """Raise InputError if a file is empty. A pipe passes, because its size is unknown."""
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{path} is empty; give a file with sentences.")


def _have_one_format(paths: list[Path]) -> bool:
    """Return True for tables of one format, or for an even number of text files; False if there are no files."""
    has_tables = any(is_table(path) for path in paths)
    if has_tables:
        suffixes = {suffix_of(path) for path in paths}
        return len(suffixes) == 1
    return len(paths) > 0 and len(paths) % 2 == 0


def _pair_files(paths: list[Path]) -> list[tuple[Path, Path]]:
    """Return pairs of a source file and a target file, which alternate in `paths`. An odd last file is left out."""
    source_paths = paths[::2]
    target_paths = paths[1::2]
    return list(zip(source_paths, target_paths, strict=False))


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError if options of `datasets.load_dataset` request a stream, or more than one split by name."""
    if options.get("streaming"):
        raise InputError("streamed pairs have no length; leave streaming out: memory-mapped pairs need little memory.")
    if not isinstance(options.get("split", ""), str):
        raise InputError(f'split is {options["split"]!r}; give one, such as "train[:1%]", or leave it out to load all.')


def _check_directions(paths_of_splits: Iterable[list[Path]]) -> None:
    """Raise ValueError if the names of text files end in different directions, such as en-de and de-en."""
    directions = set()
    for paths in paths_of_splits:
        for direction in directions_of(paths):
            directions.add(f"{direction.source}-{direction.target}")
    if len(directions) > 1:
        raise InputError(
            f"the names of the text files end in {' and '.join(sorted(directions))}; give one direction, and in each "
            "pair the file of the sources first."
        )


def _load_files(files: Mapping[str, list[Path]], source: str, target: str, options: Mapping[str, Any]) -> DatasetDict:
    """Load all splits from tables or aligned text files, and return the pairs by split."""
    pairs = DatasetDict()
    with TemporaryDirectory() as folder:
        # All pipes are copied before any split is loaded, because one process may write to several pipes in turn.
        readable_files = _copy_pipes(files, folder)
        # The pairs are loaded inside of this block, because its folder has the copies of the pipes.
        for split, paths in readable_files.items():
            pairs[split] = _load_split(paths, source, target, options)
    return pairs


def _load_split(paths: list[Path], source: str, target: str, options: Mapping[str, Any]) -> Dataset:
    """Load the pairs of one split from its files, which all have the same format."""
    # Text files have no entry in this dict.
    table_format = TABLE_FORMATS.get(suffix_of(paths[0]))
    if table_format is None:
        return _load_text_files(paths, options)
    if isinstance(table_format, DatasetsFormat):
        return _load_with_datasets(paths, table_format, source, target, options)
    return _load_rows(paths, table_format, source, target, options)


def _copy_pipes(files: Mapping[str, list[Path]], folder: str) -> dict[str, list[Path]]:
    """Copy all pipes into a folder, and return the paths to read from, by split."""
    readable_files = {}
    for split, paths in files.items():
        readable_files[split] = [_copy_if_pipe(path, folder) for path in paths]
    return readable_files


def _copy_if_pipe(path: Path, folder: str) -> Path:
    """Copy a pipe to a file in `folder`, because a pipe can be read only once. Returns the path to read from."""
    if not is_stream(path):
        return path
    # Each copy gets a separate folder, because several pipes may have the same name.
    copy = Path(mkdtemp(dir=folder), path.name)
    with path.open("rb") as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


def _load_text_files(paths: list[Path], options: Mapping[str, Any]) -> Dataset:
    """Load sentence pairs from aligned text files. Source files and target files alternate in `paths`."""
    if options:
        raise InputError(f"{', '.join(options)}: text files take no options; leave them out.")
    # This is a generator, so the files are read only if the cache does not contain their pairs yet.
    pairs = _read_text_files(paths)
    return _copy_to_cache(paths, "lines", pairs)


def _read_text_files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of several aligned text files, one pair of files after the other."""
    for source_path, target_path in _pair_files(paths):
        yield from _read_aligned_lines(source_path, target_path)


def _load_with_datasets(
    paths: list[Path], table_format: DatasetsFormat, source: str, target: str, options: Mapping[str, Any]
) -> Dataset:
    """Load tables in formats that `datasets` reads, such as parquet."""
    origin = _join(paths)
    # load_dataset would expand patterns such as "*" in file names.
    literal_names = [glob.escape(str(path)) for path in paths]
    try:
        # load_dataset() puts files without a split name into the split "train".
        table = load_dataset(table_format.builder, data_files=literal_names, split="train", **options)
    except Exception as error:
        # datasets often wraps the error that names the fault.
        reason = error.__cause__ or error
        raise InputError(f"{origin} cannot be read as {table_format.builder}: {reason}") from error
    return _select_pairs(table, source, target, origin)


def _load_rows(
    paths: list[Path], table_format: RowFormat, source: str, target: str, options: Mapping[str, Any]
) -> Dataset:
    """Load tables in formats that this package reads row by row, such as CSV."""
    origin = _join(paths)
    suffix = suffix_of(paths[0])
    has_unknown_options = not options.keys() <= set(table_format.options)
    if has_unknown_options:
        raise InputError(f"{', '.join(options)}: {suffix} files take {', '.join(table_format.options)} alone.")

    # This is a generator, so the files are read only if the cache does not contain their pairs yet.
    pairs_in_files = _read_tables(paths, table_format, source, target, options)
    # Besides the files, the pairs depend on these settings, so they are a part of the cache key.
    settings = (suffix, source, target, dict(options))
    try:
        pairs = _copy_to_cache(paths, settings, pairs_in_files)
    except (LookupError, TypeError, UnicodeEncodeError) as error:
        # An option has a wrong value, such as an unknown encoding, or JSON contains a lone surrogate.
        # An InputError about a line of a file is none of these, so it is not changed.
        raise InputError(f"{origin} cannot be read with the options {dict(options)}: {error}") from error

    # A format with types, such as JSON, distinguishes numbers from text, and needs no quotation marks around cells.
    if not table_format.has_types:
        # By default, a format such as TSV takes the quotation marks around cells as a part of the text.
        may_have_quotes = table_format.keeps_quotes and "quoting" not in options
        _warn_of_doubtful_text(pairs, {"source": source, "target": target}, origin, may_have_quotes)
    return pairs


def _warn_of_doubtful_text(pairs: Dataset, columns: Mapping[str, str], origin: str, may_have_quotes: bool) -> None:
    """Log a warning if a column of a CSV or TSV file contains only numbers, or mostly text in quotation marks.

    Args:
        pairs: the pairs that were read.
        columns: the names that the columns `source` and `target` have in the file.
        origin: the file names, which the message begins with.
        may_have_quotes: whether quotation marks around cells were by default read as a part of the text.
    """
    for side, column in columns.items():
        texts = pairs.data.column(side)
        is_number = pc.match_substring_regex(texts, _NUMBER)
        if pc.all(is_number).as_py():
            logger.warning('%s: column "%s" contains only numbers; is it the column of the sentences?', origin, column)
        if may_have_quotes and _are_mostly_quoted(texts):
            logger.warning(
                '%s: most of column "%s" is in quotation marks, which stay; %s.', origin, column, ADVICE_IF_QUOTED
            )


def _are_mostly_quoted(texts: pa.ChunkedArray) -> bool:
    """Return True if more than half of the texts are in quotation marks, which then belong to the file format.

    A few sentences in quotation marks may be quotations.
    """
    is_quoted = pc.match_substring_regex(texts, '^".*"$')
    quoted_share = pc.mean(pc.cast(is_quoted, "int8")).as_py()
    return quoted_share > 0.5


def _copy_to_cache(paths: list[Path], settings: object, pairs: Iterator[tuple[str, str]]) -> Dataset:
    """Copy pairs into a file in the cache of `datasets`, and return a dataset that is memory-mapped from this file.

    If an earlier call has copied the same files and they have not changed since, `pairs` is not read.

    Args:
        paths: the files from which the pairs come.
        settings: everything else on which the pairs depend.
        pairs: yields the source and the target of each pair.
    """
    copy = _find_cache_file(paths, settings)
    copy.parent.mkdir(parents=True, exist_ok=True)
    # A second process that loads the same files waits here for the first one.
    with WeakFileLock(copy.with_suffix(".lock")):
        if not copy.is_file():
            _write_arrow_file(copy, pairs)
    return Dataset.from_file(str(copy))


def _find_cache_file(paths: list[Path], settings: object) -> Path:
    """Return the path of a cache file, whose name is a hash of everything on which the pairs depend."""
    key = Hasher.hash([settings, [_describe_state(path) for path in paths]])
    return Path(config.HF_DATASETS_CACHE) / "pairs" / f"{key}.arrow"


def _describe_state(path: Path) -> tuple[str, int, int, int, int]:
    """Return a file's path, and values that change whenever the file is written or replaced."""
    state = path.stat()
    return str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _write_arrow_file(path: Path, pairs: Iterator[tuple[str, str]]) -> None:
    """Write pairs to an Arrow file in chunks. This is eight times faster than `Dataset.from_generator`."""
    # whole_file() gives the file its name only when it is complete.
    with whole_file(path, binary=True) as file, pa.ipc.new_stream(file, _PAIR_SCHEMA) as writer:
        while True:
            chunk = list(islice(pairs, _PAIRS_PER_CHUNK))
            if not chunk:
                break
            # For example, [("one", "eins"), ("two", "zwei")] becomes ("one", "two") and ("eins", "zwei").
            sources, targets = zip(*chunk, strict=True)
            writer.write_table(pa.table([sources, targets], schema=_PAIR_SCHEMA))


def _read_aligned_lines(source_path: Path, target_path: Path) -> Iterator[tuple[str, str]]:
    """Yield each source line with its target line. Raises ValueError if the files differ in their number of lines."""
    source_lines = iterate_lines(source_path)
    target_lines = iterate_lines(target_path)
    for pair_count, (source, target) in enumerate(zip_longest(source_lines, target_lines)):
        # zip_longest() gives None for a line if its file has ended before the other one.
        if source is None or target is None:
            source_count = pair_count + _count_from(source, source_lines)
            target_count = pair_count + _count_from(target, target_lines)
            raise InputError(
                f"{source_path} has {source_count} lines and {target_path} has {target_count}; give files whose lines "
                "n translate each other."
            )
        yield source, target


def _count_from(line: str | None, later_lines: Iterator[str]) -> int:
    """Count a line and all later ones, which are read to the end. Returns 0 if the line is None, as after the end."""
    if line is None:
        return 0
    return 1 + sum(1 for _ in later_lines)


def _read_tables(
    paths: list[Path], table_format: RowFormat, source: str, target: str, options: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the source and the target of each row of several tables, one table after the other."""
    for path in paths:
        rows = table_format.read_rows(path, **options)
        yield from _read_cells(path, rows, source, target)


def _read_cells(path: Path, rows: Iterator[NumberedRow], source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the source and the target of each row of a table.

    Raises ValueError if the table has no rows, or if a row lacks a column or has no text in it.

    Args:
        path: the file's path, which error messages contain.
        rows: the table's rows, with their line numbers.
        source, target: column names, or languages in a column `translation`.
    """
    has_rows = False
    for line, row in rows:
        has_rows = True
        place = f"{path}, line {line}"
        cells = _find_cells(row, source, place)
        yield _read_text(cells, source, place), _read_text(cells, target, place)
    if not has_rows:
        raise InputError(f"{path} has no rows; give a file with sentences.")


def _find_cells(row: object, source: str, place: str) -> dict[str, object]:
    """Return the dict with the texts: the row, or the dict in its column `translation`, as in many Hub data sets.

    Raises InputError, with the place of the row in the message, if the row is not a dict.
    """
    if not isinstance(row, dict):
        raise InputError(f"{place}: a {type(row).__name__}; each line must be a JSON object.")
    translation = row.get("translation")
    if source not in row and isinstance(translation, dict):
        return translation
    return row


def _read_text(cells: Mapping[str, object], column: str, place: str) -> str:
    """Return the text in a column of a row. Raises InputError if there is none."""
    check_has_column(cells, column, f"{place},")
    text = cells[column]
    if not isinstance(text, str):
        raise InputError(f'{place}: column "{column}" holds {text!r}, not text.')
    return text


def _load_hub_dataset(name: str, source: str, target: str, options: Mapping[str, Any]) -> DatasetDict:
    """Load a data set from the Hub: all of its splits, or only the split that the option `split` names."""
    # input_errors() converts the errors for a wrong name or a wrong option to InputError.
    with input_errors():
        loaded = load_dataset(name, **options)
    if isinstance(loaded, Dataset):
        splits = {_name_of_requested_split(options): loaded}
    else:
        splits = _rename_validation_split(loaded)

    pairs = DatasetDict()
    for split, table in splits.items():
        pairs[split] = _select_pairs(table, source, target, f'{split} of "{name}"')
    return pairs


def _name_of_requested_split(options: Mapping[str, Any]) -> str:
    """Return the name in the option `split`, for example "train" for "train[:1%]", and by default."""
    name, _, _ = str(options.get("split", "train")).partition("[")
    return name


def _rename_validation_split(splits: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return all splits of a Hub data set in the same order, with the validation split renamed to "validation".

    Its other common names, such as "dev", are in `_VALIDATION_NAMES`. If several of these names occur, only the split
    with the first of them is renamed.
    """
    present_names = [name for name in _VALIDATION_NAMES if name in splits]
    if not present_names:
        return dict(splits)
    name_of_validation = present_names[0]
    renamed = {}
    for name, table in splits.items():
        new_name = "validation" if name == name_of_validation else name
        renamed[new_name] = table
    return renamed


def _select_pairs(table: Dataset, source: str, target: str, origin: str) -> Dataset:
    """Select two columns of a table, and rename them to "source" and "target".

    Raises ValueError if a column is missing, does not contain text, or has missing values.

    Args:
        source, target: the names of the two columns, or languages in a column `translation`.
        origin: the table's name in error messages.
    """
    if "translation" in table.column_names and source not in table.column_names:
        # For example, flatten() replaces this column by the columns "translation.en" and "translation.de".
        flat_table = table.flatten()
        columns = [f"translation.{source}", f"translation.{target}"]
    else:
        flat_table = table
        columns = [source, target]
    for column in columns:
        _check_has_text_column(flat_table, column, origin)

    text_columns = flat_table.select_columns(columns)
    pairs = text_columns.rename_columns(dict(zip(columns, ("source", "target"), strict=True)))
    for side in pairs.column_names:
        _check_has_no_missing_text(pairs, side, origin)
    return pairs


def _check_has_text_column(table: Dataset, column: str, origin: str) -> None:
    """Raise InputError if a table lacks a column, or if the column does not contain text."""
    check_has_column(table.column_names, column, origin)
    feature = table.features[column]
    # Some types of columns, such as dicts, have no `dtype`.
    dtype = getattr(feature, "dtype", None)
    if dtype not in ("string", "large_string"):
        raise InputError(f'{origin}: column "{column}" holds {feature}, not text.')


def _check_has_no_missing_text(pairs: Dataset, side: str, origin: str) -> None:
    """Raise InputError if texts are missing in the column `source` or `target`."""
    missing_count = pairs.data.column(side).null_count
    if missing_count > 0:
        raise InputError(f"{origin}: {missing_count} of {len(pairs)} rows have no {side}; fill or remove them.")


def _join(paths: list[Path]) -> str:
    return ", ".join(str(path) for path in paths)
