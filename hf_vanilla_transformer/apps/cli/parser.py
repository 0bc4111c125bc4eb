"""The command line of a verb: parsing, the help page, and errors in one line."""

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import get_annotations
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser

from ...model.input_checks import InputError as ModelInputError
from ...support.atomic_files import are_same_file
from ...support.build_arguments import build, dataclasses_in
from ...support.recipes import read_recipe, recipes
from ...support.user_errors import InputError, UserError
from ...support.version import __version__
from ...training.recipe_overrides import override_recipe
from . import PROGRAM


T = TypeVar("T")

# Arguments that name files to write.
_OUTPUTS = ("output", "translations", "results")
# Groups of `--help` in this order; others follow. Arguments of the last group are shown by `--help_all` only.
_GROUPS = ("arguments", "data", "model", "training", "evaluation", "output", "Hub")
_OTHERS = "other arguments of the Trainer"
_NOT_GIVEN = object()
# Characters of choices that `--help` shows in one line.
_LONG = 60


@contextmanager
def errors_in_one_line(shows_traceback: bool = False) -> Iterator[None]:
    """End the program with the message of an error that is for users; others keep their traceback.

    For users are the package's own errors, and those of the machine: files, network, missing libraries, memory.

    Args:
        shows_traceback: whether errors for users keep their traceback, too.
    """
    try:
        yield
    except (UserError, ModelInputError, StrictDataclassError, ImportError, OSError) as error:
        if shows_traceback:
            raise
        sys.exit(f"error: {' '.join(line.strip() for line in str(error).splitlines())}")
    except (MemoryError, RuntimeError) as error:
        is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
        if shows_traceback or not is_memory:
            raise
        reason = str(error).partition("\n")[0]
        sys.exit(f"error: not enough memory ({reason}); give smaller batches, or fewer --num_beams in a search.")


def program(main: Callable[[list[str]], T]) -> Callable[..., T]:
    """Decorate the `main` of a program, which gets its arguments: it ends in one line at an error for users.

    The decorated function takes the arguments, by default `sys.argv[1:]`; with `--traceback` errors are raised.
    """

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> T:
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        with errors_in_one_line("--traceback" in arguments):
            return main([argument for argument in arguments if argument != "--traceback"])

    return run


def parse(kind: type[T], description: str | None, arguments: Sequence[str], verb: str | None = None) -> T:
    """Parse a command line into one object.

    Args:
        kind: a dataclass of arguments, or a `NamedTuple` of several such classes. A field has its help in its metadata,
            and `"group"` if its group in `--help` is not that of its class; one field may be `"positional"`.
        description: the head of `--help`; its lines that are commands become examples.
        arguments: the command line. The arguments of a recipe (`--config`) come first, so the others override them.
        verb: the verb, for `--help`; None for a program of its own.

    Raises:
        InputError: if an argument is missing, does not exist or has a wrong type or value.
    """
    return build(kind, given_arguments(kind, description, arguments, verb))


def given_arguments(
    kind: type,
    description: str | None,
    arguments: Sequence[str],
    verb: str | None = None,
    hidden: Collection[str] = (),
) -> dict[str, Any]:
    """The arguments that a command line and its recipe give, by name; see [`parse`]. No help shows those `hidden`."""
    known = {each.name: each for each in _arguments_of(kind)}
    parser = _make_parser(list(known.values()), description, verb, hidden, "--help_all" in arguments)
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise InputError(f"{argument!a} is not UTF-8; type it in UTF-8, or put sentences into a file.")
    given = _given(parser, known, arguments)
    config = given.pop("config", None)
    if config is not None:
        given = override_recipe(read_recipe(config, kind), given)
        for output in (given.get(name) for name in _OUTPUTS):
            if output is not None and are_same_file(config, output):
                raise InputError(f"{output} is also an input, {config}; write to another file.")
    missing = [name for name, each in known.items() if each.is_required and name not in given]
    if missing:
        raise InputError(f"{', '.join(f'--{name}' for name in missing)} must be given; --help lists all arguments.")
    return given


class _Argument(NamedTuple):
    """A field of a dataclass: its type, not the name of its type, and its group in `--help`."""

    field: dataclasses.Field[Any]
    type: Any
    group: str

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def is_positional(self) -> bool:
        return bool(self.field.metadata.get("positional"))

    @property
    def is_required(self) -> bool:
        return self.field.default is dataclasses.MISSING and self.field.default_factory is dataclasses.MISSING

    def optional_field(self, is_shown: bool) -> Any:
        """The field for HfArgumentParser; required arguments are checked after the recipe was read."""
        metadata = {name: self.field.metadata[name] for name in ("help", "aliases") if name in self.field.metadata}
        if not is_shown:
            metadata["help"] = argparse.SUPPRESS
        if self.field.default_factory is not dataclasses.MISSING:
            return dataclasses.field(default_factory=self.field.default_factory, metadata=metadata)
        default = None if self.is_required else self.field.default
        if self.type == bool | None:
            default = False  # Otherwise `--bf16` would need a value.
        return dataclasses.field(default=default, metadata=metadata)


