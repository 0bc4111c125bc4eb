import pytest

from tests import lint


@pytest.mark.parametrize("text", ["Whoever trains", "SUCH A ONE", "12 ms a step", "gives freed memory back"])
def test_a_banned_phrase_is_found(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(f"A page.\nIt says: {text}.\n")
    (fault,) = lint.banned_phrases(path)
    assert fault.startswith(f"{path}:2: ")
    path.write_text("A page.\n")
    assert list(lint.banned_phrases(path)) == []


def test_what_is_checked_is_there():
    for pattern in (*lint.CODE[:1], *lint.PROSE[:2]):
        assert lint.files(pattern), pattern
