"""Imports run one way, from the applications through the plugin down to the model, and never in a circle.

tests/model/test_remote_code.py holds the files of `model/` to the standard library, torch, transformers,
huggingface_hub and each other.
"""

import ast
import re
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
# A part of the plugin may import the parts after it, also inside functions, and `support`. `model` is copied into saved
# folders, so it imports no other part; `support` knows none.
PLUGIN = ("training", "hub", "evaluation", "translation", "data", "acceleration", "model")
# Applications may import the plugin. These two may import the other applications, too.
APPLICATIONS = ("apps.conversion", "apps.documents", "apps.pictures", "apps.terms")
ALL_APPLICATIONS = (*APPLICATIONS, "apps.cli", "apps.serving")
ALLOWED = {part: {*PLUGIN[place:], "support"} for place, part in enumerate(PLUGIN)}
ALLOWED |= {"model": {"model"}, "support": {"support"}}
ALLOWED |= {part: {*PLUGIN, "support", part} for part in APPLICATIONS}
ALLOWED |= {part: {*PLUGIN, "support", *APPLICATIONS, "apps.serving", part} for part in ("apps.cli", "apps.serving")}
# The modules outside of the parts.
ALLOWED |= {
    "": {*PLUGIN, *ALL_APPLICATIONS, "support", "registration"} - {"apps.cli"},
    "registration": {"acceleration", "data", "hub", "model", "translation"},
    "__main__": {"apps.cli"},
    "apps": set(),
}
# Modules that import one more part. The package's errors for inputs derive from the model's, which saved folders carry.
EXCEPTIONS = {"support.user_errors": {"model"}}


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
    names = set()
    for node in import_statements(ast.parse(path.read_text(encoding="utf-8")), in_functions=in_functions):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            continue
        base = node.module or ""
        if node.level:
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            base = ".".join([*package[: len(package) + 1 - node.level], *base.split(".")]).rstrip(".")
        submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
        names |= submodules or {base}
    return names & MODULES.keys()


def part_of(name: str) -> str:
    """Return the first part of a module's name within the package, and of an application the first two."""
    parts = name.split(".")[1:]
    if not parts:
        return ""
    return ".".join(parts[:2]) if parts[0] == "apps" else parts[0]


def test_imports_form_no_circle():
    graph = {name: imported(name, path) for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > len(graph)
    # Raises CycleError, which names the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name):
    """And no part imports the package itself, which imports them all."""
    parts = {part_of(other) for other in imported(name, MODULES[name], in_functions=True)}
    exceptions = EXCEPTIONS.get(name.removeprefix(f"{PACKAGE}."), set())
    assert exceptions <= parts
    assert parts - exceptions <= ALLOWED[part_of(name)]


def test_only_the_registration_names_functions_of_applications():
    """A string such as "package.apps.conversion.fsmt:from_fsmt" would be an import that the tests above do not see."""
    naming = set()
    for name, path in MODULES.items():
        if part_of(name) not in (*PLUGIN, "support", "registration"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        strings = [constant for constant in constants if isinstance(constant, str)]
        if any(re.fullmatch(r"[\w.]*\bapps\.[\w.]+(:\w+)?", string) for string in strings):
            naming.add(name)
    assert naming == {f"{PACKAGE}.registration"}


def folders_in(path: Path) -> set[str]:
    return {folder.name for folder in path.iterdir() if folder.is_dir() and folder.name != "__pycache__"}


def test_every_part_has_its_place():
    assert {part_of(name) for name in MODULES} == ALLOWED.keys()
    assert folders_in(ROOT / PACKAGE) == {*PLUGIN, "apps", "support", "recipes"}
    assert {f"apps.{name}" for name in folders_in(ROOT / PACKAGE / "apps")} == {*ALL_APPLICATIONS}


def test_the_package_imports_no_scripts_tests_or_benchmarks():
    for path in MODULES.values():
        for node in import_statements(ast.parse(path.read_text(encoding="utf-8")), in_functions=True):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & {"benchmarks", "scripts", "tests"}, path


def test_a_circle_would_be_found(tmp_path):
    path = tmp_path / "reporting.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "from ..data import length_filter\n"
        "try:\n    from . import model_card\nexcept ImportError:\n    pass\n"
        "if TYPE_CHECKING:\n    from ..training import paper_arguments\n"
        "def lazily():\n    from ..training.checkpoint_averaging import average_checkpoints\n"
    )
    name = f"{PACKAGE}.hub.reporting"
    assert imported(name, path) == {f"{PACKAGE}.data.length_filter", f"{PACKAGE}.hub.model_card"}
    assert imported(name, path, in_functions=True) - imported(name, path) == {
        f"{PACKAGE}.training.checkpoint_averaging"
    }
