"""Build argument objects from names and values.

An argument class is a dataclass with one field for each argument, or a `NamedTuple` of several such dataclasses.
"""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from .user_errors import input_errors


T = TypeVar("T")


def option(default: object, text: str, **metadata: object) -> Any:
    """Declare a dataclass field for an argument, with its default and its help text.

    Args:
        default: the default value. If it is a list, each object gets its own copy. If it is `...`, there is no default,
            and a value must be given.
        text: the help text, which the command line shows.
        **metadata: further settings, which are described at `parse` in `apps/cli/parser.py`.
    """
    field_metadata = {**metadata, "help": text}
    if default is ...:
        return field(metadata=field_metadata)
    if isinstance(default, list):
        # dataclasses reject a list as a default, because all objects would share it.
        return field(default_factory=default.copy, metadata=field_metadata)
    return field(default=default, metadata=field_metadata)


def dataclasses_in(arguments_class: type) -> list[type]:
    """Return the dataclasses in an argument class: the class itself, or the dataclasses in a `NamedTuple`'s fields."""
    if is_dataclass(arguments_class):
        return [arguments_class]
    field_types = get_type_hints(arguments_class).values()
    return [field_type for field_type in field_types if is_dataclass(field_type) and isinstance(field_type, type)]


def build(arguments_class: type[T], arguments: Mapping[str, object]) -> T:
    """Build an object of an argument class from names and values. Arguments that are not given get their defaults.

    Raises InputError if a value is wrong or a required argument is missing, and TypeError if a name is unknown.

    Args:
        arguments_class: a dataclass, or a `NamedTuple` whose first fields are dataclasses.
        arguments: the values of some arguments, by name.
    """
    dataclasses = dataclasses_in(arguments_class)
    _check_names(arguments, dataclasses)

    objects = []
    # input_errors() converts the errors that a dataclass raises for a wrong or missing value.
    with input_errors():
        for dataclass in dataclasses:
            own_arguments = _select_arguments(arguments, dataclass)
            objects.append(dataclass(**own_arguments))
    if is_dataclass(arguments_class):
        # The argument class is itself the only dataclass.
        return objects[0]
    # The fields of the `NamedTuple` are in the same order as the dataclasses.
    return arguments_class(*objects)


def _check_names(arguments: Mapping[str, object], dataclasses: list[type]) -> None:
    """Raise TypeError if one of the arguments is defined by none of the dataclasses."""
    known_names: set[str] = set()
    for dataclass in dataclasses:
        known_names |= _argument_names(dataclass)
    unknown_names = sorted(arguments.keys() - known_names)
    if unknown_names:
        raise TypeError(f"there is no argument {unknown_names[0]}.")


def _select_arguments(arguments: Mapping[str, object], dataclass: type) -> dict[str, object]:
    """Return those arguments that a dataclass defines."""
    names = _argument_names(dataclass)
    return {name: value for name, value in arguments.items() if name in names}


def _argument_names(dataclass: type) -> set[str]:
    """Return the names of the arguments that a dataclass defines. Fields that `__init__` does not take are left out."""
    return {field.name for field in fields(dataclass) if field.init}
