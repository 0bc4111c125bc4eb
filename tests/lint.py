"""Check what Ruff cannot: phrases that the project does not use.

Usage: python -m tests.lint; prints each fault as FILE:LINE, and ends with 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parents[1]
BANNED = re.compile(
    r"whoever|somebody|no number any more|such a one|is none that|so many times as fast|four fifths and more"
    r"|cut into tokens|ms a step|sentences a second|gives? (freed )?memory back|back memory",
    flags=re.IGNORECASE,
)
PROSE = ("*.md", "docs/**/*.md", "docs/**/*.py", "notebooks/**/*.ipynb")
LAUNCHER = "hf_vanilla_transformer_launcher.py"
CODE = (
    *(
        f"{folder}/**/*.{kind}"
        for folder in ("hf_vanilla_transformer", "scripts", "benchmarks")
        for kind in ("py", "yaml")
    ),
    LAUNCHER,
)


def files(*patterns: str, root: Path = ROOT) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def banned_phrases(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if found := BANNED.search(line):
            yield f"{path}:{number}: {found[0]!r} is banned; use the field's term"


def main() -> int:
    faults = [fault for path in files(*PROSE, *CODE) for fault in banned_phrases(path)]
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
