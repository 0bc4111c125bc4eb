"""What the command lines have in common: their arguments, files of arguments, and reading and writing."""

import argparse
import copy
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
import yaml
from datasets import Dataset, DatasetDict
from huggingface_hub.errors import StrictDataclassError
from sacrebleu.metrics import BLEU
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_vanilla_transformer import load_pairs, score_translations, translate
from hf_vanilla_transformer.data.sources import SPLITS
from hf_vanilla_transformer.generation_vanilla_transformer import limits_length
from hf_vanilla_transformer.training.memory import keep_freed_memory
from hf_vanilla_transformer.training.model_card import language_of


LARGEST_LENGTH_PENALTY = 100
# How sacrebleu cuts languages whose words have no blanks between them.
_WITHOUT_BLANKS = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
}


@dataclass
class DataArguments:
    """Where the sentence pairs are: a data set, or a table or two aligned text files for each split."""

    _argument_group_name = "data"

    dataset: str | None = field(
        default=None, metadata={"help": 'A data set\'s name on the Hub, or "numbers" for the built-in corpus.'}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "The configuration of a Hub data set."})
    train_files: list[str] | None = field(
        default=None, metadata={"help": "CSV, TSV, JSON lines or parquet files, or two aligned text files."}
    )
    validation_files: list[str] | None = field(default=None, metadata={"help": "Likewise, for validation."})
    test_files: list[str] | None = field(default=None, metadata={"help": "Likewise, for the scores at the end."})
    source: str = field(default="source", metadata={"help": "Column or language code of the sources."})
    target: str = field(default="target", metadata={"help": "Column or language code of the targets."})
    max_digits: int = field(default=9, metadata={"help": "Digits of the longest numbers of the built-in corpus."})
    train_size: int = field(default=200_000, metadata={"help": "Training pairs of the built-in corpus."})

    def __post_init__(self) -> None:
        said, named = tuple(map(language_of, (self.source, self.target))), self._languages_of_files()
        if any(None not in pair and len(set(pair)) > 1 for pair in zip(said, named, strict=True)):
            raise ValueError(
                f"source and target are {self.source} and {self.target}, but the files end in {named[0]} and "
                f"{named[1]}; name the file of the sources first, and --source and --target as the files end."
            )

    def load(self, split: str | None = None) -> DatasetDict:
        """The pairs that these arguments name, of one split at least; see `load_pairs`.

        Raises:
            ValueError: if there is no such split.
        """
        given = {name: getattr(self, f"{name}_files") for name in SPLITS}
        given = {name: files for name, files in given.items() if files is not None}
        if split in given and self.dataset is None:
            given = {split: given[split]}
        files = {f"{name}_files": of_split for name, of_split in given.items()}
        pairs = load_pairs(self.dataset, **files, source=self.source, target=self.target, **self._options(split))
        if split is not None and split not in pairs:
            raise ValueError(f'there is no split "{split}"; there is: {", ".join(pairs)}.')
        return pairs

    def _options(self, split: str | None) -> dict[str, Any]:
        if self.dataset == "numbers":
            # The other splits do not depend on how many numbers are left for training.
            train_size = self.train_size if split in (None, "train") else 1
            return {"max_digits": self.max_digits, "train_size": train_size}
        options = {"name": self.dataset_config, "split": split if self.dataset is not None else None}
        return {name: value for name, value in options.items() if value is not None}

    def describe(self, split: str) -> str:
        """A split in words: the data set's name, or its files'."""
        if self.dataset == "numbers":
            return f"numbers of up to {self.max_digits} digits written out in words ({split})"
        if self.dataset is not None:
            # Where a folder lies says nothing to others.
            name = Path(self.dataset).resolve().name if Path(self.dataset).is_dir() else self.dataset
            return f"{name} ({split})"
        return ", ".join(Path(file).name for file in getattr(self, f"{split}_files") or [])

    def languages(self) -> tuple[str | None, str | None]:
        """The language codes that `source` and `target` are, as far as they are, or else the ends of two text files."""
        code = "[a-z]{2,3}([_-][A-Za-z]{2,4})?"
        source, target = (name if re.fullmatch(code, name) else None for name in (self.source, self.target))
        of_files = self._languages_of_files()
        return source or of_files[0], target or of_files[1]

    def _languages_of_files(self) -> tuple[str | None, str | None]:
        """What the names of two aligned text files end in, where both are languages."""
        for files in (self.train_files, self.test_files, self.validation_files):
            ends = [language_of(Path(file).suffix.removeprefix(".")) for file in files or []]
            if len(ends) == 2 and None not in ends and ends[0] != ends[1]:
                return ends[0], ends[1]
        return None, None


