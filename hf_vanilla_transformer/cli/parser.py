"""Parsing of command lines and recipes, and errors as one sentence."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from ..support.atomic_files import are_same_file
from ..support.recipes import RECIPE_SUFFIXES, read_recipe, recipes
from ..support.version import __version__
from . import PROGRAM


# Arguments that name files to write.
_OUTPUTS = ("output", "translations", "results")


@contextmanager
def plain_errors() -> Iterator[None]:
    """End the program with the message of an error in the input, or of too little memory, without a traceback."""
    try:
        yield
    except (ImportError, OSError, StrictDataclassError, TypeError, ValueError) as error:
        sys.exit(f"error: {in_one_line(error)}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
            raise
        reason = str(error).partition("\n")[0]
        sys.exit(f"error: not enough memory ({reason}); give fewer --num_beams or a smaller --tokens_per_batch.")


def in_one_line(error: Exception) -> str:
    """The message of an error without line breaks."""
    return " ".join(line.strip() for line in str(error).splitlines())


def parse(
    dataclasses: Sequence[type],
    description: str | None,
    arguments: Sequence[str] | None = None,
    positional: str | None = None,
    verb: str | None = None,
    rejected: Mapping[str, str] | None = None,
    takes_recipe_first: bool = True,
) -> tuple[Any, ...]:
    """Parse the command line of a verb. Arguments in a recipe (`--config`) come first, so the others override them.

    Args:
        dataclasses: types of arguments.
        description: the head of `--help`.
        arguments: the command line; `sys.argv[1:]` if None.
        positional: the name of arguments without `--`, if any; they are returned last, as a list. Without such
            arguments the first argument may be the recipe.
        verb: the verb, for `--help`; None for a program of its own.
        rejected: arguments of the dataclasses that the command line does not accept, and why.
        takes_recipe_first: whether the first argument may be the recipe; not if it may be a JSON file to read.

    Returns:
        One object for each type.

    Raises:
        SystemExit: with one sentence, if the arguments are wrong.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = _Parser(
        dataclasses,  # type: ignore[arg-type]
        prog=f"{PROGRAM} {verb}" if verb else None,
        description=description,
        usage=f"%(prog)s {f'[{positional} ...]' if positional else '[CONFIG]'} [--name value ...]",
        allow_abbrev=False,  # `--model` would stand for `--model_name_or_path`.
    )
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            parser.error(f"{argument!a} is not UTF-8; type it in UTF-8, or put sentences into a file.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument("--config", help=f"A YAML or JSON file of arguments, or a recipe: {', '.join(recipes())}.")
    if positional is not None:
        parser.add_argument(positional, nargs="*")
    for action in parser._actions:
        # HfArgumentParser does this only for arguments whose default is not None.
        if action.type is string_to_bool and action.nargs is None:
            action.nargs, action.const = "?", True
    rejected = rejected or {}
    for name in rejected:
        _remove(parser, name)
    config, arguments = _split_config(parser, arguments, positional, takes_recipe_first)
    if config is not None:
        _set_defaults(parser, config, rejected)
    _, unknown = parser.parse_known_args(arguments)
    if unknown:
        name = unknown[0].partition("=")[0]
        parser.error(rejected.get(name.removeprefix("--")) or f"there is no argument {name}; --help lists them.")
    with plain_errors():
        *parsed, rest = parser.parse_args_into_dataclasses(arguments)
        for output in (getattr(each, name, None) for each in parsed for name in _OUTPUTS):
            if config is not None and output is not None and are_same_file(config, output):
                raise ValueError(f"{output} is also an input, {config}; write to another file.")
    return (*parsed, getattr(rest, positional)) if positional is not None else tuple(parsed)


class _Parser(HfArgumentParser):
    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        namespace, unknown = super().parse_known_args(*args, **kwargs)
        # The Trainer chooses its device by `use_cpu`, when its arguments are built.
        if getattr(namespace, "device", None) == "cpu" and hasattr(namespace, "use_cpu"):
            namespace.use_cpu = True
        return namespace, unknown


def _remove(parser: argparse.ArgumentParser, name: str) -> None:
    for action in [action for action in parser._actions if action.dest == name]:
        action.container._remove_action(action)  # type: ignore[attr-defined]
        for option in action.option_strings:
            del parser._option_string_actions[option]
        parser.set_defaults(**{name: action.default})


def _split_config(
    parser: HfArgumentParser, arguments: list[str], positional: str | None, takes_recipe_first: bool
) -> tuple[str | None, list[str]]:
    """The value of `--config`, or a first argument in its place, and the other arguments."""
    option = argparse.ArgumentParser(prog=parser.prog, usage=parser.usage, add_help=False, allow_abbrev=False)
    option.add_argument("--config")
    given, others = option.parse_known_args(arguments)
    first = arguments[0] if arguments else ""
    # A sentence to translate may end like the name of a file.
    is_config = not first.startswith("-") if positional is None else _is_recipe_file(first)
    if first and is_config and takes_recipe_first:
        if given.config is not None:
            parser.error(f"config is {given.config}, but the first argument is {first}; give one of the two.")
        return first, others[1:]
    return given.config, others


def _is_recipe_file(argument: str) -> bool:
    return Path(argument).suffix.lower() in RECIPE_SUFFIXES and Path(argument).is_file()


def _set_defaults(parser: HfArgumentParser, config: str, rejected: Mapping[str, str]) -> None:
    """Make the values of a recipe the defaults of a parser."""
    try:
        settings = read_recipe(config)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    known = {action.dest: action for action in parser._actions if action.dest not in ("config", "help", "version")}
    for name, value in settings.items():
        if name not in known:
            unknown = f'there is no argument "{name}"; --help lists them.'
            parser.error(f"{config}: {rejected.get(name) or unknown}")
        known[name].required = False
        try:
            parser.set_defaults(**{name: _convert(parser, known[name], value)})
        except (argparse.ArgumentError, TypeError) as error:
            parser.error(f"{config}: {name} is {value!r}: {error}")


def _convert(parser: HfArgumentParser, action: argparse.Action, value: Any) -> Any:
    """A value of a recipe, converted like the same value on the command line."""
    if value is None and action.default is None:
        return None
    if isinstance(value, dict):
        return parser._get_value(action, json.dumps(value))
    if isinstance(value, bool) and action.type is str:
        raise TypeError("YAML reads words such as no and yes as true or false; put the value in quotation marks")
    takes_list = action.nargs in ("+", "*")
    if isinstance(value, list) and not takes_list:
        raise TypeError("one value is needed")
    values = [parser._get_value(action, str(item)) for item in (value if isinstance(value, list) else [value])]
    return values if takes_list else values[0]
