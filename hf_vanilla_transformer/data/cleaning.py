"""Remove unsuitable training pairs, such as duplicates, and hold out pairs for validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import NDArray

from ..support.argument_checks import check_number
from ..support.user_errors import InputError
from .cleaning_rules import check_rules
from .long_texts import MOST_BYTES
from .tokenized_pairs import check_are_texts


# Large enough that NumPy's and Arrow's overhead per call does not matter, and small enough to limit the memory.
_ROWS_AT_ONCE = 10_000

# If one side of a pair has more than this many times the characters of the other, it is rarely a translation. Moses'
# clean-corpus-n.perl counts words, which requires more tolerance, because German compounds are single words. The
# measurements are in docs/train_settings.md.
_LARGEST_LENGTH_RATIO = 3
# The number of characters added to both sides before their lengths are compared, so that short pairs may differ by a
# larger factor: a translation of "Click Next." may have up to 57 characters.
_ADDED_CHARACTERS = 10


@dataclass(frozen=True)
class _TextMeasures:
    """Hashes and lengths of the texts in each pair, for the cleaning rules. Each array has the shape `(pairs,)`.

    Args:
        hashes: a hash of both sides, which is the same in every process and on every machine.
        source_lengths, target_lengths: the number of characters, not counting white space at both ends. It is 0 for a
            blank or missing text.
        has_identical_sides: True where source and target are equal, apart from white space at both ends.
        has_long_side: True where source or target have more than 4,192 bytes.
    """

    hashes: NDArray[np.uint64]
    source_lengths: NDArray[np.integer]
    target_lengths: NDArray[np.integer]
    has_identical_sides: NDArray[np.bool_]
    has_long_side: NDArray[np.bool_]

    def select(self, rows: NDArray[np.integer]) -> "_TextMeasures":
        """Return the measures of the pairs with the given indices."""
        return _TextMeasures(
            self.hashes[rows],
            self.source_lengths[rows],
            self.target_lengths[rows],
            self.has_identical_sides[rows],
            self.has_long_side[rows],
        )

    @classmethod
    def concatenate(cls, parts: "Sequence[_TextMeasures]") -> "_TextMeasures":
        """Join the measures of consecutive parts of a data set."""
        return cls(
            hashes=np.concatenate([part.hashes for part in parts]),
            source_lengths=np.concatenate([part.source_lengths for part in parts]),
            target_lengths=np.concatenate([part.target_lengths for part in parts]),
            has_identical_sides=np.concatenate([part.has_identical_sides for part in parts]),
            has_long_side=np.concatenate([part.has_long_side for part in parts]),
        )


def clean_pairs(
    pairs: Dataset, evaluated: Sequence[Dataset] = (), skip: Sequence[str] = ()
) -> tuple[Dataset, dict[str, int]]:
    """Remove unsuitable training pairs, and count the pairs that each rule removes.

    Each pair is removed by the first of these rules that applies to it. The remaining pairs keep their order and their
    columns.

    - `"duplicates"`: an earlier pair has the same source and the same target.
    - `"identical sides"`: source and target are equal, apart from white space at their ends.
    - `"empty on one side"`: a side has only white space, as defined by `str.isspace`.
    - `"in the test or validation pairs"`: one of the `evaluated` pairs has the same source and the same target.
    - `"long lines"`: a side has more than 4,192 bytes, so it is a page or an encoded file rather than a sentence.
    - `"length ratio"`: one side has more than 3 times as many characters as the other, after 10 characters are added
      to both. Before that, the lengths are scaled so that sources and targets have equal totals over the remaining
      pairs. The rule is repeated until it removes nothing, so cleaning the result again changes nothing.

    Args:
        pairs (`Dataset`): training pairs, with text in the columns `source` and `target`.
        evaluated (sequence of `Dataset`): test and validation pairs with the same columns.
        skip (sequence of `str`): the names of rules that are not applied.

    Returns:
        The remaining pairs, which stay memory-mapped if they were, and the number of pairs that each rule removed.

    Raises:
        TypeError, ValueError: if a data set has no text in these columns, if `skip` contains an unknown rule, or if no
            pair would remain.
    """
    check_rules(skip)
    masks = _apply_rules(pairs, evaluated, skip)
    counts = _count_removed(masks, len(pairs))
    is_kept = _find_kept(masks, len(pairs))
    if not is_kept.any():
        worst_rule = max(counts, key=counts.__getitem__)
        raise InputError(
            f"no training pair of {len(pairs):,} would remain: {counts[worst_rule]:,} {worst_rule}; give other pairs."
        )
    if is_kept.all():
        return pairs, counts
    return pairs.select(np.flatnonzero(is_kept)), counts


def _count_removed(masks: Mapping[str, NDArray[np.bool_]], pair_count: int) -> dict[str, int]:
    """Return the number of pairs that each rule removes, not counting pairs that an earlier rule removes."""
    counts = {}
    is_remaining = np.ones(pair_count, np.bool_)
    for rule, is_removed in masks.items():
        counts[rule] = int((is_remaining & is_removed).sum())
        is_remaining &= ~is_removed
    return counts


def _find_kept(masks: Mapping[str, NDArray[np.bool_]], pair_count: int) -> NDArray[np.bool_]:
    """Return a mask `(pairs,)` of the pairs that no rule removes."""
    is_kept = np.ones(pair_count, np.bool_)
    for is_removed in masks.values():
        is_kept &= ~is_removed
    return is_kept


def drop_long_pairs(pairs: Dataset) -> Dataset:
    """Return the pairs that have at most 4,192 bytes on each side, in their order.

    This is the rule "long lines" of [`clean_pairs`] for validation pairs. Raises ValueError if no pair would remain.
    """
    has_long_side = _measure_texts(pairs).has_long_side
    if not has_long_side.any():
        return pairs
    if has_long_side.all():
        raise InputError(
            f"all {len(pairs):,} validation pairs have more than {MOST_BYTES:,} bytes on a side; give other pairs, or "
            "--clean_skip long_lines."
        )
    return pairs.select(np.flatnonzero(~has_long_side))


def _apply_rules(pairs: Dataset, evaluated: Sequence[Dataset], skip: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Find the pairs that each cleaning rule removes.

    Returns a mask `(pairs,)` for each rule that is not skipped, in the order of `CLEANING_RULES`. Several rules may
    remove the same pair.

    Args:
        pairs: the training pairs.
        evaluated: the test and validation pairs, which must not occur among the training pairs.
        skip: the names of rules that are not applied.
    """
    measures = _measure_texts(pairs)
    masks_of_earlier_rules = _apply_earlier_rules(measures, evaluated)
    masks = {name: mask for name, mask in masks_of_earlier_rules.items() if name not in skip}
    if "length ratio" not in skip:
        # This rule comes last, because it compares each pair with the lengths of all pairs that the other rules keep.
        is_kept = _find_kept(masks, len(pairs))
        masks["length ratio"] = _differ_in_length(measures, is_candidate=is_kept)
    return masks


