"""The Python of docs/ecosystem.md and other pages, run as it stands there, with a small model."""

import re
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"


def blocks(heading: str, page: str = "ecosystem.md") -> list[str]:
    """The Python blocks under a heading of a page."""
    sections = re.split(r"^###? ", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    section = next(section for section in sections if section.startswith(f"{heading}\n"))
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def run(block: str, *changes: tuple[str, str], folder: Path = FIXTURE) -> dict[str, Any]:
    """Run a block in the working folder, with the trained fixture or another model; returns its names."""
    for original, replacement in (("runs/numbers", folder.as_posix()), *changes):
        assert original in block
        block = block.replace(original, replacement)
    names: dict[str, Any] = {}
    exec(compile(block, "docs", "exec"), names)
    return names