@dataclass
class DecodingArguments:
    """How to translate. What is not given is as the model's `generation_config` says: the paper's search."""

    _argument_group_name = "decoding"

    num_beams: int | None = field(default=None, metadata={"help": "Beams; 1 is greedy search. The paper's is 4."})
    length_penalty: float | None = field(default=None, metadata={"help": "alpha; the paper's is 0.6."})
    max_new_tokens: int | None = field(
        default=None, metadata={"help": "Most tokens of a translation, instead of the paper's input length + 50."}
    )
    batch_tokens: int = field(default=4096, metadata={"help": "Most source tokens of a batch, padding included."})

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_new_tokens", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        if self.length_penalty is not None and not abs(self.length_penalty) <= LARGEST_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty is {self.length_penalty}; it must lie between -{LARGEST_LENGTH_PENALTY} and "
                f"{LARGEST_LENGTH_PENALTY}, the paper's is 0.6."
            )

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of `generate()`: those that were given."""
        values = {name: getattr(self, name) for name in ("num_beams", "length_penalty", "max_new_tokens")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class ScoringArguments:
    """How to score; the signature beside each score says it."""

    _argument_group_name = "scoring"

    bleu_tokenize: str | None = field(
        default=None,
        metadata={
            "help": '"13a" for running text, "none" for text that is tokenised already, "char" for single words; if '
            'not given, "char" for the built-in corpus, what the target language asks for (--target, or what the '
            'text files end in) if it is written without blanks, and "13a" for others.'
        },
    )
    lowercase: bool = field(default=False, metadata={"help": "Ignore case."})

    def __post_init__(self) -> None:
        if self.bleu_tokenize is None:
            return
        if self.bleu_tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(str(name) for name in BLEU.TOKENIZERS)
            raise ValueError(f'bleu_tokenize is "{self.bleu_tokenize}"; choose one of: {known}.')
        # Some need a library of their own, which is better missed now than at the end.
        try:
            BLEU(tokenize=self.bleu_tokenize)
        except RuntimeError as error:
            raise ValueError(
                f'bleu_tokenize is "{self.bleu_tokenize}": {error} Or give --bleu_tokenize char.'
            ) from error

    def for_target(self, language: str | None) -> "ScoringArguments":
        """The same, with words as a language has them that is written without blanks, unless it was said how.

        Raises:
            ValueError: if that needs a library that is not there.
        """
        tokenize = self.bleu_tokenize or _WITHOUT_BLANKS.get(re.split("[_-]", language or "")[0])
        return replace(self, bleu_tokenize=tokenize)

    def options(self, pairs: Dataset) -> dict[str, Any]:
        """Arguments of `score_translations`, for pairs."""
        default = "char" if is_number_corpus(pairs) else "13a"
        return {"tokenize": self.bleu_tokenize or default, "lowercase": self.lowercase}


def is_number_corpus(pairs: Dataset) -> bool:
    """Whether pairs are of the built-in corpus, whose translations are single words."""
    return "number" in pairs.column_names


def describe_search(model: PreTrainedModel, given: dict[str, Any] | None = None) -> str:
    """The search in words: the model's own settings, with what was given instead."""
    settings = copy.deepcopy(model.generation_config)
    # Not by update(), which judges settings, too.
    for name, value in (given or {}).items():
        setattr(settings, name, value)
    beams, limit = settings.num_beams or 1, _describe_limit(settings)
    if beams == 1:
        return f"sampling{limit}" if settings.do_sample else "greedy search"
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    penalty = f"length penalty {alpha} ({getattr(settings, 'length_penalty_type', 'hf')})"
    kind = "beam sampling" if settings.do_sample else "beam search"
    return f"{kind}, {beams} beams, {penalty}{limit}"


