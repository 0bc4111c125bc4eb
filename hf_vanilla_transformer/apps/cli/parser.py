"""Parse a verb's command line, print its help page, and report errors in one line."""

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
# The order of the groups in `--help`. Other groups follow.
_GROUPS = ("arguments", "data", "model", "training", "evaluation", "output", "Hub")
# The last group, whose arguments are shown by `--help_all` only.
_TRAINER_GROUP = "other arguments of the Trainer"
# Marks an argument that is not on the command line. None cannot mark it, because None may be its value.
_NOT_GIVEN = object()
# `--help` lists an argument's choices next to its name if they have fewer characters than this limit.
_MOST_CHARACTERS_OF_CHOICES = 60


@contextmanager
def errors_in_one_line(shows_traceback: bool = False) -> Iterator[None]:
    """End the program with a one-line message instead of a traceback if the block raises an error for the user.

    Errors for the user are the errors that this package raises, and errors of the machine: files, network, missing
    libraries, and memory. All other errors are bugs, and keep their traceback.

    Args:
        shows_traceback: True if errors for the user keep their traceback as well.
    """
    try:
        yield
    except (UserError, ModelInputError, StrictDataclassError, ImportError, OSError) as error:
        if shows_traceback:
            raise
        lines = [line.strip() for line in str(error).splitlines()]
        # With a text, sys.exit prints it to standard error and ends the program with code 1.
        sys.exit(f"error: {' '.join(lines)}")
    except (MemoryError, RuntimeError) as error:
        if shows_traceback or not _is_memory_error(error):
            raise
        reason = str(error).partition("\n")[0]
        sys.exit(f"error: not enough memory ({reason}); give smaller batches, or fewer --num_beams in a search.")


def _is_memory_error(error: Exception) -> bool:
    """Return True if an error means that the memory of the CPU or of the accelerator is exhausted."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # If the CPU's memory is exhausted, PyTorch raises a plain RuntimeError.
    return "can't allocate memory" in str(error)


def program(main: Callable[[list[str]], T]) -> Callable[..., T]:
    """Decorate a program's `main` function, so that errors for the user end the program with a one-line message.

    The decorated function takes the command line's arguments, by default `sys.argv[1:]`. With `--traceback`, it raises
    all errors.
    """

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> T:
        if arguments is None:
            arguments = sys.argv[1:]
        remaining_arguments = [argument for argument in arguments if argument != "--traceback"]
        with errors_in_one_line(shows_traceback="--traceback" in arguments):
            return main(remaining_arguments)

    return run


def parse(argument_class: type[T], description: str | None, arguments: Sequence[str], verb: str | None = None) -> T:
    """Parse a command line into an instance of `argument_class`.

    Args:
        argument_class: a dataclass of arguments, or a `NamedTuple` of several such dataclasses. The metadata of a field
            contains its help text. It contains `"group"` if `--help` shows the argument in a different group than its
            class, and `"positional"` if the argument has no name on the command line. Only one field may be positional.
        description: the text at the head of `--help`. Lines that are commands become the examples.
        arguments: the command line. It overrides the arguments of the recipe that `--config` names.
        verb: the verb, which `--help` shows, or None for a program that is not a verb.

    Raises:
        InputError: if an argument is missing, does not exist, or has a wrong type or value.
    """
    return build(argument_class, given_arguments(argument_class, description, arguments, verb))


def given_arguments(
    argument_class: type,
    description: str | None,
    arguments: Sequence[str],
    verb: str | None = None,
    hidden: Collection[str] = (),
) -> dict[str, Any]:
    """Return the values that a command line and its recipe set, by argument name. Defaults are not included.

    `hidden` names arguments that neither `--help` nor `--help_all` shows. [`parse`] describes the other arguments, the
    recipe and the errors.
    """
    # If two classes have an argument of the same name, only the argument of the later class is kept.
    arguments_by_name = {argument.name: argument for argument in _list_arguments(argument_class)}
    known_arguments = list(arguments_by_name.values())
    parser = _make_parser(known_arguments, description, verb, hidden, shows_all="--help_all" in arguments)
    _check_encoding(arguments)
    values = _parse_values(parser, arguments_by_name, arguments)
    # `config` is removed, because it is not an argument of `argument_class`.
    recipe = values.pop("config", None)
    if recipe is not None:
        values = _add_recipe_values(values, recipe, argument_class)
    # This comes last, because a required argument may be in the recipe.
    _check_required(known_arguments, values)
    return values


def _add_recipe_values(command_line_values: dict[str, Any], recipe: str, argument_class: type) -> dict[str, Any]:
    """Return the values of a command line and of its recipe.

    Values of the recipe that the command line overrides or contradicts are left out. Raises InputError if an output
    file, which the command line or the recipe may name, would overwrite the recipe's file.
    """
    recipe_values = read_recipe(recipe, argument_class)
    values = override_recipe(recipe_values, command_line_values)
    _check_outputs(values, recipe)
    return values


def _check_required(known_arguments: Sequence["_Argument"], values: Mapping[str, object]) -> None:
    """Raise InputError if a required argument has no value."""
    missing_options = []
    for argument in known_arguments:
        if argument.is_required and argument.name not in values:
            missing_options.append(f"--{argument.name}")
    if missing_options:
        raise InputError(f"{', '.join(missing_options)} must be given; --help lists all arguments.")


def _check_encoding(arguments: Sequence[str]) -> None:
    """Raise InputError if an argument is not UTF-8."""
    for argument in arguments:
        # Python decodes bytes that are not UTF-8 into lone surrogates.
        has_surrogate = any("\ud800" <= character <= "\udfff" for character in argument)
        if has_surrogate:
            raise InputError(f"{argument!a} is not UTF-8; type it in UTF-8, or put sentences into a file.")


def _check_outputs(values: dict[str, Any], recipe: str) -> None:
    """Raise InputError if an output file would overwrite the recipe's file."""
    for name in _OUTPUTS:
        output = values.get(name)
        if output is not None and are_same_file(recipe, output):
            raise InputError(f"{output} is also an input, {recipe}; write to another file.")


