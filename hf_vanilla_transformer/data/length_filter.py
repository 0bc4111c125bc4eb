"""Lengths of tokenized pairs, and a filter for pairs that are empty or too long."""

from typing import Any

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


_COLUMNS = ["input_ids", "labels"]
_ROWS_AT_ONCE = 10_000


def filter_pairs(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Remove tokenized pairs that are too long or empty, and count them.

    The first rule that holds for one side removes a pair:

    - `"too long"`: the side has more than `max_tokens` tokens, `</s>` included.
    - `"empty"`: the side has only tokens of white space, as defined by `str.isspace`, and special tokens such as
      `</s>`. A token that is a part of a character counts as text.

    No pair is truncated, and the others keep their order. If `data` is a file in the cache of `datasets`, so are the
    indices of the remaining pairs, and later calls reuse them; nothing stays in memory.

    Args:
        data (`Dataset`): pairs of [`tokenize_pairs`], with lists of tokens in the columns `input_ids` and `labels`.
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer of these pairs.
        max_tokens (`int`, *optional*): most tokens of a side; for a [`TokenBudgetBatchSampler`], its
            `tokens_per_batch`. If None, no pair is too long.

    Returns:
        `Dataset`: the remaining pairs.
        `dict[str, int]`: the number of pairs that each rule removed, `"empty"` and `"too long"`.

    Raises:
        TypeError: if `data` is not a `Dataset`, or `max_tokens` is not a whole number.
        ValueError: if `max_tokens` is less than 1, a column is missing, or no pair would remain.
    """
    if max_tokens is not None:
        check_number("max_tokens", max_tokens, 1)
    check_is_dataset(data)
    too_long = 0 if max_tokens is None else int((np.maximum(*pair_lengths(data)) > max_tokens).sum())
    blank = []
    for side in sides_of(tokenizer):
        texts = side.batch_decode([[token] for token in range(len(side))], skip_special_tokens=True)
        blank.append([token for token, text in enumerate(texts) if not text.strip()])
    rules = {"blank_tokens": blank, "max_tokens": max_tokens}
    sizes = {"batch_size": _ROWS_AT_ONCE, "writer_batch_size": _ROWS_AT_ONCE}
    kept = data.with_format("arrow").filter(_fit, batched=True, fn_kwargs=rules, desc="removing pairs", **sizes)
    dropped = {"empty": len(data) - len(kept) - too_long, "too long": too_long}
    if not len(kept):
        raise InputError(
            f"none of the {len(data)} pairs would remain: {dropped['empty']} are empty on one side and {too_long} "
            f"longer than {max_tokens} tokens; raise max_tokens, or tokens_per_batch, or give other pairs."
        )
    return (data if len(kept) == len(data) else kept.with_format(**data.format)), dropped


def _fit(pairs: pa.Table, blank_tokens: list[list[int]], max_tokens: int | None) -> NDArray[np.bool_]:
    """Mask of the pairs that are neither empty nor too long, `(pairs,)`."""
    fit = np.ones(len(pairs), np.bool_)
    for side, blank in zip(map(pairs.column, _COLUMNS), blank_tokens, strict=True):
        tokens, has_text = side.combine_chunks(), np.zeros(len(pairs), np.bool_)
        is_text = pc.invert(pc.is_in(pc.list_flatten(tokens), pa.array(blank)))
        has_text[pc.list_parent_indices(tokens).filter(is_text)] = True
        fit &= has_text & (_list_lengths(side) <= (max_tokens or np.inf))
    return fit


def pair_lengths(data: Dataset | tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Source and target lengths of tokenized pairs, in tokens, each `(pairs,)`; a missing list has length 0.

    Args:
        data (`Dataset`, or two arrays): pairs of [`tokenize_pairs`], whose tokens are not read; or the lengths.

    Raises:
        TypeError, ValueError: if `data` has no lengths, or arrays do not fit together.
    """
    if isinstance(data, Dataset):
        missing = [name for name in _COLUMNS if name not in data.column_names]
        if missing:
            raise InputError(
                f"the data set has the columns {', '.join(data.column_names)}, and not {' and '.join(missing)}; "
                "tokenize_pairs() makes them."
            )
        source, target = (_list_lengths(data.data.column(name)) for name in _COLUMNS)
        if data._indices is None:
            return source, target
        # A filtered or shuffled data set lists rows of its table; datasets itself would copy them one by one.
        rows = data._indices.column(0).to_numpy()
        return source[rows], target[rows]
    sides = [np.asarray(side) for side in data] if isinstance(data, (tuple, list, np.ndarray)) else []
    if len(sides) != 2 or any(s.shape != (len(sides[0]),) or not np.issubdtype(s.dtype, np.integer) for s in sides):
        raise TypeError(
            f"a {type(data).__name__} does not tell the lengths of pairs; give a datasets.Dataset, or two arrays of "
            "whole numbers, (pairs,): source and target lengths."
        )
    return sides[0], sides[1]


def _list_lengths(column: pa.ChunkedArray) -> NDArray[Any]:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()
