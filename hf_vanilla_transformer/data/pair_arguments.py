"""Define the arguments that select sentence pairs: a data set or files, their languages and their columns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..support.argument_checks import check_optional
from ..support.build_arguments import option
from ..support.language_codes import language_of
from ..support.user_errors import InputError
from .cleaning_rules import check_rules
from .table_formats import is_table, suffix_of
from .target_language import codes_of, matching_codes


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase


# For example, "en", "pt-BR" or "zho_Hans".
_LANGUAGE_CODE = re.compile("[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")
# The argument with the files of each split. The order matters: if the file names of several splits end in languages,
# the first of these splits decides.
_FILE_ARGUMENTS = {"train": "train_file", "test": "test_file", "validation": "validation_file"}
# An immutable empty dict, so that it can be the default of an argument.
_NO_RECIPE: Mapping[str, object] = MappingProxyType({})

Files = str | Path | Sequence[str | Path]
Side = Literal["source", "target"]


class Direction(NamedTuple):
    """A translation direction: the language codes of the sources and of the targets, such as "en" and "de"."""

    source: str
    target: str


@dataclass(frozen=True)
class ResolvedSide:
    """The language and the column name of the source texts, or of the target texts.

    Args:
        declared_language: the language code that an argument or a recipe gives, or None.
        language: the declared language. If there is none, the language code that ends the names of the text files,
            such as `de` in `train.de`, or None.
        column: the column's name in the table or the data set.
    """

    declared_language: str | None
    language: str | None
    column: str


def resolve_side(side: Side, arguments: Mapping[str, Any], recipe: Mapping[str, Any] = _NO_RECIPE) -> ResolvedSide:
    """Determine the language and the column of the sources or of the targets.

    Each field of the result takes the first of these values that exists, here for the sources:

    - `declared_language`: the argument `source_lang`, even if it is given as None; or the recipe's `source_lang`, if it
      applies to these pairs; or None.
    - `language`: the declared language; or the language in which the names of text files end; or None.
    - `column`: the argument `source_column`; or the declared language; or `"source"`.

    A recipe's language does not apply if the user gives `source_column`, or text files whose names do not end in
    languages while the recipe names no files.

    Args:
        arguments: the arguments that the user gave, by their field names in `DataArguments`.
        recipe: the recipe's arguments, by the same names.
    """
    declared_language = _find_declared_language(side, arguments, recipe)
    language = declared_language
    if language is None:
        language = _find_language_of_files(side, arguments)
    column = _choose_column(side, arguments, declared_language)
    return ResolvedSide(declared_language, language, column)


def _choose_column(side: Side, arguments: Mapping[str, Any], declared_language: str | None) -> str:
    """Return the name of the column with the sources or the targets; see [`resolve_side`]."""
    column_argument = arguments.get(f"{side}_column")
    if column_argument:
        return column_argument
    if declared_language is not None:
        return declared_language
    return side


def _find_declared_language(side: Side, arguments: Mapping[str, Any], recipe: Mapping[str, Any]) -> str | None:
    """Return the language code that an argument or a recipe gives, or None; see [`resolve_side`]."""
    language_argument = f"{side}_lang"
    column_argument = f"{side}_column"
    # The argument may be given as None, which overrides the recipe's language, too.
    if language_argument in arguments:
        return arguments[language_argument]
    # The recipe's language describes the recipe's own pairs. In the following two cases, the user gives other pairs, so
    # the recipe's language does not apply.
    gives_column = bool(arguments.get(column_argument))
    if gives_column or _gives_files_without_languages(arguments, recipe):
        return None
    return recipe.get(language_argument)


def _find_language_of_files(side: Side, arguments: Mapping[str, Any]) -> str | None:
    """Return the language code that ends the names of the source or target files, e.g. `de` in `train.de`, or None."""
    # The first split whose file names end in two different languages decides. Without one, `direction` is None.
    direction = find_direction(files_by_split(arguments).values())
    if direction is None:
        return None
    if side == "source":
        return direction.source
    return direction.target


def _gives_files_without_languages(arguments: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    """Return True if the user gives text files whose names end in no languages, and the recipe names no files."""
    recipe_names_files = any(files_by_split(recipe).values())
    if recipe_names_files:
        return False
    for files in files_by_split(arguments).values():
        # A single file that is no table is rejected later.
        are_text_files = len(files) > 1 and not is_table(files[0])
        if are_text_files and find_direction([files]) is None:
            return True
    return False


def files_by_split(arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the file names of each split, as a dict. Splits for which the arguments give no files are left out."""
    files = {}
    for split, argument in _FILE_ARGUMENTS.items():
        if arguments.get(argument) is not None:
            files[split] = file_names(arguments[argument])
    return files


def file_names(files: Files) -> list[str]:
    """Return one or several file names as a list of strings."""
    if isinstance(files, (str, Path)):
        return [str(files)]
    return [str(file) for file in files]


