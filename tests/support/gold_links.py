"""True word alignments, and how far other alignments are from them: the oracle of the tests of `align`."""

from collections.abc import Sequence
from typing import NamedTuple

from hf_vanilla_transformer.translation.alignment import Links


class GoldLinks(NamedTuple):
    """The true alignment of a sentence pair.

    Args:
        sure (`set` of pairs of `int`): links that an alignment must have.
        possible (`set` of pairs of `int`): links that an alignment may have. Sure links are possible, too.
    """

    sure: set[tuple[int, int]]
    possible: set[tuple[int, int]]


def alignment_error_rate(alignments: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    """Compute the AER of Och and Ney 2003 over all pairs: 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|); 0 is perfect."""
    shared = 0
    total = 0
    for links, truth in zip(alignments, gold, strict=True):
        shared += len(truth.sure.intersection(links))
        shared += len((truth.sure | truth.possible).intersection(links))
        total += len(links) + len(truth.sure)
    return 1 - shared / total
