"""Measure the lengths of tokenized pairs, and remove pairs that are empty or too long."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray
from transformers import PreTrainedTokenizerBase

from ..model.input_checks import sides_of
from ..support.argument_checks import check_number
from ..support.user_errors import InputError
from .tokenized_pairs import check_is_dataset


_COLUMNS = ("input_ids", "labels")
# Large enough that Arrow's overhead per call does not matter, and small enough to limit the memory.
_ROWS_AT_ONCE = 10_000


def filter_pairs(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Remove tokenized pairs that are too long or empty, and count them.

    A pair is removed by the first of these rules that applies to its source or its target:

    - `"too long"`: the text has more than `max_tokens` tokens, including `</s>`.
    - `"empty"`: the text consists only of special tokens, such as `</s>`, and of white space as defined by
      `str.isspace`. A token that is a part of a character counts as text.

    Pairs are never truncated, and the remaining pairs keep their order. If `data` is a file in the cache of `datasets`,
    the indices of the remaining pairs are stored there, and later calls reuse them.

    Args:
        data (`Dataset`): pairs from [`tokenize_pairs`], with lists of tokens in the columns `input_ids` and `labels`.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        max_tokens (`int`, *optional*): maximum number of tokens in a source or a target. If None, there is no limit.

    Returns:
        The remaining pairs, and the number of pairs that each rule removed.

    Raises:
        TypeError: if `data` is not a `Dataset`, or if `max_tokens` is not a whole number.
        ValueError: if `max_tokens` is less than 1, if a column is missing, or if no pair would remain.
    """
    if max_tokens is not None:
        check_number("max_tokens", max_tokens, 1)
    check_is_dataset(data)
    too_long_count = _count_too_long(data, max_tokens)
    remaining = _select_pairs_that_fit(data, tokenizer, max_tokens)
    # A pair that is both empty and too long counts as too long.
    empty_count = len(data) - len(remaining) - too_long_count
    removed = {"empty": empty_count, "too long": too_long_count}
    if len(remaining) == 0:
        raise InputError(
            f"none of the {len(data)} pairs would remain: {empty_count} are empty on one side and {too_long_count} "
            f"longer than {max_tokens} tokens; raise max_tokens, or tokens_per_batch, or give other pairs."
        )
    if len(remaining) == len(data):
        return data, removed
    # The selected pairs have the format "arrow".
    return remaining.with_format(**data.format), removed


