"""Check what Ruff cannot: phrases that the project does not use, and the size of the code.

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
# What a newcomer may have to read: the package, its launcher and the scripts together, and each of their files. Lower
# the first limit when code goes; it rises for a new ability only.
MOST_LINES, MOST_LINES_OF_A_FILE = 21_190, 500
COUNTED = ("hf_vanilla_transformer/**/*.py", LAUNCHER, "scripts/**/*.py")
# It has all of section 3 of the paper, and the loss.
MAY_BE_LONGER = {ROOT / "hf_vanilla_transformer" / "model" / "modeling_vanilla_transformer.py": 700}


def files(*patterns: str, root: Path = ROOT) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def banned_phrases(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if found := BANNED.search(line):
            yield f"{path}:{number}: {found[0]!r} is banned; use the field's term"


def excess_lines(paths: list[Path]) -> Iterator[str]:
    """Faults of size: of each file, and of all together."""
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    for path, count in counts.items():
        most = MAY_BE_LONGER.get(path, MOST_LINES_OF_A_FILE)
        if count > most:
            yield f"{path}:{count}: {count} lines, at most {most} are allowed; split the file"
    if sum(counts.values()) > MOST_LINES:
        yield f"package and scripts have {sum(counts.values())} lines, at most {MOST_LINES} are allowed"


def main() -> int:
    faults = [fault for path in files(*PROSE, *CODE) for fault in banned_phrases(path)]
    faults += excess_lines(files(*COUNTED))
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
