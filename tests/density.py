"""Measure how much a reader of Python code has to hold in mind for each statement.

The figures are counted in the syntax tree, so formatting, comments and docstrings change nothing. Definitions, imports
and annotations do not count as statements, because every codebase needs them.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


# Names that say where a thing stands in a sentence, and not what it is.
PLACEHOLDER_NAMES = frozenset(
    [
        "each",
        "found",
        "given",
        "kind",
        "kinds",
        "asked",
        "kept",
        "others",
        "rest",
        "wanted",
        "made",
        "taken",
        "known",
        "left",
        "it",
        "one",
        "ones",
        "these",
        "thing",
        "things",
    ]
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
UNCOUNTED_STATEMENTS = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
# A short function may be dense because its one line is; the list of the densest functions leaves it out.
FEWEST_STATEMENTS_OF_A_LISTED_FUNCTION = 5


@dataclass(frozen=True)
class FunctionDensity:
    """The place of a function, and its syntax nodes per statement."""

    place: str
    nodes_per_statement: float


@dataclass
class Counts:
    """What was counted in the syntax trees of some files."""

    statements: int = 0
    nodes: int = 0
    comprehensions: int = 0
    conditional_expressions: int = 0
    paired_assignments: int = 0
    annotations: int = 0
    annotations_with_any: int = 0
    names: int = 0
    placeholder_names: Counter[str] = field(default_factory=Counter)
    functions: list[FunctionDensity] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return the six figures that have a goal, by their names in `GOALS`."""
        thousands_of_statements = max(self.statements, 1) / 1000
        return {
            "nodes per statement": self.nodes / max(self.statements, 1),
            "comprehensions per 1,000 statements": self.comprehensions / thousands_of_statements,
            "conditional expressions per 1,000 statements": self.conditional_expressions / thousands_of_statements,
            "assignments such as `a, b = x, y` per 1,000 statements": self.paired_assignments / thousands_of_statements,
            "percent of annotations with Any": 100 * self.annotations_with_any / max(self.annotations, 1),
            "percent of placeholder names": 100 * self.placeholder_names.total() / max(self.names, 1),
        }

    def densest_functions(self, count: int) -> list[FunctionDensity]:
        """Return the functions with the most syntax nodes per statement, the densest first."""
        return sorted(self.functions, key=lambda function: function.nodes_per_statement, reverse=True)[:count]


def measure(paths: Iterable[Path]) -> Counts:
    """Count statements, expressions, names and annotations of Python files."""
    counts = Counts()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for statement in counted_statements(tree):
            counts.statements += 1
            counts.paired_assignments += is_paired_assignment(statement)
            for node in nodes_of_statement(statement):
                counts.nodes += 1
                counts.comprehensions += isinstance(node, COMPREHENSIONS)
                counts.conditional_expressions += isinstance(node, ast.IfExp)
        for name in variable_names(tree):
            counts.names += 1
            if name in PLACEHOLDER_NAMES:
                counts.placeholder_names[name] += 1
        for annotation in annotations(tree):
            counts.annotations += 1
            counts.annotations_with_any += mentions_any(annotation)
        counts.functions.extend(measure_functions(tree, path))
    return counts


def measure_functions(tree: ast.AST, path: Path) -> Iterator[FunctionDensity]:
    """Measure each function that is long enough to be listed."""
    for function in ast.walk(tree):
        if not isinstance(function, FUNCTIONS):
            continue
        statements = list(counted_statements(function))
        if len(statements) < FEWEST_STATEMENTS_OF_A_LISTED_FUNCTION:
            continue
        nodes = 0
        for statement in statements:
            nodes += sum(1 for _ in nodes_of_statement(statement))
        yield FunctionDensity(f"{path}:{function.lineno}: {function.name}", nodes / len(statements))


def counted_statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below a node but definitions, imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, UNCOUNTED_STATEMENTS) and not is_docstring(node):
            yield node


def is_docstring(statement: ast.stmt) -> bool:
    """Return True for a string that stands alone, as docstrings do."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def nodes_of_statement(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and the nodes of its expressions, without annotations and without statements inside of it."""
    unvisited: list[ast.AST] = [statement]
    while unvisited:
        node = unvisited.pop()
        yield node
        for field_name, children in ast.iter_fields(node):
            if field_name == "annotation":
                continue
            for child in children if isinstance(children, list) else [children]:
                if isinstance(child, ast.AST) and not isinstance(child, (ast.stmt, ast.expr_context)):
                    unvisited.append(child)


def is_paired_assignment(statement: ast.stmt) -> bool:
    """Return True for `a, b = x, y`, which hides one assignment in another."""
    if not isinstance(statement, ast.Assign):
        return False
    return isinstance(statement.targets[0], ast.Tuple) and isinstance(statement.value, ast.Tuple)


def variable_names(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each variable and argument, once for each place where it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the annotations of arguments, results and variables, without the ones of `*args` and `**kwargs`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, FUNCTIONS):
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if argument.annotation is not None:
                    yield argument.annotation
            if node.returns is not None:
                yield node.returns


def mentions_any(annotation: ast.expr) -> bool:
    """Return True if `Any` stands anywhere in an annotation."""
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))
