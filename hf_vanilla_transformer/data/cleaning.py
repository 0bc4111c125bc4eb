"""Remove training pairs by their text, and hold out validation pairs."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray

from ..support.argument_checks import check_number
from ..support.user_errors import InputError
from .tokenized_pairs import check_are_texts


_ROWS_AT_ONCE = 10_000
_LARGEST_RATIO, _ADDED = 3, 10


def clean_pairs(pairs: Dataset, evaluated: Sequence[Dataset] = ()) -> tuple[Dataset, dict[str, int]]:
    """Remove training pairs by the first rule that holds, and count them; the others keep their order and columns.

    - `"duplicates"`: an earlier pair is equal on both sides.
    - `"identical sides"`: source and target are equal without white space at their ends.
    - `"empty on one side"`: a side has only white space, as defined by `str.isspace`.
    - `"in the test or validation pairs"`: one of the `evaluated` pairs is equal on both sides.
    - `"length ratio"`: one side has more than 3 times as many characters as the other, after adding 10 to both. First
      the sides are scaled to equal totals of the remaining pairs, for any two languages. The rule is repeated until it
      removes nothing, so cleaning again changes nothing.

    Args:
        pairs, evaluated (`Dataset`, and a sequence of them): text in the columns `source` and `target`.

    Returns:
        The remaining pairs, memory-mapped if `pairs` are, and the number of pairs that each rule removed.

    Raises:
        TypeError, ValueError: if a data set has no text in these columns, or no pair would remain.
    """
    hashes, source, target, identical = _measure(pairs)
    seen = np.concatenate([hashes[:0], *(_measure(split)[0] for split in evaluated)])
    rules = {
        "duplicates": pd.Series(hashes).duplicated().to_numpy(),
        "identical sides": identical,
        "empty on one side": np.minimum(source, target) == 0,
        "in the test or validation pairs": pd.Series(hashes).isin(seen).to_numpy(),
    }
    rules["length ratio"] = _differ_in_length(source, target, ~np.logical_or.reduce(list(rules.values())))
    kept, counts = np.ones(len(pairs), np.bool_), {}
    for rule, removed in rules.items():
        counts[rule] = int((kept & removed).sum())
        kept &= ~removed
    if not kept.any():
        rule = max(counts, key=counts.__getitem__)
        raise InputError(f"no training pair of {len(pairs):,} would remain: {counts[rule]:,} {rule}; give other pairs.")
    return (pairs if kept.all() else pairs.select(np.flatnonzero(kept))), counts


def hold_out(pairs: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """Divide pairs into training pairs and `count` validation pairs, those with the smallest hashes of their text.

    The choice depends neither on the order of the pairs nor on the machine. Equal pairs are on the same side, so the
    validation pairs may be fewer where some are equal. Both keep the order and the columns of the pairs.

    Raises:
        TypeError, ValueError: if `pairs` has no text in `source` and `target`, or too few different pairs.
    """
    check_number("count", count, 1)
    hashes = _measure(pairs)[0]
    held_out = hashes < np.partition(hashes, count)[count] if count < len(pairs) else hashes[:0]
    if not held_out.any():
        given = f"{count:,} of {len(pairs):,} training pairs"
        raise InputError(f"{given} are too many to hold out, or most are equal; hold out fewer, or give --clean true.")
    return pairs.select(np.flatnonzero(~held_out)), pairs.select(np.flatnonzero(held_out))


def held_out_size(pairs: int) -> int:
    """How many of `pairs` pairs to hold out: 2 %, at least 1 and at most 1,000; 0 if there are fewer than two."""
    return min(1_000, max(1, pairs // 50)) if pairs > 1 else 0


def _measure(pairs: Dataset) -> list[NDArray[Any]]:
    """Hashes, characters of both sides without white space at the ends, whether these are equal, each `(pairs,)`."""
    check_are_texts(pairs)
    found = [[np.zeros(0, kind) for kind in (np.uint64, np.int32, np.int32, np.bool_)]]
    # datasets copies the rows of a selection one by one, so a large one is measured with the rows left out.
    table = pairs if 4 * len(pairs) < len(pairs.data) else Dataset(pairs.data, fingerprint=pairs._fingerprint)
    for batch in table.with_format("arrow").iter(_ROWS_AT_ONCE):
        texts = [pc.fill_null(batch.column(side).combine_chunks(), "") for side in ("source", "target")]
        # Not Python's hash(), which differs between processes.
        hashes = [pd.util.hash_array(side.to_numpy(zero_copy_only=False), categorize=False) for side in texts]
        source, target = map(pc.utf8_trim_whitespace, texts)
        lengths = [pc.utf8_length(side).to_numpy() for side in (source, target)]
        found.append([3 * hashes[0] + hashes[1], *lengths, pc.equal(source, target).to_numpy(zero_copy_only=False)])
    rows = slice(None) if table is pairs or pairs._indices is None else pairs._indices.column(0).to_numpy()
    return [np.concatenate(values)[rows] for values in zip(*found, strict=True)]


def _differ_in_length(source: NDArray[Any], target: NDArray[Any], others: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the pairs that the rule "length ratio" removes of those that no other rule removes, `(pairs,)`."""
    kept, count = others.copy(), 0
    while (remaining := int(kept.sum())) not in (0, count):
        count = remaining
        scale = sqrt(target.sum(where=kept) / source.sum(where=kept))
        sides = [source.astype(np.float32) * scale, target.astype(np.float32) / scale]
        kept &= np.maximum(*sides) + _ADDED <= _LARGEST_RATIO * (np.minimum(*sides) + _ADDED)
    return others & ~kept
