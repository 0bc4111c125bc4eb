"""Define errors for problems that users can solve. The command line prints their message without a traceback."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ..model.input_checks import InputError as ModelInputError


class UserError(Exception):
    """Base class of errors for problems that the user can solve.

    The message names the argument or the file, its value, the allowed values, and what to do.
    """


class Terminated(KeyboardInterrupt):
    """Raised when a command receives SIGTERM. The command ends as after Ctrl-C, but with exit code 143."""


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code for a command that was ended by a signal: by convention, 128 plus the signal's number."""
    if isinstance(interrupt, Terminated):
        return 128 + signal.SIGTERM
    return 128 + signal.SIGINT


class InputError(UserError, ModelInputError):
    """Raised for an argument, a file or a model that cannot be used."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Convert TypeError and ValueError in the block to InputError. Libraries raise them for wrong settings or data."""
    try:
        yield
    except UserError:
        # This error already has a message for users. It must come first, because an InputError is a ValueError as well.
        raise
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error


@contextmanager
def needing(extra: str, who_needs: str) -> Iterator[None]:
    """Raise an ImportError that names the extra to install if a library imported in the block is missing.

    Args:
        extra: the extra of this package that installs the library, such as "plots".
        who_needs: the beginning of the message, before the library's name, such as "plots need".
    """
    try:
        yield
    except ImportError as error:
        # The name of the library, for example "matplotlib" if "matplotlib.figure" is missing.
        library = (error.name or str(error)).partition(".")[0]
        raise ImportError(
            f"{who_needs} {library}; install it with: pip install '/path/to/this/repository[{extra}]'"
        ) from error
