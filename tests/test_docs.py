"""What the pages name is there: files, headings, arguments, and in docs/paper.md code and tests of each section."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from scripts import common


ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NAMES = re.findall(r"\[`(\w+)`\]\(\.\./([^)#]+\.py)\)", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """The command lines of scripts/ and benchmarks/ on all pages: a module's name, and its arguments."""
    lines = [
        line for page in PAGES for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()
    ]
    found = (re.search(r"((?:scripts|benchmarks)/\w+)\.py([^&]*)", line) for line in lines)
    return [(match[1].replace("/", "."), shlex.split(match[2], comments=True)) for match in found if match]


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


class ParsedError(Exception):
    """The arguments of a command line were understood."""


def understand(name: str, arguments: list[str], monkeypatch) -> None:
    """Run a command until it has read its arguments."""

    def stop(*args, **kwargs):
        common.parse(*args, **kwargs)
        raise ParsedError

    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torchao":  # Not installed with the oldest versions.
            raise
        pytest.skip(f"it takes {error.name}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(module, "parse", stop)
    with pytest.raises(ParsedError):
        module.main(arguments)


@pytest.mark.parametrize(("name", "arguments"), commands(), ids=lambda each: each if isinstance(each, str) else "")
def test_command_lines_are_understood(name, arguments, monkeypatch):
    understand(name, arguments, monkeypatch)


def test_there_are_command_lines():
    scripts = {f"scripts.{name}" for name in ("train", "evaluate", "translate", "average_checkpoints")}
    assert {name for name, _ in commands()} >= {*scripts, "benchmarks.training", "benchmarks.generation"}


def test_keeping_the_best_checkpoint_of_a_recipe(tmp_path, monkeypatch):
    (block,) = blocks(ROOT / "docs" / "multi30k.md", "yaml")
    settings = yaml.safe_load((ROOT / "recipes" / "multi30k_en_de.yaml").read_text(encoding="utf-8"))
    del settings["average_last"]
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump({**settings, **yaml.safe_load(block)}))
    understand("scripts.train", [str(path)], monkeypatch)
