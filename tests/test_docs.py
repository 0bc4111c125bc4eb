"""What the pages name is there: files, headings, and in docs/paper.md the code and the tests of every section."""

import re
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NAMES = re.findall(r"\[`(\w+)`\]\(\.\./([^)#]+\.py)\)", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Of the headings, as Markdown pages are shown on the web."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    # Jinja's templates make some of the links of the model card.
    for target in re.findall(r"\]\(([^){}\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_paper_md_has_names():
    assert len(NAMES) > 40


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMES)))
def test_what_paper_md_names_is_defined(name, file):
    assert re.search(rf"^ *(?:def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
