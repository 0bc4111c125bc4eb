"""Errors for users: the command line prints their message in one line, and any other error with its traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What a user gave, or the machine lacks; the message says what was given, what is allowed, and what to do."""


class InputError(UserError, ValueError):
    """An argument, a file or a model that cannot be used."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Raise what other libraries say of settings and data, in a TypeError or ValueError, as an InputError."""
    try:
        yield
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
