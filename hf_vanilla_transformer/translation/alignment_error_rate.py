"""The alignment error rate (AER): word alignments compared with true ones, which a file may hold."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..data.text_lines import check_is_input, iterate_lines
from ..support.user_errors import InputError
from .alignment import Links


_LINK = re.compile(r"(\d+)([-?p])(\d+)")


class GoldLinks(NamedTuple):
    """The true alignment of a pair.

    Args:
        sure, possible (`set` of pairs of `int`): links that an alignment must have, and those that it may have; sure
            links are possible, too.
    """

    sure: set[tuple[int, int]]
    possible: set[tuple[int, int]]


def alignment_error_rate(found: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    """AER of Och and Ney 2003: 1 - (|A n S| + |A n P|) / (|A| + |S|), over all pairs; 0 is perfect.

    Raises:
        ValueError: if the numbers of alignments differ, or there are no links.
    """
    if len(found) != len(gold):
        raise InputError(f"there are {len(found)} alignments and {len(gold)} true ones; give one for each pair.")
    total = sum(len(links) + len(true.sure) for links, true in zip(found, gold, strict=True))
    if not total:
        raise InputError("there are no links to compare; give pairs that are not empty.")
    shared = sum(
        len(true.sure.intersection(links)) + len((true.sure | true.possible).intersection(links))
        for links, true in zip(found, gold, strict=True)
    )
    return 1 - shared / total


def read_gold(path: Path, sources: Sequence[str], targets: Sequence[str]) -> list[GoldLinks]:
    """The true alignments of pairs, from a file; raises OSError or ValueError if it is none of these pairs."""
    check_is_input(path)
    found, lines = [], list(iterate_lines(path))
    if len(lines) != len(sources):
        raise InputError(f"{path} has {len(lines)} lines, but there are {len(sources)} pairs; give one line per pair.")
    for number, (line, *pair) in enumerate(zip(lines, sources, targets, strict=True), start=1):
        links = [_LINK.fullmatch(link) for link in line.split()]
        if None in links:
            raise InputError(
                f"{path}, line {number} is {line!r}; give links such as 0-0 1-2, and 1?2 for possible ones."
            )
        sure, possible = (
            {(int(link[1]), int(link[3])) for link in links if link is not None and (link[2] == "-") == is_sure}
            for is_sure in (True, False)
        )
        words, others = (len(text.split()) for text in pair)
        for one, other in sure | possible:
            if one >= words or other >= others:
                raise InputError(
                    f"{path}, line {number} links {one}-{other}, but its pair has {words} source and {others} target "
                    "words; links count from 0, so subtract 1 from those of a file that counts from 1."
                )
        found.append(GoldLinks(sure, possible))
    return found
