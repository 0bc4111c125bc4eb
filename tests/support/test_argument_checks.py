"""Checks of arguments."""

import numpy as np
import pytest

from hf_vanilla_transformer.support.argument_checks import check_number


@pytest.mark.parametrize(
    ("value", "limits", "error", "message"),
    [
        (0, (1,), ValueError, "beams is 0; it must be at least 1"),
        (np.int64(0), (1,), ValueError, "beams is 0; it must be at least 1"),
        (4, (1, 3), ValueError, "beams is 4; it must lie between 1 and 3"),
        (0, (1, 3), ValueError, "beams is 0; it must lie between 1 and 3"),
        (2.0, (1,), TypeError, "beams is 2.0; give a whole number"),
        ("2", (1,), TypeError, "beams is '2'; give a whole number"),
        (True, (1,), TypeError, "beams is True; give a whole number"),
        (None, (1,), TypeError, "beams is None; give a whole number"),
    ],
)
def test_numbers_that_are_not_allowed(value, limits, error, message):
    with pytest.raises(error, match=message):
        check_number("beams", value, *limits)


@pytest.mark.parametrize("value", [1, 3, np.int32(2)])
def test_numbers_that_are_allowed(value):
    check_number("beams", value, 1, 3)