def _describe_limit(settings: GenerationConfig) -> str:
    """The most tokens of a translation, as far as the settings say it."""
    offset = getattr(settings, "max_length_offset", None)
    limit = settings.max_new_tokens or settings.max_length
    if offset is not None and not limits_length(settings):
        limit = f"source + {offset}"
    return f", at most {limit} tokens" if limit else ""


@contextmanager
def finding(name: str | Path) -> Iterator[None]:
    """Say, where a model is not found, that it was looked for in both places.

    Raises:
        FileNotFoundError: if a folder holds no model or no tokenizer, or if there is neither a folder nor a repository.
    """
    folder = Path(name)
    for file in ("config.json", "tokenizer_config.json"):
        if folder.is_dir() and not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} holds no {file}; name the folder of a model that was saved whole.")
    try:
        yield
    except OSError as error:
        if folder.is_dir():
            raise
        raise FileNotFoundError(f"there is no folder {folder}, and on the Hub: {error}") from error


def load(name: str, device: torch.device | None = None) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model of a folder or a name on the Hub.

    The model is on the device given; without one, on the accelerator where there is one.
    """
    with finding(name):
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForSeq2SeqLM.from_pretrained(name)
    # torch names the accelerator that it was built for, also where there is none.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    device = device or accelerator
    if device.type == "cpu":
        # Scores of many words are large, and fresh memory for them at every step takes its time.
        keep_freed_memory()
    return tokenizer, model.to(device)


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    data: str,
    decoding: DecodingArguments,
    scoring: ScoringArguments,
    show_progress: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """Translate pairs' sources and score them; returns the scores, with what they are of, and the translations."""
    given = decoding.generate_kwargs()
    hypotheses = translate(model, tokenizer, pairs["source"], decoding.batch_tokens, show_progress, **given)
    scores = score_translations(hypotheses, pairs["target"], **scoring.options(pairs))
    scores |= {"data": data, "decoding": describe_search(model, given)}
    if is_number_corpus(pairs):
        scores["exact_match_by_digits"] = exact_match_by_digits(pairs, hypotheses)
    return scores, hypotheses


def exact_match_by_digits(pairs: Dataset, hypotheses: Sequence[str]) -> dict[str, dict[str, float]]:
    """For numbers of each length: how many there are, and the percent translated exactly."""
    matches: dict[int, list[bool]] = {}
    for number, target, hypothesis in zip(pairs["number"], pairs["target"], hypotheses, strict=True):
        matches.setdefault(len(str(number)), []).append(hypothesis == target)
    return {
        str(digits): {"numbers": len(hits), "exact_match": 100 * sum(hits) / len(hits)}
        for digits, hits in sorted(matches.items())
    }


def show(scores: dict[str, Any]) -> None:
    """Print scores for a person."""
    print(f"{scores['sentences']} pairs of {scores['data']}")
    print(f"decoding: {scores['decoding']}")
    for digits, share in scores.get("exact_match_by_digits", {}).items():
        unit = "digit: " if digits == "1" else "digits:"
        print(f"  {digits} {unit} {share['exact_match']:5.1f} % of {share['numbers']}")
    print(f"exact match: {scores['exact_match']:.1f}")
    print(f"BLEU: {scores['bleu']:.2f}  {scores['bleu_signature']}")
    print(f"chrF: {scores['chrf']:.2f}  {scores['chrf_signature']}")


def check_can_write(*paths: str | None) -> None:
    """Find out before the work is done.

    Raises:
        OSError: if there is no folder to write a file into, or a folder where the file is to go.
        ValueError: if two files are one.
    """
    given = [Path(path) for path in paths if path is not None]
    if len(set(given)) < len(given):
        raise ValueError(f"{given[0]} is named twice; write into different files.")
    for path in given:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; name a file to write.")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} is not there; make the folder before writing {path}.")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path.parent} cannot be written to; choose another folder for {path.name}.")


