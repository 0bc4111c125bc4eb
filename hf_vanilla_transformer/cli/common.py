"""What the command lines have in common: files of arguments, models, scores, and writing."""

import argparse
import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch
import yaml
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .. import score_translations, translate
from ..memory import keep_freed_memory
from ..model.generation_vanilla_transformer import limits_length
from .arguments import DecodingArguments, ScoringArguments, is_number_corpus


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