class _Argument(NamedTuple):
    """A command-line argument, which is defined by a field of a dataclass.

    `type` is the type itself, because `field.type` may only be its name. `group` is the argument's group in `--help`.
    """

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
        """Return a copy of the field that HfArgumentParser turns into an optional argument.

        Required arguments become optional because a recipe may set them. They are checked after the recipe has been
        read. `--help` lists the argument only if `is_shown`.

        The default of the copy is only used to declare the argument and to show it in `--help`. It never becomes the
        argument's value, because `_parse_values` leaves out all arguments that are not on the command line. Unless a
        recipe sets the argument, the dataclass that defines it then sets its own default.
        """
        metadata = self._metadata_for_help(is_shown)
        default_factory = self.field.default_factory
        if default_factory is not dataclasses.MISSING:
            # The default is a list or another value that can be changed, so the field has a function that makes it.
            return dataclasses.field(default_factory=default_factory, metadata=metadata)
        default = self.field.default
        if self.is_required:
            # A required argument has no default. Any default makes it optional.
            default = None
        if self.type == bool | None:
            # This is a switch such as `--bf16`, whose own default None means "not given". With the default None,
            # HfArgumentParser would require a value after `--bf16`. With False, the name alone switches it on.
            default = False
        return dataclasses.field(default=default, metadata=metadata)

    def _metadata_for_help(self, is_shown: bool) -> dict[str, Any]:
        """Return the metadata from which HfArgumentParser reads an argument's help text and its other spellings."""
        metadata: dict[str, Any] = {"help": argparse.SUPPRESS}
        if is_shown:
            metadata["help"] = self.field.metadata.get("help")
        if "aliases" in self.field.metadata:
            metadata["aliases"] = self.field.metadata["aliases"]
        return metadata


def _list_arguments(argument_class: type) -> Iterator[_Argument]:
    """Yield the command-line arguments that a dataclass, or a `NamedTuple` of dataclasses, defines."""
    for dataclass in dataclasses_in(argument_class):
        types = get_type_hints(dataclass)
        for field in dataclasses.fields(dataclass):
            # Fields that __init__ does not take are computed, so they are no arguments.
            if field.init:
                yield _Argument(field, types[field.name], _choose_group(dataclass, field))


def _choose_group(dataclass: type, field: dataclasses.Field[Any]) -> str:
    """Return the group of `--help` to which a field of a dataclass belongs."""
    # The first of these that names a group decides: the field, the map of the Trainer's arguments, and the class.
    if "group" in field.metadata:
        return field.metadata["group"]
    # Only our subclass of transformers' TrainingArguments has this attribute. It maps arguments to groups.
    group_by_argument: dict[str, str] = getattr(dataclass, "_argument_groups", {})
    if field.name in group_by_argument:
        return group_by_argument[field.name]
    # The Trainer's other arguments are inherited from transformers. Only --help_all shows them.
    is_inherited = field.name not in get_annotations(dataclass)
    if group_by_argument and is_inherited:
        return _TRAINER_GROUP
    # All other classes may name a group for their arguments.
    return getattr(dataclass, "_argument_group_name", "arguments")


