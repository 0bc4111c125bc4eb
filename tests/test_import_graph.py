"""Imports run one way, from the command line down to the model, and never in a circle.

tests/model/test_remote_code.py holds the files of `model/` to the standard library, torch, transformers,
huggingface_hub and each other.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
PACKAGE = "hf_vanilla_transformer"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / PACKAGE).rglob("*.py")
}
# Rooms that each room may not import, not even inside a function.
FORBIDDEN = {
    "model": {"cli", "conversion", "data", "evaluation", "hub", "serving", "training"},
    "data": {"cli", "conversion", "evaluation", "hub", "serving", "training"},
    "evaluation": {"cli", "serving", "training"},
    "hub": {"cli", "serving", "training"},
    "conversion": {"cli", "serving", "training"},
    "training": {"cli", "serving"},
    "serving": {"cli"},
}
# Outside of the rooms, only the command `python -m hf_vanilla_transformer` may import the command line.
MAY_IMPORT_CLI = {f"{PACKAGE}.__main__"}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def import_statements(tree: ast.AST, *, in_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run with a module, and those in its functions if asked for; not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif is_type_checking(node):
            for other in node.orelse:
                yield from import_statements(other, in_functions=in_functions)
        elif in_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from import_statements(node, in_functions=in_functions)


def imported(name: str, path: Path, *, in_functions: bool = False) -> set[str]:
    """The package's modules that a module imports."""
    found = set()
    for node in import_statements(ast.parse(path.read_text(encoding="utf-8")), in_functions=in_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        base = node.module or ""
        if node.level:
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            base = ".".join([*package[: len(package) + 1 - node.level], *base.split(".")]).rstrip(".")
        submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
        found |= submodules or {base}
    return found & MODULES.keys()


def room_of(name: str) -> str:
    return f"{name}.".split(".")[1]


def test_imports_form_no_circle():
    graph = {name: imported(name, path) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > len(graph)
    # Raises CycleError, which names the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name):
    others = imported(name, MODULES[name], in_functions=True)
    room = room_of(name)
    wrong = {other for other in others if room_of(other) in FORBIDDEN.get(room, set())}
    if room != "cli" and name not in MAY_IMPORT_CLI:
        wrong |= {other for other in others if room_of(other) == "cli"}
    assert not wrong


def test_the_package_imports_no_scripts_tests_or_benchmarks():
    for path in MODULES.values():
        for node in import_statements(ast.parse(path.read_text(encoding="utf-8")), in_functions=True):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {each.partition(".")[0] for each in names} & {"benchmarks", "scripts", "tests"}, path


def test_a_circle_would_be_found(tmp_path):
    path = tmp_path / "reporting.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "from ..data import batches\n"
        "try:\n    from . import card\nexcept ImportError:\n    pass\n"
        "if TYPE_CHECKING:\n    from ..training import arguments\n"
        "def lazily():\n    from ..training.averaging import average_checkpoints\n"
    )
    name = f"{PACKAGE}.hub.reporting"
    assert imported(name, path) == {f"{PACKAGE}.data.batches", f"{PACKAGE}.hub.card"}
    assert imported(name, path, in_functions=True) - imported(name, path) == {f"{PACKAGE}.training.averaging"}
