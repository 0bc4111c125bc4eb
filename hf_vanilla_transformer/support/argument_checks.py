"""Checks of arguments that several parts of the package share."""

from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

from .user_errors import InputError


def check_number(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise TypeError if an argument is not a whole number, as `True` is none; ValueError if it is out of range."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give a whole number.")
    if int(value) < least or (most is not None and int(value) > most):
        bounds = f"be at least {least}" if most is None else f"lie between {least} and {most}"
        raise InputError(f"{name} is {int(value)}; it must {bounds}.")


def reason_of(error: Exception) -> str:
    """What an error of a library says, in one line; such errors may be empty, or a name alone."""
    if isinstance(error, KeyError):
        return f"a file lacks {error}"
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json describes"
    return " ".join(str(error).split()) or repr(error)


def check_strings(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of an argument; TypeError if it is no list of strings, ValueError for lone surrogates."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        given = "one string" if isinstance(texts, str) else repr(texts)
        raise TypeError(f"{name} is {given}; give a list of sentences.")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} contains {text!r}, a {type(text).__name__}; give strings.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name} contains {text!r}, which is not UTF-8 text; decode it by its encoding.") from None
        yield text


def check_optional(arguments: Any, name: str) -> None:
    """Raise ValueError if an argument is given and less than 1."""
    if getattr(arguments, name) is not None:
        check_number(name, getattr(arguments, name), 1)