def _make_parser(
    arguments: Sequence[_Argument],
    description: str | None,
    verb: str | None,
    hidden: Collection[str],
    shows_all: bool,
) -> HfArgumentParser:
    """Build a verb's argument parser, including its help page.

    Args:
        description: the docstring of the verb.
        verb: the name of the verb, or None for a program that is not a verb.
        hidden: names of arguments that the help page does not show.
        shows_all: True if the help page shows the rarely used arguments of the Trainer.
    """
    options = [argument for argument in arguments if not argument.is_positional]
    positionals = [argument for argument in arguments if argument.is_positional]
    text, epilog = _split_description(description)
    parser = HfArgumentParser(
        _make_groups(options, hidden, shows_all),  # type: ignore[arg-type]
        prog=_name_program(verb),
        description=text,
        epilog=epilog,
        usage=_write_usage(positionals),
        # Otherwise `--model` would be accepted as an abbreviation of `--model_name_or_path`.
        allow_abbrev=False,
        # Errors are raised as ArgumentError, so that `_parse_values` can report them.
        exit_on_error=False,
        formatter_class=_HelpFormatter,
    )

    for positional in positionals:
        parser.add_argument(positional.name, nargs="*", help=positional.field.metadata.get("help"))
    has_trainer_group = any(option.group == _TRAINER_GROUP for option in options)
    _add_common_options(parser, has_trainer_group)
    return parser


def _name_program(verb: str | None) -> str | None:
    """Return the name of a verb's program for `--help`; None, which stands for argparse's default, without a verb."""
    if verb is None:
        return None
    return f"{PROGRAM} {verb}"


def _write_usage(positionals: Sequence[_Argument]) -> str:
    """Return the first line of `--help`, in which argparse replaces %(prog)s by the program's name."""
    if not positionals:
        return "%(prog)s [--name value ...]"
    # A verb has at most one positional argument.
    return f"%(prog)s [{positionals[0].name} ...] [--name value ...]"


def _add_common_options(parser: HfArgumentParser, has_trainer_group: bool) -> None:
    """Add the options that all verbs have, and `--help_all` if the verb has the group of the Trainer's options."""
    parser.add_argument("--config", help=f"A YAML or JSON file of arguments, or a recipe: {', '.join(recipes())}.")
    if has_trainer_group:
        parser.add_argument("--help_all", action="help", help=f"Also show the {_TRAINER_GROUP}.")
    parser.add_argument("--traceback", action="store_true", help="Show where an error was raised.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")


def _make_groups(options: Sequence[_Argument], hidden: Collection[str], shows_all: bool) -> list[type]:
    """Create a dataclass for each group of `--help`, because HfArgumentParser turns each dataclass into a group.

    The names in `hidden` are not shown. The rarely used arguments of the Trainer are shown only if `shows_all`.
    """
    group_classes = []
    for group, group_options in _sort_into_groups(options).items():
        is_group_shown = shows_all or group != _TRAINER_GROUP
        fields = []
        for option in group_options:
            is_shown = is_group_shown and option.name not in hidden
            fields.append((option.name, option.type, option.optional_field(is_shown)))
        # HfArgumentParser reads the group's name from this attribute.
        attributes = {"_argument_group_name": group}
        group_classes.append(dataclasses.make_dataclass("Group", fields, namespace=attributes))
    return group_classes


def _sort_into_groups(options: Sequence[_Argument]) -> dict[str, list[_Argument]]:
    """Return the options of each group of `--help`, in the order in which the groups are shown.

    The groups in `_GROUPS` come first, in that order. The last group has the rarely used arguments of the Trainer.
    """
    # A field's metadata has "group" if the option is moved to a different group than its class. Within a group, moved
    # options come last.
    own_options = [option for option in options if "group" not in option.field.metadata]
    moved_options = [option for option in options if "group" in option.field.metadata]
    options_by_group = _group_options([*own_options, *moved_options])

    other_groups = [group for group in options_by_group if group not in (*_GROUPS, _TRAINER_GROUP)]
    sorted_groups: dict[str, list[_Argument]] = {}
    for group in (*_GROUPS, *other_groups, _TRAINER_GROUP):
        # A verb may have no options of a group.
        if group in options_by_group:
            sorted_groups[group] = options_by_group[group]
    return sorted_groups


def _group_options(options: Sequence[_Argument]) -> dict[str, list[_Argument]]:
    """Return the options of each group, in the order of the options."""
    options_by_group: dict[str, list[_Argument]] = {}
    for option in options:
        options_by_group.setdefault(option.group, []).append(option)
    return options_by_group


