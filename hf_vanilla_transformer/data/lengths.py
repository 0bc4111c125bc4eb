"""Lengths of tokenised pairs, and leaving out those pairs that do not fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from datasets.fingerprint import Hasher
from datasets.utils import tqdm
from numpy.typing import ArrayLike, NDArray
from transformers import PreTrainedTokenizerBase

from ..checks import check_number
from .tokenization import check_is_dataset


PAIRS_AT_ONCE = 100_000
_COLUMNS = ["input_ids", "labels"]
# Their tokens are read, not their lengths only.
_READ_AT_ONCE = 10_000
# What a decoder makes of bytes that are no whole character.
_PART_OF_A_CHARACTER = "\ufffd"


def filter_pairs(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Tokenised pairs without those that are empty or too long, and how many those are.

    A pair is left out by the first rule that holds for one of its sides:

    - `"empty"`: it has no tokens, or its tokens, decoded without the special ones such as `</s>`, are white space only,
      as `str.isspace` has it.
    - `"too long"`: it has more than `max_tokens` tokens, `</s>` included.

    No pair is cut, and the others keep their order. Where `data` is a file of the cache of `datasets`, so are the
    numbers of the pairs that stay, and nothing is held in memory.

    Args:
        data (`Dataset`): as of [`tokenize_pairs`], lists of tokens in the columns `input_ids` and `labels`.
        tokenizer (`PreTrainedTokenizerBase`): that made them.
        max_tokens (`int`, *optional*): most tokens of a side; `tokens_per_batch` for a [`TokenBudgetBatchSampler`].
            Without it none is too long.

    Returns:
        `Dataset`: the pairs that stay.
        `dict[str, int]`: the number of pairs that each rule left out, `"empty"` and `"too long"`.

    Raises:
        TypeError: if `data` is no `Dataset`, `max_tokens` is no whole number, or a column holds no lists.
        ValueError: if `max_tokens` is less than 1, a column is missing, or no pair would stay.
    """
    if max_tokens is not None:
        check_number("max_tokens", max_tokens, 1)
    check_columns(data)
    keep, dropped = _judge(data, tokenizer, max_tokens)
    if not keep.any():
        too_long = f"{dropped['too long']} longer than max_tokens, which is {max_tokens}; raise it, or "
        raise ValueError(
            f"none of the {len(data)} pairs would stay: {dropped['empty']} are empty on one side"
            f"{'; ' if max_tokens is None else f', and {too_long}'}give other pairs."
        )
    if keep.all():
        return data, dropped
    kept = data.with_format("arrow").filter(
        lambda labels, rows: keep[rows],
        with_indices=True,
        input_columns="labels",
        batched=True,
        batch_size=_READ_AT_ONCE,
        writer_batch_size=PAIRS_AT_ONCE,
        # By what stays, so that nothing that other rules kept is found in the cache.
        new_fingerprint=Hasher.hash([data._fingerprint, np.packbits(keep).tobytes()]),
        desc="leaving out pairs",
    )
    return kept.with_format(**data.format), dropped


