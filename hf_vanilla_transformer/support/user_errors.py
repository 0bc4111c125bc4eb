"""Errors for users. The command line prints their message in one line, and any other error with its traceback."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ..model.input_checks import InputError as ModelInputError


class UserError(Exception):
    """A problem that the user can solve.

    Its message says which argument or file has which value, what is allowed, and what to do.
    """


class Terminated(KeyboardInterrupt):
    """The signal SIGTERM, which ends a command as Ctrl-C does, but with exit code 143."""


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal has ended: by convention 128 plus the signal's number."""
    if isinstance(interrupt, Terminated):
        return 128 + signal.SIGTERM
    return 128 + signal.SIGINT


class InputError(UserError, ModelInputError):
    """An argument, a file or a model that cannot be used."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Convert TypeError and ValueError, which libraries raise for wrong settings or data, into InputError."""
    try:
        yield
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


@contextmanager
def needing(extra: str, who_needs: str) -> Iterator[None]:
    """Raise ImportError that names the extra to install if a library that the block imports is missing.

    Args:
        extra: the package's extra that installs the library, such as "plots".
        who_needs: the beginning of the message, such as "plots need".
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or str(error)).partition(".")[0]
        raise ImportError(
            f"{who_needs} {library}; install it with: pip install '/path/to/this/repository[{extra}]'"
        ) from error
