"""Arguments that several verbs share, as dataclasses that check what they can without other arguments or data."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.language_codes import language_of
from ..model.generation_vanilla_transformer import LARGEST_LENGTH_PENALTY
from ..support.argument_checks import check_number


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


_LANGUAGE_CODE = re.compile("[a-z]{2,3}([_-][A-Za-z]{2,4})?")
_OF_THE_HUB = "of the model on the Hub"
_ENGINES = ("torch", "ctranslate2")
# Values of --early_stopping, and of `generate()`.
_EARLY_STOPPING: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}


@dataclass
class LoadingArguments:
    """The model to load, and where to load it."""

    _argument_group_name = "model"

    model_name_or_path: str = field(metadata={"help": "The folder of a saved model, or its name on the Hub."})
    revision: str | None = field(default=None, metadata={"help": f"Branch, tag or commit {_OF_THE_HUB}."})
    token: str | None = field(
        default=None, metadata={"help": "Access token of the Hub; by default the one that `hf auth login` stored."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": f"Run the code {_OF_THE_HUB}, for models of other architectures."}
    )
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1, ...; by default the accelerator if torch finds one."}
    )

    def __post_init__(self) -> None:
        if self.device is not None:
            check_device(self.device)

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `from_pretrained`."""
        return {"revision": self.revision, "token": self.token, "trust_remote_code": self.trust_remote_code}


@dataclass
class EngineArguments:
    """The runtime that computes."""

    _argument_group_name = "engine"

    engine: str = field(
        default="torch", metadata={"help": '"torch", or "ctranslate2", which needs the extra ctranslate2 and a CPU.'}
    )
    compute_type: str | None = field(
        default=None, metadata={"help": "Of ctranslate2: float32, the default, or bfloat16, int8, ..."}
    )

    def __post_init__(self) -> None:
        if self.engine not in _ENGINES:
            raise ValueError(f'engine is "{self.engine}"; choose one of {", ".join(_ENGINES)}.')
        if self.compute_type is not None and self.engine == "torch":
            raise ValueError(f"compute_type is {self.compute_type}, but has no effect without --engine ctranslate2.")


def check_device(name: str) -> None:
    """Raise ValueError if torch does not know a device, or does not find it on this machine."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"device is {name}, which torch cannot use here; give cpu, or leave it out.") from error


@dataclass
class DataArguments:
    """Sentence pairs: a data set, or tables or two aligned text files for each split."""

    _argument_group_name = "data"

    dataset_name: str | None = field(
        default=None, metadata={"help": 'A data set\'s name on the Hub, or "numbers" for the built-in corpus.'}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of a Hub data set."})
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "One or more tables (CSV, TSV, JSON lines, parquet), or two aligned text files."},
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "The same for validation pairs."})
    test_file: list[str] | None = field(default=None, metadata={"help": "The same for test pairs."})
    source_lang: str | None = field(
        default=None, metadata={"help": "Language code of the sources, and the name of their column if not given."}
    )
    target_lang: str | None = field(default=None, metadata={"help": "The same for the targets."})
    source_column: str | None = field(
        default=None, metadata={"help": 'Column of the sources; by default the language code, or else "source".'}
    )
    target_column: str | None = field(
        default=None, metadata={"help": 'Column of the targets; by default the language code, or else "target".'}
    )
    delimiter: str | None = field(
        default=None, metadata={"help": "What separates the cells of CSV and TSV; by default a comma or a tab."}
    )
    quoting: int | None = field(
        default=None, metadata={"help": "3 if no cell of CSV and TSV is quoted, so that quotation marks are text."}
    )
    encoding: str | None = field(default=None, metadata={"help": "Encoding of CSV and TSV; by default UTF-8."})
    max_digits: int = field(
        default=9,
        metadata={"help": "Digits of the longest numbers of the built-in corpus; validation pairs need 5 or more."},
    )
    train_size: int = field(default=200_000, metadata={"help": "Training pairs of the built-in corpus."})

    def __post_init__(self) -> None:
        for name in ("source_lang", "target_lang"):
            code = getattr(self, name)
            if code is not None and not _LANGUAGE_CODE.fullmatch(code):
                column = name.replace("lang", "column")
                raise ValueError(f"{name} is {code}; give a code such as en or zh_CN, and columns with --{column}.")
        given, of_files = tuple(map(language_of, (self.source_lang, self.target_lang))), self._languages_of_files()
        if any(None not in pair and len(set(pair)) > 1 for pair in zip(given, of_files, strict=True)):
            raise ValueError(
                f"source_lang and target_lang are {self.source_lang} and {self.target_lang}, but the files end in "
                f"{of_files[0]} and {of_files[1]}; name the file of the sources first, and give the languages of the "
                "files."
            )

    def load(self, split: str | None = None) -> "DatasetDict":
        """Load one split, or all of them; see `load_pairs`.

        Raises:
            ValueError: if the data has no such split.
        """
        from ..data.load_pairs import load_pairs

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
            raise ValueError(f'the data has no split "{split}", only {", ".join(pairs)}.')
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
        return ", ".join(Path(file).name for file in self._files().get(split, []))

    def languages(self) -> tuple[str | None, str | None]:
        """The languages that were given, or else those that the names of two text files end in."""
        of_files = self._languages_of_files()
        return self.source_lang or of_files[0], self.target_lang or of_files[1]

    def _languages_of_files(self) -> tuple[str | None, str | None]:
        for files in self._files().values():
            ends = [language_of(Path(file).suffix.removeprefix(".")) for file in files]
            if len(ends) == 2 and None not in ends and ends[0] != ends[1]:
                return ends[0], ends[1]
        return None, None


@dataclass
class DecodingArguments:
    """How to translate. The model's `generation_config` gives the other settings: the paper's beam search."""

    _argument_group_name = "decoding"

    num_beams: int | None = field(default=None, metadata={"help": "Beam size; 1 is greedy search. The paper's is 4."})
    length_penalty: float | None = field(default=None, metadata={"help": "alpha; the paper's is 0.6."})
    max_new_tokens: int | None = field(
        default=None, metadata={"help": "Maximum length of a translation, instead of the paper's input length + 50."}
    )

    early_stopping: str | None = field(
        default=None,
        metadata={
            "help": '"never", the paper\'s: no better translation can be missed. "true": a sentence ends when as many '
            'hypotheses have finished as there are beams, which is faster. "false": when none could be better by '
            "ending now."
        },
    )

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_new_tokens"):
            check_optional(self, name)
        if self.early_stopping is not None:
            self.early_stopping = self.early_stopping.lower()
            if self.early_stopping not in _EARLY_STOPPING:
                raise ValueError(
                    f'early_stopping is "{self.early_stopping}"; choose one of {", ".join(_EARLY_STOPPING)}.'
                )
        if self.length_penalty is not None and not abs(self.length_penalty) <= LARGEST_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty is {self.length_penalty}; it must lie between -{LARGEST_LENGTH_PENALTY} and "
                f"{LARGEST_LENGTH_PENALTY}, the paper's is 0.6."
            )

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of `generate()`: those that were given."""
        values = {name: getattr(self, name) for name in ("num_beams", "length_penalty", "max_new_tokens")}
        if self.early_stopping is not None:
            values["early_stopping"] = _EARLY_STOPPING[self.early_stopping]
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class BatchArguments:
    """The token budget of inference."""

    _argument_group_name = "batches"

    tokens_per_batch: int = field(
        default=4096, metadata={"help": "Maximum number of tokens in a batch, padding included."}
    )

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)


