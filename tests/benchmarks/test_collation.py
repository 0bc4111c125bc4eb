"""benchmarks/collation.py times both ways to make a batch."""

import pytest

from benchmarks import collation


pytestmark = pytest.mark.slow


def test_main(capsys):
    figures = collation.main(["--corpus_size", "300", "--tokens_per_batch", "1000", "--batches", "3"])
    assert 1 < figures["pairs per batch"] < 300
    assert 0 < figures["rows as lists"] < figures["rows as lists, stock collator"]
    assert figures["from Arrow's memory"] > 0
    assert "rows as lists, stock collator: " in capsys.readouterr().out
