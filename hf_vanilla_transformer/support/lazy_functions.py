"""Register functions by name, and import each of them only when it is first used."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any


class LazyFunctions:
    """A registry of functions by name. Each is registered as a string such as `"package.module:function"`.

    The core of the package must not import the applications in `apps/`, so it calls their functions through a registry.
    `registration.py` fills the registries.
    """

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def register(self, name: str, path: str) -> None:
        """Register a function under a name. If the name is already registered, the new function takes its place."""
        self._paths[name] = path

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        """Iterate over the registered names."""
        return iter(self._paths)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Import and return the function with this name. Raises KeyError if the name is not registered."""
        # A path such as "package.module:function" consists of the name of a module and the name of a function in it.
        module, _, function = self._paths[name].partition(":")
        return getattr(import_module(module), function)
