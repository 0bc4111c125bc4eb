import pytest

from tests import conftest, lint


@pytest.mark.parametrize("text", ["Whoever trains", "SUCH A ONE", "12 ms a step", "gives freed memory back"])
def test_a_banned_phrase_is_found(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(f"A page.\nIt says: {text}.\n")
    (fault,) = lint.banned_phrases(path)
    assert fault.startswith(f"{path}:2: ")
    path.write_text("A page.\n")
    assert list(lint.banned_phrases(path)) == []


def test_a_file_with_too_many_lines_is_found(tmp_path):
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * 501)
    (fault,) = lint.excess_lines([path])
    assert "501 lines, at most 500" in fault
    path.write_text("x = 1\n" * 500)
    assert list(lint.excess_lines([path])) == []


def test_a_long_file_has_a_limit_too(tmp_path, monkeypatch):
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * 701)
    monkeypatch.setattr(lint, "MAY_BE_LONGER", {path: 700})
    (fault,) = lint.excess_lines([path])
    assert "701 lines, at most 700" in fault


def test_too_many_lines_together_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(lint, "MOST_LINES", 3)
    paths = [tmp_path / "one.py", tmp_path / "other.py"]
    for path in paths:
        path.write_text("x = 1\n" * 2)
    (fault,) = lint.excess_lines(paths)
    assert "4 lines, at most 3" in fault


def test_what_is_checked_is_there():
    for pattern in (*lint.COUNTED, *lint.CODE[:1], *lint.PROSE[:2]):
        assert lint.files(pattern), pattern
    assert lint.MAY_BE_LONGER.keys() <= set(lint.files(*lint.COUNTED))


def test_long_files_of_the_order_exist():
    for name in conftest.LONG:
        assert (lint.ROOT / name).exists(), name
