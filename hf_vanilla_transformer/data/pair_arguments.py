"""Which sentence pairs to read: a data set, or files, with their languages and columns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.argument_checks import check_optional
from ..support.build_arguments import option
from ..support.language_codes import language_of
from ..support.user_errors import InputError
from .target_language import codes_of, matching_codes
from .text_lines import TABLES, suffix_of


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase


_LANGUAGE_CODE = re.compile("[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")
Files = str | Path | Sequence[str | Path]


def file_names(files: Files) -> list[str]:
    """The names of one file, or of several."""
    return [str(file) for file in ([files] if isinstance(files, (str, Path)) else files)]


def with_recipe(recipe: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a recipe, overridden by those that are given.

    The recipe's languages are not those of given text files whose names end in no languages, or of given columns. Its
    number of updates gives way to a number of epochs, its held-out pairs to validation pairs, and its batches to the
    tokens of an update.
    """
    names = ("train_file", "validation_file", "test_file")
    files = [] if any(map(recipe.get, names)) else [file_names(given[name]) for name in names if given.get(name)]
    is_unknown = any(len(each) > 1 and suffix_of(each[0]) not in TABLES and not languages_of(each) for each in files)
    others = {f"{side}_lang" for side in ("source", "target") if is_unknown or given.get(f"{side}_column")}
    if given.get("num_train_epochs"):
        # The Trainer would prefer the recipe's number of updates.
        others.add("max_steps")
    if given.get("validation_file"):
        others.add("validation_size")
    if given.get("tokens_per_update"):
        others |= {"tokens_per_batch", "gradient_accumulation_steps"}
    return {**{name: value for name, value in recipe.items() if name not in others}, **given}


def languages_of(files: Sequence[str | Path], same: bool = False) -> list[tuple[str, str]]:
    """The languages that names of aligned text files end in, pair by pair; those of one language only with `same`."""
    ends = [language_of(suffix_of(file).removeprefix(".")) for file in files]
    return [(one, two) for one, two in zip(ends[::2], ends[1::2], strict=False) if one and two and (same or one != two)]


@dataclass
class DataArguments:
    """Sentence pairs: a data set, or tables or aligned text files for each split."""

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
        for name in ("source_lang", "target_lang"):
            code = getattr(self, name)
            if code is not None and not (isinstance(code, str) and _LANGUAGE_CODE.fullmatch(code)):
                column = name.replace("lang", "column")
                raise InputError(f"{name} is {code}; give a code such as en or zh_CN, and columns with --{column}.")
        given, of_files = tuple(map(language_of, (self.source_lang, self.target_lang))), self._languages_of_files()
        if any(None not in pair and len(set(pair)) > 1 for pair in zip(given, of_files, strict=True)):
            raise InputError(
                f"source_lang and target_lang, given or of --config, are {self.source_lang} and {self.target_lang}, "
                f"but the files end in {of_files[0]} and {of_files[1]}; name the file of the sources first, and give "
                "the languages of the files."
            )

    def load(self, split: str | None = None) -> "DatasetDict":
        """Load one split, or all of them; see `load_pairs`.

        Raises:
            ValueError: if the data has no such split.
        """
        from .load_pairs import load_pairs

        files = {f"{name}_files": paths for name, paths in self._files().items()}
        if f"{split}_files" in files and self.dataset_name is None:
            files = {f"{split}_files": files[f"{split}_files"]}
        options: dict[str, Any] = {
            "source": self.source_column or self.source_lang or "source",
            "target": self.target_column or self.target_lang or "target",
            **files,
        }
        pairs = load_pairs(self.dataset_name, **options, **self._options(split))
        if split is not None and split not in pairs:
            raise InputError(f'the data has no split "{split}", only {", ".join(pairs)}.')
        return pairs

    def paths(self) -> list[str]:
        """All files that were given."""
        return [path for paths in self._files().values() for path in paths]

    def _files(self) -> dict[str, list[str]]:
        """The files that were given, by split; those whose languages decide first."""
        files = {"train": self.train_file, "test": self.test_file, "validation": self.validation_file}
        return {split: paths for split, paths in files.items() if paths is not None}

    def _options(self, split: str | None) -> dict[str, Any]:
        if self.dataset_name == "numbers":
            # The other splits do not depend on the number of training pairs.
            train_size = self.train_size if split in (None, "train") else 1
            return {"max_digits": self.max_digits, "train_size": train_size}
        options = {"name": self.dataset_config_name, "split": split if self.dataset_name is not None else None}
        options |= {name: getattr(self, name) for name in ("delimiter", "quoting", "encoding")}
        return {name: value for name, value in options.items() if value is not None}

    def describe(self, split: str) -> str:
        """A split in words: the name of the data set, or of the files."""
        if self.dataset_name == "numbers":
            return f"numbers of up to {self.max_digits} digits written out in words ({split})"
        if self.dataset_name is not None:
            # The path of a local data set means nothing to others.
            path = Path(self.dataset_name)
            return f"{path.resolve().name if path.is_dir() else self.dataset_name} ({split})"
        names = ", ".join(Path(file).name for file in self._files().get(split, self.train_file or []))
        return names if split in self._files() else f"held out of {names}"

    def languages(self) -> tuple[str | None, str | None]:
        """The languages that were given, or else those that the names of text files end in."""
        of_files = self._languages_of_files()
        return self.source_lang or of_files[0], self.target_lang or of_files[1]

    def target_language_for(self, tokenizer: "PreTrainedTokenizerBase") -> str | None:
        """Return the language to pass to `translate()` as `target_lang`, or None to leave the choice to the model.

        A given `target_lang` comes first. Otherwise, a model of several target languages gets the language in which the
        files' names end, if the model has exactly one code for it.

        Raises ValueError if the model has no code for that language.
        """
        codes = codes_of(tokenizer)
        if self.target_lang is not None or not codes:
            return self.target_lang
        language = self._languages_of_files()[1]
        if language is None:
            return None
        matching = matching_codes(codes, language)
        if not matching:
            raise InputError(
                f'the targets\' files end in "{language}", but the model has no code for this language, only '
                f"{', '.join(codes)}; give files that end in one of its languages, or in none, and --target_lang."
            )
        return language if len(matching) == 1 else None

    def _languages_of_files(self) -> tuple[str | None, str | None]:
        return next(chain.from_iterable(map(languages_of, self._files().values())), (None, None))


@dataclass
class TrainingDataArguments(DataArguments):
    """Sentence pairs, and which of them to train on."""

    max_train_samples: int | None = option(None, "Use only N training pairs, evenly spread.")
    clean: bool = option(
        False, "Remove duplicates, pairs with equal, empty or very different sides, and test and validation pairs."
    )
    validation_size: int | None = option(None, "Hold out N training pairs for validation if no pairs are given for it.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optional(self, "max_train_samples")
        check_optional(self, "validation_size")