def _split_description(description: str | None) -> tuple[str, str | None]:
    """Split a verb's docstring into the text above and below the list of options in `--help`.

    The text above is wrapped at 80 columns. The text below has the example commands, and is None if there are none.
    """
    if description is None:
        return "", None
    text_lines = []
    examples = []
    for line in description.splitlines():
        stripped_line = line.strip()
        if stripped_line.startswith(f"{PROGRAM} "):
            examples.append(f"  {stripped_line}")
        else:
            text_lines.append(stripped_line)
    text_above = _wrap_paragraphs("\n".join(text_lines))
    if not examples:
        return text_above, None
    return text_above, "\n".join(["examples:", *examples])


def _wrap_paragraphs(text: str) -> str:
    """Wrap each paragraph of a text at 80 columns. Empty lines separate paragraphs."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(textwrap.fill(paragraph, 80) for paragraph in paragraphs)


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """A formatter for `--help` that shows one spelling of each argument, a name for its value, and its default."""

    def add_argument(self, action: argparse.Action) -> None:
        # HfArgumentParser adds `--no_NAME` with the help of `--NAME`, which would only repeat it.
        if f"--no_{action.dest}" not in action.option_strings:
            super().add_argument(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # argparse calls this method for each option. The parent class appends the default to the help text. The default
        # is not appended for options without a value (`nargs == 0`), and for switches that are off by default.
        has_default = action.default is not None and action.default is not False and action.nargs != 0
        states_default = "default:" in (action.help or "")
        if has_default and not states_default:
            return super()._get_help_string(action)
        return action.help

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Format an option's name with a short name for its value, such as `--seed N`.

        argparse calls this method for each option, and shows the result at the left of the option's help text.
        """
        # HfArgumentParser adds a second spelling with hyphens, which is not shown.
        spellings = [spelling for spelling in action.option_strings if "-" not in spelling.removeprefix("--")]
        if not spellings:
            # The argument is positional.
            return super()._format_action_invocation(action)
        names = ", ".join(spellings)
        if action.nargs == 0:
            # The option takes no value, such as --help.
            return names
        if action.nargs == "?":
            # The value may be left out, so the option is a switch.
            return _format_switch(spellings[0], action)
        value_name = self._name_value(action)
        if action.nargs == "+":
            # The option takes one or more values.
            return f"{names} {value_name} [{value_name} ...]"
        return f"{names} {value_name}"

    def _name_value(self, action: argparse.Action) -> str:
        """Return an argument's choices if they are short, or else a name for its type, such as `N` for a number."""
        if action.choices is not None:
            choices = ",".join(str(choice) for choice in action.choices)
            if len(choices) < _MOST_CHARACTERS_OF_CHOICES:
                return f"{{{choices}}}"
        if action.type is int:
            return "N"
        if action.type is float:
            return "X"
        return "VALUE"


def _format_switch(name: str, action: argparse.Action) -> str:
    """Format the name of a switch, with its values only if it is on by default, so that users can turn it off."""
    if action.default is True:
        return f"{name} {{true,false}}"
    return name


def _parse_values(parser: HfArgumentParser, names: Collection[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command line sets, by argument name. Defaults are not included.

    Raises InputError if an argument does not exist or has a wrong type.
    """
    # All verbs have --config, which is not among `names`.
    all_names = [*names, "config"]
    namespace = _make_namespace(all_names)
    try:
        _, unknown_arguments = parser.parse_known_args(arguments, namespace)
    except argparse.ArgumentError as error:
        raise InputError(str(error)) from error
    if unknown_arguments:
        unknown_name, _, _ = unknown_arguments[0].partition("=")
        raise InputError(f"there is no argument {unknown_name}; --help lists them.")
    return _collect_values(namespace, all_names)


def _make_namespace(names: Sequence[str]) -> argparse.Namespace:
    """Return an object whose attributes the parser sets to the arguments on the command line.

    The parser sets a default only if an attribute does not exist. So arguments that are not on the
    command line keep the value `_NOT_GIVEN`.
    """
    namespace = argparse.Namespace()
    for name in names:
        setattr(namespace, name, _NOT_GIVEN)
    return namespace


def _collect_values(namespace: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the arguments that are on the command line, by name."""
    values = {}
    for name in names:
        value = getattr(namespace, name)
        # A positional argument takes any number of values. If there are none, the parser sets an empty list.
        is_on_command_line = value is not _NOT_GIVEN and value != []
        if is_on_command_line:
            values[name] = value
    return values