@dataclass
class ScoringArguments:
    """How to compute BLEU and chrF; the signature next to each score states it."""

    _argument_group_name = "scoring"

    bleu_tokenize: str | None = field(
        default=None,
        metadata={
            "help": '"13a" for running text, "none" for tokenized text, "char" for single words. By default "char" for '
            "the built-in corpus, the tokenization that sacrebleu has for a target language without spaces between "
            'words, and "13a" for others.'
        },
    )
    lowercase: bool = field(default=False, metadata={"help": "Ignore case."})

    def __post_init__(self) -> None:
        if self.bleu_tokenize is None:
            return
        from sacrebleu.metrics import BLEU

        if self.bleu_tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(str(name) for name in BLEU.TOKENIZERS)
            raise ValueError(f'bleu_tokenize is "{self.bleu_tokenize}"; choose one of: {known}.')
        # Some tokenizations need an optional dependency; its absence should not show after the training.
        try:
            BLEU(tokenize=self.bleu_tokenize)
        except RuntimeError as error:
            raise ValueError(
                f'bleu_tokenize is "{self.bleu_tokenize}": {error} Or give --bleu_tokenize char.'
            ) from error

    def for_target(self, language: str | None) -> "ScoringArguments":
        """The same arguments with the tokenization of a target language without spaces, unless one was given.

        Raises:
            ValueError: if the tokenization needs a library that is not installed.
        """
        from ..evaluation.metrics import bleu_tokenization

        return replace(self, bleu_tokenize=self.bleu_tokenize or bleu_tokenization(language))

    def options(self, pairs: "Dataset") -> dict[str, Any]:
        """Arguments of `score_translations`, for pairs."""
        default = "char" if is_number_corpus(pairs) else "13a"
        return {"tokenize": self.bleu_tokenize or default, "lowercase": self.lowercase}


def is_number_corpus(pairs: "Dataset") -> bool:
    """Whether pairs come from the built-in corpus, whose translations are single words."""
    return "number" in pairs.column_names


def check_optional(arguments: Any, name: str) -> None:
    """Raise ValueError if an argument is given and less than 1."""
    if getattr(arguments, name) is not None:
        check_number(name, getattr(arguments, name), 1)
