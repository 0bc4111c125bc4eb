"""Check arguments, for example that they are whole numbers in a range, and shorten library error messages."""

from collections.abc import Iterable, Iterator
from numbers import Integral

from .user_errors import InputError


def check_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise TypeError unless an argument is a whole number, and ValueError if it is out of range.

    Booleans are rejected, although Python counts them as whole numbers.

    Args:
        name: the argument's name in the message.
        value: the argument's value.
        least, most: the smallest and the largest allowed number. If `most` is None, there is no upper bound.
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
    """Raise TypeError or ValueError unless the named attribute is None or a whole number of at least 1."""
    value = getattr(arguments, name)
    if value is not None:
        check_number(name, value, 1)


def check_strings(name: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield the strings in an argument, and check each of them before it is yielded.

    This is a generator, so these errors are raised only when the caller reads the strings: TypeError unless the
    argument is an iterable of strings, and ValueError if a string cannot be encoded as UTF-8.
    """
    if isinstance(texts, str):
        raise TypeError(f"{name} is one string; give a list of sentences.")
    if not isinstance(texts, Iterable):
        raise TypeError(f"{name} is {texts!r}; give a list of sentences.")
    for text in texts:
        _check_string(name, text)
        yield text


def _check_string(name: str, text: object) -> None:
    """Raise TypeError unless an item of an argument is a string, and InputError if the string has lone surrogates."""
    if not isinstance(text, str):
        raise TypeError(f"{name} contains {text!r}, a {type(text).__name__}; give strings.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} contains {text!r}, which is not UTF-8 text; decode it by its encoding.") from None


def reason_of(error: Exception) -> str:
    """Return a library error's message in one line that a user can understand.

    The error's own text may be empty, or it may consist only of the name of a missing key.
    """
    if isinstance(error, KeyError):
        # The text of a KeyError is the key in quotation marks.
        return f"a file lacks {error}"
    # split() splits at all white space, so this joins the lines of the message with single spaces.
    message = " ".join(str(error).split())
    # If the shapes of weights do not match, transformers advises developers to pass this argument.
    if "ignore_mismatched_sizes" in message:
        return "its weights have other shapes than its config.json describes"
    return message or repr(error)
