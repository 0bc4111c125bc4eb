"""Compare the lists of private names that the package uses with the installed transformers, and with the package."""

import ast
import inspect
import pkgutil
import re
from abc import ABC
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


Parameters = Mapping[str, Mapping[str, str]]
Attributes = Mapping[str, tuple[str, ...]]


def missing_parameters(listed: Parameters) -> Iterator[str]:
    """Yield a sentence for each listed method, function or parameter that the installed transformers lacks."""
    for place, methods in listed.items():
        for name, used_parameters in methods.items():
            function = getattr(pkgutil.resolve_name(place), name, None)
            if function is None:
                yield f"{place} has no {name}"
                continue
            parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            by_position, _, by_name = used_parameters.partition("*")
            first_parameters = re.findall(r"\w+", by_position)
            if parameters[: len(first_parameters)] != first_parameters:
                yield f"{place}.{name} takes {parameters}, not {first_parameters} first"
            for parameter in re.findall(r"\w+", by_name):
                if parameter not in parameters:
                    yield f"{place}.{name} takes {parameters}, not {parameter}"


def missing_attributes(listed: Attributes) -> Iterator[str]:
    """Listed attributes that the installed transformers neither has nor reads, as one sentence each."""
    for place, names in listed.items():
        owner = pkgutil.resolve_name(place)
        for name in names:
            # Attributes of instances are in the source alone.
            if not hasattr(owner, name) and not re.search(rf"\b{name}\b", inspect.getsource(owner)):
                yield f"{place} has no {name}"


def all_listed(parameters: Parameters, attributes: Attributes) -> set[str]:
    """The listed names of methods, functions and attributes, and private names of parameters."""
    methods = {name: of_method for methods in parameters.values() for name, of_method in methods.items()}
    private = re.findall(r"\b_\w+", " ".join(methods.values()))
    return {*methods, *private, *(name for names in attributes.values() for name in names)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def bases_in_transformers(modules: list[ModuleType]) -> Iterator[tuple[type, list[type]]]:
    """The classes of modules, each with its base classes in transformers."""
    for module in modules:
        for our_class in vars(module).values():
            if isinstance(our_class, type) and our_class.__module__ == module.__name__:
                yield our_class, [base for base in our_class.__mro__ if base.__module__.split(".")[0] == "transformers"]


def private_overrides(modules: list[ModuleType]) -> set[str]:
    """Private names of transformers' classes that classes of these modules define anew."""
    return {
        name
        for our_class, bases in bases_in_transformers(modules)
        for name in vars(our_class)
        if is_private(name) and name not in dir(ABC) and any(name in vars(base) for base in bases)
    }


def private_uses(paths: list[Path], modules: list[ModuleType]) -> set[str]:
    """Private attributes and arguments in files, which transformers' base classes have or no file defines.

    Those of torch, and of every `nn.Module`, do not count.
    """
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    theirs = {name for _, bases in bases_in_transformers(modules) for base in bases for name in vars(base)}
    ours = {name for tree in trees for name in defined(tree)} - theirs
    of_torch = {*dir(torch.nn.Module()), *dir(torch.utils.data.Dataset)} - theirs
    return {name for tree in trees for name in attributes(tree) if is_private(name) and name not in {*ours, *of_torch}}


def defined(tree: ast.AST) -> Iterator[str]:
    """Names of functions and classes, of variables of modules and classes, and of attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: Any) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def attributes(tree: ast.AST) -> Iterator[str]:
    """Names of arguments, and of attributes, as in `getattr(x, "name")` too, except those of the module torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not ast.unparse(node).startswith("torch."):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            owner, name = node.args[:2]
            if isinstance(name, ast.Constant) and not ast.unparse(owner).startswith("torch"):
                yield name.value
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def identifiers(paths: list[Path]) -> set[str]:
    """All names in files: defined, imported, read or written."""
    names: set[str] = set()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names |= {*defined(tree), *attributes(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
    return names


def refused_parameters(modules: list[ModuleType], listed: Parameters) -> Iterator[str]:
    """Parameters of listed methods that an override of these modules does not accept, as one sentence parameter."""
    for our_class, _ in bases_in_transformers(modules):
        for place, methods in listed.items():
            base = pkgutil.resolve_name(place)
            for name in methods:
                if not (isinstance(base, type) and issubclass(our_class, base) and name in vars(our_class)):
                    continue
                ours, theirs = (inspect.signature(getattr(owner, name)).parameters for owner in (our_class, base))
                if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in ours.values()):
                    continue
                # The first ones may have other names, because transformers passes them by position.
                refused = [parameter for parameter in list(theirs)[len(ours) :] if parameter not in ours]
                if refused:
                    yield f"{our_class.__name__}.{name} does not accept {refused}"