def _select_pairs_that_fit(data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> Dataset:
    """Return the pairs that are neither empty nor too long, in the format "arrow"."""
    # Source and target may have different vocabularies, so each column has its own ids of blank tokens.
    source_side, target_side = sides_of(tokenizer)
    blank_tokens = {"input_ids": _find_blank_tokens(source_side), "labels": _find_blank_tokens(target_side)}
    return data.with_format("arrow").filter(
        _find_pairs_that_fit,
        batched=True,
        batch_size=_ROWS_AT_ONCE,
        writer_batch_size=_ROWS_AT_ONCE,
        fn_kwargs={"blank_tokens": blank_tokens, "max_tokens": max_tokens},
        desc="removing pairs",
    )


def _count_too_long(data: Dataset, max_tokens: int | None) -> int:
    """Count the pairs with more than `max_tokens` tokens on at least one side. Returns 0 if `max_tokens` is None."""
    if max_tokens is None:
        return 0
    source_lengths, target_lengths = pair_lengths(data)
    is_too_long = np.maximum(source_lengths, target_lengths) > max_tokens
    return int(is_too_long.sum())


def _find_blank_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the special tokens, and of all tokens that decode to an empty text or to white space."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
    return [token for token, text in enumerate(texts) if not text.strip()]


def _find_pairs_that_fit(
    pairs: pa.Table, blank_tokens: dict[str, list[int]], max_tokens: int | None
) -> NDArray[np.bool_]:
    """Find the pairs that are neither empty nor too long.

    Args:
        pairs: a chunk of tokenized pairs.
        blank_tokens: for each column of tokens, the ids of the tokens without text, such as `</s>` and spaces.
        max_tokens: maximum number of tokens in a source or a target; None for no limit.

    Returns:
        True for the pairs to keep, `(pairs,)`.
    """
    fits = np.ones(len(pairs), np.bool_)
    for column_name, blank_tokens_of_column in blank_tokens.items():
        token_lists = pairs.column(column_name)
        fits &= _have_text(token_lists, blank_tokens_of_column)
        if max_tokens is not None:
            fits &= _list_lengths(token_lists) <= max_tokens
    return fits


def _have_text(token_lists: pa.ChunkedArray, blank_tokens: list[int]) -> NDArray[np.bool_]:
    """Return True for each list that contains at least one token with text, as a mask `(lists,)`."""
    lists = token_lists.combine_chunks()
    # The tokens of all lists, one list after the other, and the index of the list to which each token belongs. For
    # example, the lists [[7, 8], [], [9]] give the tokens [7, 8, 9] and the indices [0, 0, 2].
    all_tokens = pc.list_flatten(lists)
    list_of_token = pc.list_parent_indices(lists)

    is_text_token = pc.invert(pc.is_in(all_tokens, pa.array(blank_tokens)))
    # The index of a list occurs here once for each of its text tokens, and not at all if the list has none.
    lists_with_text = list_of_token.filter(is_text_token)
    has_text = np.zeros(len(lists), np.bool_)
    has_text[lists_with_text] = True
    return has_text


def pair_lengths(data: Dataset | tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the source lengths and the target lengths of tokenized pairs, in tokens, as two arrays `(pairs,)`.

    If a pair has no list of tokens on one side, the length of that side is 0.

    Args:
        data (`Dataset`, or two arrays): pairs from [`tokenize_pairs`], or their source and target lengths. The tokens
            themselves are not read.

    Raises:
        TypeError, ValueError: if `data` has no lengths, or if the two arrays do not have the same shape `(pairs,)`.
    """
    if isinstance(data, Dataset):
        return _lengths_in_dataset(data)
    lengths = _read_two_arrays(data)
    if lengths is None:
        raise TypeError(
            f"a {type(data).__name__} does not tell the lengths of pairs; give a datasets.Dataset, or two arrays of "
            "whole numbers, (pairs,): source and target lengths."
        )
    return lengths


def _read_two_arrays(data: object) -> tuple[NDArray[np.integer], NDArray[np.integer]] | None:
    """Return two arrays of integers with the same shape `(pairs,)`, or None if `data` does not consist of these.

    `data` may be a tuple or a list of two arrays or lists, or a single array of shape `(2, pairs)`.
    """
    if not isinstance(data, (tuple, list, np.ndarray)) or len(data) != 2:
        return None
    source_lengths = np.asarray(data[0])
    target_lengths = np.asarray(data[1])
    for lengths in (source_lengths, target_lengths):
        if lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
            return None
    if len(source_lengths) != len(target_lengths):
        return None
    return source_lengths, target_lengths


def _lengths_in_dataset(data: Dataset) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the source lengths and the target lengths of a dataset. Arrow computes them without reading the tokens.

    Raises ValueError if a column of tokens is missing.
    """
    missing_columns = [name for name in _COLUMNS if name not in data.column_names]
    if missing_columns:
        raise InputError(
            f"the data set has the columns {', '.join(data.column_names)}, and not {' and '.join(missing_columns)}; "
            "tokenize_pairs() makes them."
        )
    # `data.data` is the table that stores the data set. These are the lengths in all of its rows.
    source_lengths = _list_lengths(data.data.column("input_ids"))
    target_lengths = _list_lengths(data.data.column("labels"))
    # A filtered or shuffled data set stores in `_indices` which rows of its table it contains.
    is_whole_table = data._indices is None
    if is_whole_table:
        return source_lengths, target_lengths
    selected_rows = data._indices.column(0).to_numpy()
    return source_lengths[selected_rows], target_lengths[selected_rows]


def _list_lengths(column: pa.ChunkedArray) -> NDArray[np.integer]:
    # A missing list has the length null in Arrow, and 0 here.
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()
