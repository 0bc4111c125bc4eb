"""The alignment error rate (AER): word alignments compared with true ones."""

from collections.abc import Sequence
from typing import NamedTuple

from .alignment import Links


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
        raise ValueError(f"there are {len(found)} alignments and {len(gold)} true ones; give one for each pair.")
    total = sum(len(links) + len(true.sure) for links, true in zip(found, gold, strict=True))
    if not total:
        raise ValueError("there are no links to compare; give pairs that are not empty.")
    right = sum(
        len(true.sure.intersection(links)) + len((true.sure | true.possible).intersection(links))
        for links, true in zip(found, gold, strict=True)
    )
    return 1 - right / total