def _judge(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which pairs stay, `(pairs,)`, and how many do not by each rule."""
    keep = np.empty(len(data), np.bool_)
    dropped = {"empty": 0, "too long": 0}
    maybe_blank = _maybe_blank(tokenizer)
    begin = 0
    with tqdm(total=len(data), desc="looking for pairs that do not fit", unit=" pairs") as bar:
        for table in data.with_format("arrow").iter(_READ_AT_ONCE):
            sides = [table.column(name) for name in _COLUMNS]
            empty = np.logical_or(*(_is_blank(side, maybe_blank, tokenizer) for side in sides))
            too_long = ~empty & (np.maximum(*map(_list_lengths, sides)) > (max_tokens or np.inf))
            keep[begin : begin + len(empty)] = ~empty & ~too_long
            dropped["empty"] += int(empty.sum())
            dropped["too long"] += int(too_long.sum())
            begin += len(empty)
            bar.update(len(empty))
    return keep, dropped


def _maybe_blank(tokenizer: PreTrainedTokenizerBase) -> NDArray[np.bool_]:
    """Tokens that alone say nothing, `(tokens + 1,)`; the last stands for those that the tokenizer does not know."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
    blank = [all(character.isspace() or character == _PART_OF_A_CHARACTER for character in text) for text in texts]
    return np.array([*blank, False])


def _is_blank(
    side: pa.ChunkedArray, maybe_blank: NDArray[np.bool_], tokenizer: PreTrainedTokenizerBase
) -> NDArray[np.bool_]:
    """Which sentences say nothing, `(pairs,)`; only those without a token that says something are decoded."""
    says = ~maybe_blank.take(pc.list_flatten(side).to_numpy(), mode="clip")
    said = np.concatenate([[0], np.cumsum(says)])
    ends = np.cumsum(_list_lengths(side))
    blank = said[ends] == said[np.concatenate([[0], ends[:-1]])]
    rows = np.flatnonzero(blank)
    sentences = [ids or [] for ids in side.take(rows).to_pylist()]
    blank[rows] = [not text.strip() for text in tokenizer.batch_decode(sentences, skip_special_tokens=True)]
    return blank


def count_and_lengths(
    data: Dataset | tuple[ArrayLike, ArrayLike],
) -> tuple[int, Iterator[tuple[NDArray[Any], NDArray[Any]]]]:
    """Number of pairs, and source and target lengths of some at a time, each `(some pairs,)`.

    Raises:
        TypeError, ValueError: if there are no lengths.
    """
    if isinstance(data, Dataset):
        check_columns(data)
        return len(data), _chunks_of_table(data)
    source, target = _lengths_in_arrays(data)
    return len(source), _chunks_of_arrays(source, target)


def check_columns(data: Dataset) -> None:
    """Make sure that there are lists of tokens on both sides.

    Raises:
        TypeError: if a column holds something else, or there are no columns but splits.
        ValueError: if a column is missing.
    """
    check_is_dataset(data)
    missing = [name for name in _COLUMNS if name not in data.column_names]
    if missing:
        raise ValueError(
            f"the data set has the columns {', '.join(data.column_names)}, and not {' and '.join(missing)}; "
            "tokenize_pairs() makes them."
        )
    for name in _COLUMNS:
        kind = data.data.column(name).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise TypeError(f'column "{name}" holds {kind}, not lists of tokens; tokenize_pairs() makes them.')


def _chunks_of_table(data: Dataset) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Lengths from the offsets of Arrow's lists; a missing list has length 0."""
    source, target = (data.data.column(name) for name in _COLUMNS)
    if data._indices is None:
        for begin in range(0, len(data), PAIRS_AT_ONCE):
            yield _list_lengths(source.slice(begin, PAIRS_AT_ONCE)), _list_lengths(target.slice(begin, PAIRS_AT_ONCE))
        return
    # A data set that was filtered or shuffled lists rows of its table; datasets itself would copy them one by one.
    source, target = _all_lengths(source), _all_lengths(target)
    for begin in range(0, len(data), PAIRS_AT_ONCE):
        rows = data._indices.column(0).slice(begin, PAIRS_AT_ONCE).to_numpy()
        yield source[rows], target[rows]


def _all_lengths(column: pa.ChunkedArray) -> NDArray[Any]:
    """Lengths in 16 bits, or in 32 where one needs them, `(pairs,)`."""
    lengths: NDArray[Any] = np.empty(len(column), np.uint16)
    for begin in range(0, len(column), PAIRS_AT_ONCE):
        some = _list_lengths(column.slice(begin, PAIRS_AT_ONCE))
        if some.max() > np.iinfo(lengths.dtype).max:
            lengths = lengths.astype(np.uint32)
        lengths[begin : begin + PAIRS_AT_ONCE] = some
    return lengths


def _list_lengths(column: pa.ChunkedArray) -> NDArray[Any]:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()


def _lengths_in_arrays(data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(data, (tuple, list, np.ndarray)) or len(data) != 2:
        raise TypeError(
            f"the lengths of pairs in a {type(data).__name__} are not known without reading it all; give a "
            "datasets.Dataset, or two arrays: source and target lengths."
        )
    source, target = map(np.asarray, data)
    if source.ndim != 1 or source.shape != target.shape:
        raise ValueError(f"lengths have the shapes {source.shape} and {target.shape}; both must be (pairs,).")
    if not all(np.issubdtype(side.dtype, np.integer) for side in (source, target)):
        raise TypeError(f"lengths are {source.dtype} and {target.dtype}; they count tokens, so give whole numbers.")
    return source, target


def _chunks_of_arrays(source: NDArray[Any], target: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for begin in range(0, len(source), PAIRS_AT_ONCE):
        chunk = slice(begin, begin + PAIRS_AT_ONCE)
        yield source[chunk], target[chunk]
