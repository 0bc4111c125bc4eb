"""Errors for users: the command line prints their message in one line, and any other error with its traceback."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ..model.input_checks import InputError as ModelInputError


class UserError(Exception):
    """What a user gave, or the machine lacks; the message says what was given, what is allowed, and what to do."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does, but with exit code 143."""


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


class InputError(UserError, ModelInputError):
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


@contextmanager
def needing(extra: str, who_needs: str) -> Iterator[None]:
    """Raise ImportError, which names the extra to install, if a library that is imported here is missing."""
    try:
        yield
    except ImportError as error:
        library = (error.name or str(error)).partition(".")[0]
        raise ImportError(
            f"{who_needs} {library}; install it with: pip install '/path/to/this/repository[{extra}]'"
        ) from error