def one_line(text: str) -> str:
    """A translation on a line of its own, whatever a model says."""
    return " ".join(text.splitlines())


def write(path: str | Path, text: str) -> None:
    """Write a whole text file or none."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def whole_file(path: str | Path, keeps_part: bool = False) -> Iterator[TextIO]:
    """A text file to write, which takes its name when all is written.

    Args:
        path: of the file.
        keeps_part: whether what is written before a failure stays, under another name, which is told.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        if keeps_part and temporary.stat().st_size:
            print(f"what was written until then is in {temporary}", file=sys.stderr)
        else:
            temporary.unlink()
        raise


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the program with an error's own sentence where the input is wrong, without a traceback."""
    try:
        yield
    except (ImportError, OSError, StrictDataclassError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")


def parse(
    dataclasses: Sequence[type],
    description: str,
    arguments: Sequence[str] | None = None,
    positional: str | None = None,
    takes_file: bool = True,
) -> tuple[Any, ...]:
    """Read a command line whose first argument may be a YAML or JSON file of arguments; those behind it override it.

    Args:
        dataclasses: types of arguments.
        description: the head of `--help`.
        arguments: the command line; `sys.argv[1:]` if None.
        positional: name of arguments without `--`, if any; they are returned last, as a list.
        takes_file: whether the first argument may be a file of arguments; not where it is a JSON file to read.

    Returns:
        One object a type.

    Raises:
        SystemExit: with one sentence, if the arguments are wrong.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    words = f" [{positional} ...]" if positional else ""
    usage = f"%(prog)s{' [ARGUMENTS.yaml]' if takes_file else ''}{words} [--name value ...]"
    parser = HfArgumentParser(dataclasses, description=description, usage=usage)
    if positional is not None:
        parser.add_argument(positional, nargs="*")
    file = Path(arguments[0]) if takes_file and arguments else Path()
    # Where words may come first, a sentence may end so, too.
    if file.suffix.lower() in (".yaml", ".yml", ".json") and (positional is None or file.is_file()):
        _set_defaults(parser, Path(arguments.pop(0)))
    with plain_errors():
        *parsed, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        parser.error(f"there is no argument {unknown[0]}; --help lists them.")
    if positional is None:
        return tuple(parsed)
    *parsed, namespace = parsed
    return (*parsed, getattr(namespace, positional))


def _set_defaults(parser: HfArgumentParser, path: Path) -> None:
    if not path.is_file():
        parser.error(f"{path} is not there; the first argument names a YAML or JSON file of arguments.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        parser.error(f"{path} is neither YAML nor JSON: {error}")
    if not isinstance(settings, dict):
        parser.error(f"{path} must hold names and values.")
    known = {action.dest: action for action in parser._actions if action.dest != "help"}
    for name, value in settings.items():
        if name not in known:
            parser.error(f'{path}: there is no argument "{name}"; --help lists them.')
        known[name].required = False
        try:
            parser.set_defaults(**{name: _convert(parser, known[name], value)})
        except (argparse.ArgumentError, TypeError) as error:
            parser.error(f"{path}: {name} is {value!r}: {error}")


def _convert(parser: HfArgumentParser, action: argparse.Action, value: Any) -> Any:
    """A value of a file as if it had been written on the command line."""
    if value is None and action.default is None:
        return None
    if isinstance(value, dict):
        return parser._get_value(action, json.dumps(value))
    if isinstance(value, bool) and action.type is str:
        raise TypeError("YAML takes words such as no and yes for truth values; put it in quotation marks")
    takes_list = action.nargs in ("+", "*")
    if isinstance(value, list) and not takes_list:
        raise TypeError("one value is needed")
    values = [parser._get_value(action, str(item)) for item in (value if isinstance(value, list) else [value])]
    return values if takes_list else values[0]
