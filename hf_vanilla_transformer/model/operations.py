"""The operations of the model that a faster implementation can replace, and the table of what replaces them.

A saved folder carries the operations with their plain formulas. Importing the package replaces some of them: see
`acceleration/`.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# By the plain operations.
_REPLACEMENTS: dict[Callable, Callable] = {}


def replaceable(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Declare that `replace` may put another implementation in the place of a function."""

    @wraps(operation)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        implementation = _REPLACEMENTS.get(operation, operation)
        return implementation(*args, **kwargs)

    return call


def replace(operation: Callable[Arguments, Result], implementation: Callable[Arguments, Result]) -> None:
    """Let calls of a replaceable operation run another implementation, in the whole process.

    Args:
        operation (`Callable`): declared by [`replaceable`].
        implementation (`Callable`): takes and returns what the operation does; it may call `plain(operation)` where it
            has nothing better.

    Raises:
        AttributeError: if the operation is not declared by [`replaceable`].
    """
    _REPLACEMENTS[plain(operation)] = implementation


def plain(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the formula of a replaceable operation, whatever replaces it."""
    return operation.__wrapped__  # type: ignore[attr-defined]
