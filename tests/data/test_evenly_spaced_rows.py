"""The sample of rows that examples, trials and plans use."""

from hf_vanilla_transformer.data.evenly_spaced_rows import pick_evenly_spaced_rows


def test_pick_evenly_spaced_rows_covers_all_rows():
    assert pick_evenly_spaced_rows(500, 5) == [0, 100, 200, 300, 400]


def test_pick_evenly_spaced_rows_returns_every_row_if_there_are_few():
    assert pick_evenly_spaced_rows(3, 5) == [0, 1, 2]
    assert pick_evenly_spaced_rows(7, 7) == list(range(7))