def find_direction(file_lists: Iterable[Sequence[str | Path]]) -> Direction | None:
    """Find the translation direction in the names of aligned text files, such as `a.en` and `a.de`.

    The first two aligned files whose names end in different languages decide.

    Args:
        file_lists: for each split, a list in which source and target files alternate. The order of the splits matters.

    Returns None if there are no such files.
    """
    for files in file_lists:
        for direction in directions_of(files):
            if direction.source != direction.target:
                return direction
    return None


def directions_of(files: Sequence[str | Path]) -> list[Direction]:
    """Read the translation directions of aligned text files from their names, one direction for each pair of files.

    A pair of files is left out if one of the names does not end in a known language. For example,
    `["a.en", "a.de.gz", "b.txt", "b.de"]` gives `[Direction("en", "de")]`.
    """
    # Source files and target files alternate. strict=False, because the number of files may be odd.
    directions = []
    for source_file, target_file in zip(files[::2], files[1::2], strict=False):
        source_language = language_of(suffix_of(source_file).removeprefix("."))
        target_language = language_of(suffix_of(target_file).removeprefix("."))
        if source_language is not None and target_language is not None:
            directions.append(Direction(source_language, target_language))
    return directions


def _check_language_code(side: Side, code: object) -> None:
    """Raise ValueError unless `source_lang` or `target_lang` is None or is spelled like a language code."""
    if code is None:
        return
    if not isinstance(code, str) or not _LANGUAGE_CODE.fullmatch(code):
        raise InputError(f"{side}_lang is {code}; give a code such as en or zh_CN, and columns with --{side}_column.")


def _join_names(paths: list[str]) -> str:
    """Join file names with commas. The folders are left out."""
    return ", ".join(Path(path).name for path in paths)


def _short_name_of_dataset(name: str) -> str:
    """Return the name of a data set on the Hub, or the name of a local folder without the folders that contain it."""
    folder = Path(name)
    if folder.is_dir():
        return folder.resolve().name
    return name


