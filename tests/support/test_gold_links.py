"""The alignment error rate that other tests measure by."""

import pytest

from tests.support.gold_links import GoldLinks, alignment_error_rate


def test_alignment_error_rate():
    """The example of a half right alignment, by the formula of Och and Ney."""
    true = [GoldLinks({(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)}), GoldLinks({(0, 1)}, set())]
    assert alignment_error_rate([[(0, 0), (1, 1), (2, 1)], [(0, 1)]], true) == 0
    assert alignment_error_rate([[], []], true) == 1
    # A has 3 links, of which 1 is sure and 2 are possible; S has 3.
    assert alignment_error_rate([[(0, 0), (2, 1)], [(5, 5)]], true) == pytest.approx(1 - (1 + 2) / (3 + 3))


def test_alignment_error_rate_of_too_few_alignments():
    with pytest.raises(ValueError, match="argument 2 is longer than argument 1"):
        alignment_error_rate([[]], [GoldLinks({(0, 0)}, set()), GoldLinks({(0, 1)}, set())])