def _arguments_of(kind: type) -> Iterator[_Argument]:
    for part in dataclasses_in(kind):
        groups: dict[str, str] = getattr(part, "_argument_groups", {})
        hints, own = get_type_hints(part), get_annotations(part)
        name_of_class = getattr(part, "_argument_group_name", "arguments")
        for each in dataclasses.fields(part):
            if each.init:
                group = name_of_class if not groups or each.name in own else _OTHERS
                group = each.metadata.get("group", groups.get(each.name, group))
                yield _Argument(each, hints[each.name], group)


def _make_parser(
    known: Sequence[_Argument], description: str | None, verb: str | None, hidden: Collection[str], shows_all: bool
) -> HfArgumentParser:
    options, positional = ([each for each in known if each.is_positional is which] for which in (False, True))
    kinds = []
    # In a group, arguments of its own class come first.
    options = sorted(options, key=lambda each: (_order(each.group), "group" in each.field.metadata))
    for group in dict.fromkeys(each.group for each in options):
        is_shown = group != _OTHERS or shows_all
        members: list[Any] = [
            (each.name, each.type, each.optional_field(is_shown and each.name not in hidden))
            for each in options
            if each.group == group
        ]
        kinds.append(dataclasses.make_dataclass("Group", members, namespace={"_argument_group_name": group}))
    lines = [line.strip() for line in (description or "").splitlines()]
    examples = [f"  {line}" for line in lines if line.startswith(f"{PROGRAM} ")]
    text = "\n".join(line for line in lines if not line.startswith(f"{PROGRAM} ")).strip()
    parser = HfArgumentParser(
        kinds,  # type: ignore[arg-type]
        prog=f"{PROGRAM} {verb}" if verb else None,
        description="\n\n".join(textwrap.fill(paragraph, 80) for paragraph in text.split("\n\n")),
        epilog="\n".join(["examples:", *examples]) if examples else None,
        usage=f"%(prog)s {f'[{positional[0].name} ...] ' if positional else ''}[--name value ...]",
        allow_abbrev=False,  # `--model` would stand for `--model_name_or_path`.
        exit_on_error=False,
        formatter_class=_HelpFormatter,
    )
    for each in positional:
        parser.add_argument(each.name, nargs="*", help=each.field.metadata.get("help"))
    parser.add_argument("--config", help=f"A YAML or JSON file of arguments, or a recipe: {', '.join(recipes())}.")
    if any(each.group == _OTHERS for each in options):
        parser.add_argument("--help_all", action="help", help=f"Show the {_OTHERS}, too.")
    parser.add_argument("--traceback", action="store_true", help="Show where an error was raised.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


def _order(group: str) -> int:
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS) + (group == _OTHERS)


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """One spelling of each argument, a short name for its value, and its default if it has one."""

    def add_argument(self, action: argparse.Action) -> None:
        # HfArgumentParser adds `--no_NAME`, with the help of `--NAME`.
        if f"--no_{action.dest}" not in action.option_strings:
            super().add_argument(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_none = action.default is None or action.default is False or action.nargs == 0
        return action.help if has_none or "default:" in (action.help or "") else super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        spellings = [spelling for spelling in action.option_strings if "-" not in spelling.removeprefix("--")]
        if not spellings or action.nargs == 0:
            return ", ".join(spellings) or super()._format_action_invocation(action)
        if action.nargs == "?":
            return f"{spellings[0]}{' {true,false}' if action.default is True else ''}"
        name = "N" if action.type is int else "X" if action.type is float else "VALUE"
        if action.choices is not None and len(choices := ",".join(map(str, action.choices))) < _LONG:
            name = f"{{{choices}}}"
        return f"{', '.join(spellings)} {name}{f' [{name} ...]' if action.nargs == '+' else ''}"


def _given(parser: HfArgumentParser, names: Collection[str], arguments: Sequence[str]) -> dict[str, Any]:
    """The values of a command line, without defaults."""
    namespace = argparse.Namespace(**dict.fromkeys(names, _NOT_GIVEN))
    try:
        _, unknown = parser.parse_known_args(arguments, namespace)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    if unknown:
        raise InputError(f"there is no argument {unknown[0].partition('=')[0]}; --help lists them.")
    values = {name: getattr(namespace, name) for name in (*names, "config")}
    return {name: value for name, value in values.items() if value is not _NOT_GIVEN and value not in (None, [])}
