"""Objects of arguments from values by name: a dataclass, or a `NamedTuple` of several dataclasses."""

from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from .user_errors import input_errors


T = TypeVar("T")


def option(default: Any, text: str, **metadata: Any) -> Any:
    """A field of a dataclass of arguments.

    Args:
        default: its default; of a list each object gets a copy, and `...` is for none, so that a value must be given.
        text (`str`): its help.
        **metadata: see [`parse`].
    """
    metadata["help"] = text
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def kinds_of(kind: type) -> list[type]:
    """The dataclass itself, or the dataclasses that a `NamedTuple` begins with."""
    kinds = [kind] if is_dataclass(kind) else get_type_hints(kind).values()
    return [each for each in kinds if is_dataclass(each) and isinstance(each, type)]


def build(kind: type[T], given: dict[str, Any]) -> T:
    """An object of a class from values by name; names that are not given get their defaults.

    Raises InputError for a wrong value, and TypeError for an unknown name or a missing one.
    """
    kinds = kinds_of(kind)
    names = [{each.name for each in fields(part) if each.init} for part in kinds]
    for name in sorted(given.keys() - set().union(*names)):
        raise TypeError(f"there is no argument {name}.")
    with input_errors():
        parts = [
            part(**{name: value for name, value in given.items() if name in known})
            for part, known in zip(kinds, names, strict=True)
        ]
    return parts[0] if is_dataclass(kind) else kind(*parts)
