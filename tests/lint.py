"""Check what Ruff cannot: phrases that the project does not use, and how dense the package's code is.

Usage: python -m tests.lint; prints each fault, and ends with 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.density import measure


ROOT = Path(__file__).parents[1]
PACKAGE = "hf_vanilla_transformer/**/*.py"
BANNED = re.compile(
    r"whoever|somebody|no number any more|such a one|is none that|so many times as fast|four fifths and more"
    r"|cut into tokens|ms a step|sentences a second|gives? (freed )?memory back|back memory",
    flags=re.IGNORECASE,
)
PROSE = ("*.md", "docs/**/*.md", "docs/**/*.py", "notebooks/**/*.ipynb")
LAUNCHER = "hf_vanilla_transformer_launcher.py"
CODE = (
    PACKAGE,
    "hf_vanilla_transformer/**/*.yaml",
    "scripts/**/*.py",
    "benchmarks/**/*.py",
    LAUNCHER,
)
# The most that the whole package may have. Codebases that are read with ease have about these figures: JoeyNMT,
# Sockeye, TRL, SetFit and sentence-transformers have 7.3 to 8.4 nodes per statement and 17 to 44 comprehensions.
GOALS = {
    "nodes per statement": 8.5,
    "comprehensions per 1,000 statements": 45,
    "conditional expressions per 1,000 statements": 30,
    "assignments such as `a, b = x, y` per 1,000 statements": 5,
    "percent of annotations with Any": 6,
    "percent of placeholder names": 0.3,
}
LISTED_FUNCTIONS = 10


def files(*patterns: str, root: Path = ROOT) -> list[Path]:
    """Return the files below a folder that match one of the patterns, sorted."""
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def banned_phrases(path: Path) -> Iterator[str]:
    """Yield a fault for each line of a file that has a banned phrase."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = BANNED.search(line)
        if match is not None:
            yield f"{path}:{number}: {match[0]!r} is banned; use the field's term"


def density_faults(paths: list[Path]) -> Iterator[str]:
    """Yield a fault for each figure of the code that exceeds its goal, and then the functions to begin with."""
    counts = measure(paths)
    exceeded = False
    for name, figure in counts.figures().items():
        if figure > GOALS[name]:
            exceeded = True
            yield f"the code has {figure:.2f} {name}; the goal is at most {GOALS[name]}"
    if not exceeded:
        return
    if counts.placeholder_names:
        names = ", ".join(f"{name} ({count})" for name, count in counts.placeholder_names.most_common())
        yield f"placeholder names: {names}; name the thing instead"
    for function in counts.densest_functions(LISTED_FUNCTIONS):
        yield f"{function.place}: {function.nodes_per_statement:.1f} nodes per statement"


def main() -> int:
    """Print all faults, and return the exit status."""
    faults = []
    for path in files(*PROSE, *CODE):
        faults.extend(banned_phrases(path))
    faults.extend(density_faults(files(PACKAGE)))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
