"""Hooks of mkdocs that adapt the pages, which are written for repository hosts, to the site.

The notebooks, CONTRIBUTING.md and CHANGELOG.md become pages of the site. Pages link to other files
outside of docs/ as `../path`. The site contains a copy of each of them, as text at
`repository/path.txt`, so that the links of a version show its files, without a host. The site's
page of the command line also has the help of every verb.
"""

import contextlib
import io
import logging
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter


LOG = logging.getLogger("mkdocs.hooks")
ROOT = Path(__file__).parents[1]
# Files outside of docs/ that are pages of the site, with their places there.
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "notebooks/annotated.ipynb": "annotated.md",
    "notebooks/quickstart.ipynb": "quickstart.md",
}
# A link from a page in docs/ to a file outside of it, with its anchor.
LINK = re.compile(r"\]\(\.\./(?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")
# A link from a file in the root folder to a page, and to another file of the repository.
LINK_TO_PAGE = re.compile(r"\]\(docs/")
LINK_FROM_ROOT = re.compile(r"\]\((?!https?:|#|docs/|mailto:)")
# ```python name: the name is for the tests.
FENCE_WITH_NAME = re.compile(r"^(```\w+) \w+$", flags=re.MULTILINE)
# As in transformers' docstrings: [`Name`] is a link there.
NAME_IN_BRACKETS = re.compile(r"\[(<code>[^<]*</code>)\]")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside of docs/, and copies of the other files that pages link to."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=read_page(ROOT / path)))
    linked = set()
    for page in files.documentation_pages():
        for link in LINK.finditer(page.content_string):
            linked.add(link["path"])
    for path in sorted(linked - PAGES.keys()):
        if not (ROOT / path).is_file():
            LOG.warning("a page links to %s, which does not exist", path)
            continue
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"repository/{path}.txt", content=content))
    return files


def read_page(path: Path) -> str:
    """Return a notebook, or a file in the root folder, as Markdown with links from docs/."""
    if path.suffix == ".ipynb":
        markdown, _ = MarkdownExporter().from_filename(str(path))
        return markdown
    markdown = path.read_text(encoding="utf-8")
    return LINK_TO_PAGE.sub("](", LINK_FROM_ROOT.sub("](../", markdown))


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Lead links outside of docs/ into the site, drop names of code blocks, and add the help."""
    if page.file.src_uri == "command_line.md":
        markdown += help_of_verbs()
    return FENCE_WITH_NAME.sub(r"\1", LINK.sub(link_in_site, markdown))


def link_in_site(link: re.Match[str]) -> str:
    """Return a link to the page, or to the copy, of a file outside of docs/."""
    path = link["path"]
    if path in PAGES:
        return f"]({PAGES[path]}{link['anchor'] or ''})"
    return f"](repository/{path}.txt)"


def help_of_verbs() -> str:
    """A section for each verb, and for each figure of `plot`, with its `--help`."""
    from hf_vanilla_transformer.apps.cli.main import VERBS
    from hf_vanilla_transformer.apps.cli.plot import FIGURES

    figures = [f"plot {figure}" for figure in FIGURES]
    return "".join(
        f"\n## {verb}\n\n```text\n{help_of(*verb.split())}```\n"
        for verb in (*VERBS, *figures)
        if verb != "plot"
    )


def help_of(verb: str, *figure: str) -> str:
    """What `VERB --help` prints."""
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        import_module(f"hf_vanilla_transformer.apps.cli.{verb}").main([*figure, "--help"])
    return printed.getvalue()


def on_page_content(html: str, **kwargs: Any) -> str:
    """Drop the brackets around names in docstrings."""
    return NAME_IN_BRACKETS.sub(r"\1", html)