def _apply_earlier_rules(measures: _TextMeasures, evaluated: Sequence[Dataset]) -> dict[str, NDArray[np.bool_]]:
    """Return the mask of each rule but the last one, "length ratio"; see [`_apply_rules`].

    To add a rule, add its mask here, and add its name at the same place in `CLEANING_RULES`.
    """
    hashes = pd.Series(measures.hashes)
    # A blank text has the length 0, because lengths do not count white space at the ends of a text.
    shorter_lengths = np.minimum(measures.source_lengths, measures.target_lengths)
    return {
        "duplicates": hashes.duplicated().to_numpy(),
        "identical sides": measures.has_identical_sides,
        "empty on one side": shorter_lengths == 0,
        "in the test or validation pairs": hashes.isin(_hash_pairs(evaluated)).to_numpy(),
        "long lines": measures.has_long_side,
    }


def _hash_pairs(splits: Sequence[Dataset]) -> NDArray[np.uint64]:
    """Return the hashes of all pairs of several splits. There may be no splits."""
    # np.concatenate() needs at least one array.
    no_hashes = np.zeros(0, np.uint64)
    return np.concatenate([no_hashes, *(_measure_texts(split).hashes for split in splits)])


def hold_out(pairs: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """Split pairs into training pairs and at most `count` validation pairs, in this order.

    The pairs whose texts have the smallest hashes become validation pairs, so the choice depends neither on the order
    of the pairs nor on the machine. Equal pairs always stay together, so there may be fewer than `count` validation
    pairs. Both parts keep the order and the columns of the pairs.

    Raises:
        TypeError, ValueError: if `pairs` has no text in `source` and `target`, or if it has too few different pairs.
    """
    check_number("count", count, 1)
    hashes = _measure_texts(pairs).hashes
    if count >= len(pairs):
        raise InputError(f"{count:,} of {len(pairs):,} training pairs are too many to hold out; hold out fewer.")
    is_held_out = _find_smallest(hashes, count)
    if not is_held_out.any():
        raise InputError(
            f"{count:,} of {len(pairs):,} training pairs cannot be held out, because more than {count:,} of them are "
            "equal; give --clean true, or hold out more."
        )
    training_pairs = pairs.select(np.flatnonzero(~is_held_out))
    validation_pairs = pairs.select(np.flatnonzero(is_held_out))
    return training_pairs, validation_pairs


def _find_smallest(hashes: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
    """Return a mask of the `count` smallest hashes, or of fewer ones, so that equal hashes are treated alike.

    There must be more than `count` hashes.
    """
    # partition() puts at the index `count` the hash that is there in sorted order, so `count` hashes come before it.
    next_hash = np.partition(hashes, count)[count]
    return hashes < next_hash


def held_out_size(pairs: int) -> int:
    """Return how many of the training pairs to hold out for validation: 2 %, but at least 1 and at most 1,000.

    A small corpus needs most of its pairs for training, and more than 1,000 pairs would only make each evaluation
    slower. With fewer than two pairs, the result is 0.
    """
    if pairs < 2:
        return 0
    return min(1_000, max(1, pairs // 50))


def _measure_texts(pairs: Dataset) -> _TextMeasures:
    """Compute the hashes and the lengths of all pairs.

    The result has one entry for each pair, in the order of `pairs`. The branches below differ only in speed.

    Raises:
        TypeError, ValueError: if `pairs` has no text in `source` and `target`.
    """
    check_are_texts(pairs)
    # A filtered or shuffled dataset is a selection: `_indices` has its rows of the table `pairs.data`. For all other
    # datasets, `_indices` is None. `datasets` has no public attribute that tells the rows.
    is_selection = pairs._indices is not None
    if not is_selection:
        return _measure_in_chunks(pairs)
    is_small_selection = 4 * len(pairs) < len(pairs.data)
    if is_small_selection:
        return _measure_in_chunks(pairs)

    # `datasets` would copy the rows of a selection one by one. If they are a quarter of the table or more, it is faster
    # to measure the whole table, and to select from the result. The new dataset reuses the fingerprint, because
    # `datasets` would otherwise compute one by hashing.
    whole_table = Dataset(pairs.data, fingerprint=pairs._fingerprint)
    selected_rows = pairs._indices.column(0).to_numpy()
    return _measure_in_chunks(whole_table).select(selected_rows)


def _measure_in_chunks(pairs: Dataset) -> _TextMeasures:
    """Compute the measures of all pairs, one chunk of rows at a time, so that only one chunk is in memory."""
    # NumPy cannot concatenate an empty list, and the loop below adds nothing if there are no pairs.
    no_pairs = _TextMeasures(
        hashes=np.zeros(0, np.uint64),
        source_lengths=np.zeros(0, np.int32),
        target_lengths=np.zeros(0, np.int32),
        has_identical_sides=np.zeros(0, np.bool_),
        has_long_side=np.zeros(0, np.bool_),
    )
    measures_of_chunks = [no_pairs]
    # With the format "arrow", each chunk is a table with up to _ROWS_AT_ONCE rows.
    for chunk in pairs.with_format("arrow").iter(_ROWS_AT_ONCE):
        measures_of_chunks.append(_measure_rows(chunk))
    return _TextMeasures.concatenate(measures_of_chunks)


def _measure_rows(rows: pa.Table) -> _TextMeasures:
    """Compute the measures of the pairs in a table with the columns `source` and `target`.

    The lengths and `has_identical_sides` ignore white space at the ends of a text, unlike the hashes and
    `has_long_side`.
    """
    # combine_chunks() makes one array of a column's chunks. A missing text counts as an empty text.
    source = pc.fill_null(rows.column("source").combine_chunks(), "")
    target = pc.fill_null(rows.column("target").combine_chunks(), "")
    stripped_source = pc.utf8_trim_whitespace(source)
    stripped_target = pc.utf8_trim_whitespace(target)
    has_identical_sides = pc.equal(stripped_source, stripped_target)
    return _TextMeasures(
        # The factor gives a pair a different hash than the same pair with source and target exchanged. Results above 64
        # bits wrap around.
        hashes=3 * _hash_texts(source) + _hash_texts(target),
        source_lengths=pc.utf8_length(stripped_source).to_numpy(),
        target_lengths=pc.utf8_length(stripped_target).to_numpy(),
        # zero_copy_only=False, because Arrow stores booleans as single bits, which NumPy cannot read in place.
        has_identical_sides=has_identical_sides.to_numpy(zero_copy_only=False),
        has_long_side=_are_long(source) | _are_long(target),
    )


def _are_long(texts: pa.Array) -> NDArray[np.bool_]:
    """Return True for each text that has more than 4,192 bytes in UTF-8, as a mask `(texts,)`. No text is missing."""
    return pc.binary_length(texts).to_numpy() > MOST_BYTES


def _hash_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """Hash each text. The hashes are the same in all processes, unlike those of Python's `hash()`."""
    # Arrow's strings become Python strings, which needs a copy. categorize=True would first search for repeated texts,
    # which are rare here.
    return pd.util.hash_array(texts.to_numpy(zero_copy_only=False), categorize=False)


def _differ_in_length(measures: _TextMeasures, is_candidate: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask `(pairs,)` of the candidates that the rule "length ratio" removes.

    Args:
        measures: the measures of all pairs, of which only the lengths are read.
        is_candidate: True for the pairs that no other rule removes, `(pairs,)`.
    """
    # If the rule "empty on one side" is skipped, candidates may have an empty side. They have no ratio, and stay.
    has_text = np.minimum(measures.source_lengths, measures.target_lengths) > 0
    is_compared = is_candidate & has_text
    is_removed = np.zeros_like(is_compared)
    # Each removal changes the totals by which the lengths are scaled, so the rule is repeated until it removes nothing.
    # The loop ends, because a removed pair never comes back.
    while True:
        is_too_different = _differ_too_much(measures, is_remaining=is_compared & ~is_removed)
        if not is_too_different.any():
            return is_removed
        is_removed |= is_too_different


def _differ_too_much(measures: _TextMeasures, is_remaining: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask `(pairs,)` of the remaining pairs whose lengths differ too much in relation to their totals."""
    if not is_remaining.any():
        # Without pairs, the totals are 0, and there is nothing to scale.
        return np.zeros_like(is_remaining)
    return is_remaining & ~_have_similar_lengths(measures, is_in_totals=is_remaining)


def _have_similar_lengths(measures: _TextMeasures, is_in_totals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the pairs whose source and target have similar numbers of characters, after scaling.

    Two lengths are similar if the longer one is at most 3 times the shorter one after 10 characters are added to both.
    Before that, the lengths are scaled, because the same text needs more characters in one language than in another.

    Args:
        measures: the measures of all pairs, of which only the lengths are read.
        is_in_totals: True for the pairs that the two totals below add up, `(pairs,)`. There must be at least one, and
            all of them must have text on both sides.

    Returns:
        True for each pair with similar lengths, `(pairs,)`. The pairs outside of the totals are judged, too.
    """
    source_total = measures.source_lengths.sum(where=is_in_totals)
    target_total = measures.target_lengths.sum(where=is_in_totals)
    # The square root shares the scaling between the sides: source_total * scale equals target_total / scale. For
    # example, the totals 100 and 400 give a scale of 2, and both become 200.
    scale = sqrt(target_total / source_total)
    scaled_source = measures.source_lengths.astype(np.float32) * scale
    scaled_target = measures.target_lengths.astype(np.float32) / scale
    longer = np.maximum(scaled_source, scaled_target) + _ADDED_CHARACTERS
    shorter = np.minimum(scaled_source, scaled_target) + _ADDED_CHARACTERS
    return longer <= _LARGEST_LENGTH_RATIO * shorter