@dataclass
class DataArguments:
    """Arguments that select sentence pairs: a data set, or tables or aligned text files for each split."""

    _argument_group_name = "data"

    dataset_name: str | None = option(None, 'A data set on the Hub, or "numbers" for the built-in corpus.')
    dataset_config_name: str | None = option(None, "The configuration of a Hub data set.")
    train_file: list[str] | None = option(
        None, "Tables (CSV, TSV, JSON lines, parquet), or pairs of aligned text files: a.en a.de b.en b.de."
    )
    validation_file: list[str] | None = option(None, "The same for validation pairs.")
    test_file: list[str] | None = option(None, "The same for test pairs.")
    source_lang: str | None = option(None, "Language code of the sources, and the name of their column if not given.")
    target_lang: str | None = option(
        None, "The same for the targets; the language that a model of several is to translate into."
    )
    source_column: str | None = option(None, 'Column of the sources; by default the language code, or else "source".')
    target_column: str | None = option(None, 'Column of the targets; by default the language code, or else "target".')
    delimiter: str | None = option(None, "Cell separator; by default a comma, or a tab for TSV.")
    quoting: int | None = option(None, "3 if no cell of CSV or TSV is quoted, the default of TSV; 0 if cells are.")
    encoding: str | None = option(None, "Encoding of CSV and TSV; by default UTF-8.")
    max_digits: int = option(9, "Digits of the longest numbers of the built-in corpus; validation needs 5 or more.")
    train_size: int = option(200_000, "Training pairs of the built-in corpus.")

    def __post_init__(self) -> None:
        """Raise ValueError if a language is not spelled like a language code, or contradicts the text files' names."""
        _check_language_code("source", self.source_lang)
        _check_language_code("target", self.target_lang)
        # The direction is None unless the names of two aligned text files end in different languages.
        direction = self._direction_of_files()
        if direction is not None:
            self._check_languages_of_files(direction)

    def _check_languages_of_files(self, direction: Direction) -> None:
        """Raise ValueError if `source_lang` or `target_lang` contradicts the file names, such as `a.en` and `a.de`."""
        # A language is None if its argument is not given, or if this package does not know the code. Then it cannot
        # contradict the file names.
        source_language = language_of(self.source_lang)
        target_language = language_of(self.target_lang)
        source_contradicts = source_language is not None and source_language != direction.source
        target_contradicts = target_language is not None and target_language != direction.target
        if source_contradicts or target_contradicts:
            raise InputError(
                f"source_lang and target_lang, given or of --config, are {self.source_lang} and {self.target_lang}, "
                f"but the files end in {direction.source} and {direction.target}; name the file of the sources first, "
                "and give the languages of the files."
            )

    def load(self, split: str | None = None) -> "DatasetDict":
        """Load the selected pairs with `load_pairs`: one split, or by default all splits.

        Raises ValueError if the data does not have the split.
        """
        # Imported only now, because it takes a second, and most commands check their arguments first.
        from .load_pairs import load_pairs

        arguments = vars(self)
        files = self._files_to_load(split)
        pairs = load_pairs(
            self.dataset_name,
            train_files=files.get("train"),
            validation_files=files.get("validation"),
            test_files=files.get("test"),
            source=resolve_side("source", arguments).column,
            target=resolve_side("target", arguments).column,
            **self._loading_options(split),
        )
        if split is not None and split not in pairs:
            raise InputError(f'the data has no split "{split}", only {", ".join(pairs)}.')
        return pairs

    def _files_to_load(self, split: str | None) -> dict[str, list[str]]:
        """Return the files of the requested split, or of all splits if `split` is None or has no files.

        If a data set is named, all files are returned.
        """
        files = files_by_split(vars(self))
        # If a data set is named as well, load_pairs() gets all files, and raises an error because it takes either.
        if self.dataset_name is None and split in files:
            return {split: files[split]}
        return files

    def paths(self) -> list[str]:
        """Return the paths of all files that the arguments name, for all splits."""
        paths = []
        for split_files in files_by_split(vars(self)).values():
            paths.extend(split_files)
        return paths

    def describe(self, split: str) -> str:
        """Describe a split by its data set's name, or by its file names without folders, such as "a.en, a.de"."""
        if self.dataset_name == "numbers":
            return f"numbers of up to {self.max_digits} digits written out in words ({split})"
        if self.dataset_name is not None:
            return f"{_short_name_of_dataset(self.dataset_name)} ({split})"

        files = files_by_split(vars(self))
        if split in files:
            return _join_names(files[split])
        # A split without files consists of pairs that were held out of the training pairs.
        training_files = files.get("train", [])
        return f"held out of {_join_names(training_files)}"

    def languages(self) -> tuple[str | None, str | None]:
        """Return the source and the target language. A language is None if it is unknown; see [`resolve_side`]."""
        source_language = resolve_side("source", vars(self)).language
        target_language = resolve_side("target", vars(self)).language
        return source_language, target_language

    def target_language_for(self, tokenizer: "PreTrainedTokenizerBase") -> str | None:
        """Return the language to pass to `translate()` as `target_lang`, or None to leave the choice to the model.

        This is the argument `target_lang`. If it is not given, and the model has several target languages, it is the
        language in which the names of the target files end, provided that the model has exactly one code for it.

        Raises ValueError if the model has no code for the language of the target files.
        """
        if self.target_lang is not None:
            return self.target_lang
        # The codes are empty if the model has only one target language.
        codes = codes_of(tokenizer)
        direction = self._direction_of_files()
        if not codes or direction is None:
            return None

        matching = matching_codes(codes, direction.target)
        if not matching:
            raise InputError(
                f'the targets\' files end in "{direction.target}", but the model has no code for this language, only '
                f"{', '.join(codes)}; give files that end in one of its languages, or in none, and --target_lang."
            )
        # File names cannot choose one of several codes for the language.
        if len(matching) > 1:
            return None
        return direction.target

    def _direction_of_files(self) -> Direction | None:
        return find_direction(files_by_split(vars(self)).values())

    def _loading_options(self, split: str | None) -> dict[str, object]:
        """Return the options for `load_pairs`. They differ between the number corpus, Hub data sets and files."""
        if self.dataset_name == "numbers":
            # None stands for all splits. If only validation or test pairs are needed, a single training pair is
            # generated, because the other pairs do not depend on the number of training pairs.
            loads_training_pairs = split in (None, "train")
            train_size = self.train_size if loads_training_pairs else 1
            return {"max_digits": self.max_digits, "train_size": train_size}
        options: dict[str, object] = {
            "name": self.dataset_config_name,
            "delimiter": self.delimiter,
            "quoting": self.quoting,
            "encoding": self.encoding,
        }
        if self.dataset_name is not None:
            options["split"] = split
        # load_pairs() rejects options that do not suit the data, even if they are None.
        return {name: value for name, value in options.items() if value is not None}


@dataclass
class TrainingDataArguments(DataArguments):
    """Arguments that select training pairs, limit their number, clean them, and hold some out for validation."""

    max_train_samples: int | None = option(None, "Use only N training pairs, evenly spread.")
    clean: bool = option(
        False,
        "Remove duplicates and unsuitable training pairs, such as those in the test or validation pairs.",
    )
    clean_skip: list[str] | None = option(None, "Rules of --clean to skip, such as length_ratio.")
    validation_size: int | None = option(None, "Hold out N training pairs for validation.")

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if one of the arguments has a wrong value. Make `clean_skip` a list."""
        super().__post_init__()
        check_optional(self, "max_train_samples")
        if isinstance(self.clean_skip, str):
            # A file of arguments may have one name instead of a list.
            self.clean_skip = [self.clean_skip]
        # `skipped_rules` is computed from `clean_skip`, which must be a list by now.
        check_rules(self.skipped_rules)
        check_optional(self, "validation_size")

    @property
    def skipped_rules(self) -> list[str]:
        """Names of the cleaning rules that are not applied. Underscores stand for the spaces in their names."""
        return [name.replace("_", " ") for name in self.clean_skip or []]
