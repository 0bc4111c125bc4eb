"""Checks of arguments that several parts of the package share."""

from collections.abc import Iterable, Iterator
from numbers import Integral

from .user_errors import InputError


def check_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise TypeError unless an argument is a whole number, and ValueError if it is out of range.

    Booleans are rejected, although Python counts them as whole numbers.

    Args:
        name: the argument's name in the message.
        value: the argument.
        least, most: the bounds, both included; without `most` there is no upper bound.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give a whole number.")
    number = int(value)
    if most is None:
        if number < least:
            raise InputError(f"{name} is {number}; it must be at least {least}.")
    elif number < least or number > most:
        raise InputError(f"{name} is {number}; it must lie between {least} and {most}.")


def check_optional(arguments: object, name: str) -> None:
    """Raise an error if an optional attribute is neither None nor a whole number of at least 1."""
    value = getattr(arguments, name)
    if value is not None:
        check_number(name, value, 1)


def check_strings(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of an argument, and check each of them.

    Raises TypeError unless the argument is an iterable of strings, and ValueError if a string contains lone surrogates,
    which no UTF-8 text has.
    """
    if isinstance(texts, str):
        raise TypeError(f"{name} is one string; give a list of sentences.")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{name} is {texts!r}; give a list of sentences.")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} contains {text!r}, a {type(text).__name__}; give strings.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name} contains {text!r}, which is not UTF-8 text; decode it by its encoding.") from None
        yield text


def reason_of(error: Exception) -> str:
    """Return the message of a library's error in one line, in words that a user understands.

    The text of such an error may be empty, or only the name of a missing key.
    """
    if isinstance(error, KeyError):
        return f"a file lacks {error}"
    message = " ".join(str(error).split())
    # transformers advises its developers to pass this argument if weights do not fit.
    if "ignore_mismatched_sizes" in message:
        return "its weights have other shapes than its config.json describes"
    return message or repr(error)
