import pytest

from tests import density, lint


READABLE = '''
"""A module docstring."""

def shorten(sentences: list[str], longest: int) -> list[str]:
    """Return the sentences that are short enough."""
    short = []
    for sentence in sentences:
        if len(sentence) <= longest:
            short.append(sentence)
    return short
'''
DENSE = """
from typing import Any

def shorten(given: Any, longest: int) -> Any:
    first, count = given[0] if given else None, len(given)
    return [each for each in given if (len(each) <= longest if longest else True)] or [first] * count
"""


@pytest.mark.parametrize("text", ["Whoever trains", "SUCH A ONE", "12 ms a step", "gives freed memory back"])
def test_banned_phrases_names_the_line(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(f"A page.\nIt says: {text}.\n")
    (fault,) = lint.banned_phrases(path)
    assert fault.startswith(f"{path}:2: ")
    path.write_text("A page.\n")
    assert list(lint.banned_phrases(path)) == []


def test_measure_counts_what_is_written(tmp_path):
    path = tmp_path / "dense.py"
    path.write_text(DENSE)
    counts = density.measure([path])
    assert counts.statements == 2  # The assignment and the return, without the import and the definition.
    assert counts.comprehensions == 1
    assert counts.conditional_expressions == 2
    assert counts.paired_assignments == 1
    assert counts.annotations == 3
    assert counts.annotations_with_any == 2
    # given: the argument, three in the first statement, one in the second; each: two in the element and the loop, one
    # in the condition.
    assert counts.placeholder_names == {"given": 5, "each": 3}


def test_measure_counts_the_nodes_of_expressions(tmp_path):
    path = tmp_path / "simple.py"
    path.write_text('"""A docstring."""\nlongest: int = count + 1\n')
    # AnnAssign, the target, BinOp, the name, the operator and the constant; the annotation does not count.
    assert density.measure([path]).nodes == 6


def test_density_faults_passes_readable_code(tmp_path):
    path = tmp_path / "readable.py"
    path.write_text(READABLE)
    assert list(lint.density_faults([path])) == []


def test_density_faults_names_figures_names_and_functions(tmp_path):
    path = tmp_path / "dense.py"
    # Three more statements make the function long enough to be listed.
    path.write_text(DENSE.replace("    return", "    count += 1\n" * 3 + "    return"))
    faults = list(lint.density_faults([path]))
    for name in lint.GOALS:
        assert any(name in fault for fault in faults), name
    assert any("given (5), each (3)" in fault for fault in faults)
    assert faults[-1].startswith(f"{path}:4: shorten: ")


def test_density_faults_has_a_goal_for_each_figure():
    assert density.Counts().figures().keys() == lint.GOALS.keys()


def test_files_finds_code_and_prose():
    for pattern in (*lint.CODE[:1], *lint.PROSE[:2]):
        assert lint.files(pattern), pattern
