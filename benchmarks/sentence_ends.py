"""Count the ends of sentences that are found, wrongly found and missed, in texts whose ends are known.

There are two kinds of texts, both without captions:

- own texts in four languages, in tests/translation/sentence_ends, where "|" marks the end of each sentence: some were
  in view when the rules of the package were written ("seen"), others were written afterwards ("unseen");
- software documentation, if LIBREOFFICE_HELP_DIR is set: of the ends that sentencex finds inside of its lines 300 per
  language were drawn at random, and a reader decided which of them are ends.

The splitters are sentencex alone, the package, and pysbd where it is installed.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.translation.sentence_splitting import split_text


TEXTS = Path(__file__).parents[1] / "tests" / "translation" / "sentence_ends"
LANGUAGES = ("en", "de", "fr", "pl")
# Divides a line of a language into parts, which joined are the line.
Splitter = Callable[[str, str], list[str]]


@dataclass
class NoArguments:
    """There are none."""


@dataclass
class Counts:
    """Ends of sentences that a splitter found, found wrongly, and missed."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """Percent of the ends found that are ends."""
        return 100 * self.right / (self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Percent of the ends that are found."""
        return 100 * self.right / (self.right + self.missed)


def split_by_sentencex(line: str, language: str) -> list[str]:
    """Divide a line by sentencex alone, with spaces of one byte as the package gives them to it."""
    from sentencex import segment

    return [str(part) for part in segment(language, re.sub(r"\s", " ", line))]


def split_by_package(line: str, language: str) -> list[str]:
    """Divide a line as `translate(split_sentences=...)` does."""
    return [piece.text + piece.space for piece in split_text(line, language, lambda sentence: True)]


def split_by_pysbd(line: str, language: str) -> list[str]:
    """Divide a line by pysbd."""
    import pysbd

    return [str(part) for part in pysbd.Segmenter(language, clean=False).segment(line)]


SPLITTERS: dict[str, Splitter] = {
    "sentencex": split_by_sentencex,
    "the package": split_by_package,
    "pysbd": split_by_pysbd,
}
# What they import.
MODULES = {"sentencex": "sentencex", "the package": "sentencex", "pysbd": "pysbd"}


def ends_of(parts: Iterable[str]) -> set[int]:
    """Return where parts end, except the last one, as the number of characters before it that are no white space."""
    ends = set()
    length = 0
    for part in parts:
        length += len("".join(part.split()))
        ends.add(length)
    return ends - {0, length}


def count_own_text(split: Splitter, kind: str, language: str) -> Counts:
    """Count the ends that a splitter finds in an own text, "seen" or "unseen", whose paragraphs are single lines."""
    counts = Counts()
    for paragraph in (TEXTS / kind / f"{language}.txt").read_text(encoding="utf-8").strip().split("\n\n"):
        sentences = paragraph.split("|")
        marked = ends_of(sentences)
        ends = ends_of(split(" ".join(sentences), language))
        counts.right += len(ends & marked)
        counts.wrong += len(ends - marked)
        counts.missed += len(marked - ends)
    return counts


def count_judged_ends(split: Splitter, language: str, lines: list[str]) -> Counts:
    """Count which of the judged ends of software documentation a splitter finds; others are not counted."""
    judged = json.loads((TEXTS / "libreoffice_help.json").read_text(encoding="utf-8"))[language]

    def divides(number: int, offset: int) -> bool:
        line = lines[number - 1]
        (end,) = ends_of([line[:offset], line[offset:]])
        return end in ends_of(split(line, language))

    right = sum(divides(number, offset) for number, offset in judged["ends"])
    wrong = sum(divides(number, offset) for number, offset in judged["false_ends"])
    return Counts(right, wrong, missed=len(judged["ends"]) - right)


def heading(names: Sequence[str]) -> list[str]:
    """Return the heading of the table for splitters of these names."""
    precision = [f"precision, {name}" for name in names]
    recall = [f"recall, {name}" for name in names]
    return ["text", "language", "correct ends", *precision, *recall]


def rows(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of the table: the text, its language, its ends, and precision and recall of each splitter in %."""
    for kind in ("seen", "unseen"):
        for language in LANGUAGES:
            counts = [count_own_text(SPLITTERS[name], kind, language) for name in names]
            yield _make_row(kind, language, counts)
    folder = os.environ.get("LIBREOFFICE_HELP_DIR")
    if folder is None:
        return
    for language in ("en", "de"):
        lines = Path(folder, f"train.{language}").read_text(encoding="utf-8").split("\n")
        # Ends that pysbd alone finds were not judged, so it cannot be compared.
        counts_or_none = [
            None if name == "pysbd" else count_judged_ends(SPLITTERS[name], language, lines) for name in names
        ]
        yield _make_row("software", language, counts_or_none)


def _make_row(text: str, language: str, counts_of_splitters: Sequence[Counts | None]) -> list[str]:
    """Make a row of the table. The cells of a splitter without counts are empty."""
    correct_ends = ""
    precision = []
    recall = []
    for counts in counts_of_splitters:
        if counts is None:
            precision.append("")
            recall.append("")
            continue
        # This number is the same for all splitters.
        correct_ends = str(counts.right + counts.missed)
        precision.append(f"{counts.precision:.1f}")
        recall.append(f"{counts.recall:.1f}")
    return [text, language, correct_ends, *precision, *recall]


@program
def main(arguments: list[str]) -> None:
    """Print the table."""
    parse(NoArguments, __doc__, arguments)
    names = [name for name in SPLITTERS if find_spec(MODULES[name]) is not None]
    cells_of_heading = heading(names)
    for cells in (cells_of_heading, ["---"] * len(cells_of_heading), *rows(names)):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
