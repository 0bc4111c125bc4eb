"""Lengths of tokenized pairs, and a filter for pairs that are empty or too long."""

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


_COLUMNS = ["input_ids", "labels"]
_ROWS_PER_READ = 10_000
_ROWS_PER_WRITE = 100_000
# Decoders write it for bytes that are an incomplete character.
_REPLACEMENT_CHARACTER = "\ufffd"


def filter_pairs(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Remove tokenized pairs that are empty or too long, and count them.

    The first rule that holds for one side removes a pair:

    - `"empty"`: the side has no tokens, or decodes, without special tokens such as `</s>`, to white space only, as
      defined by `str.isspace`.
    - `"too long"`: the side has more than `max_tokens` tokens, `</s>` included.

    No pair is truncated, and the others keep their order. If `data` is a file in the cache of `datasets`, so are the
    indices of the remaining pairs; nothing stays in memory.

    Args:
        data (`Dataset`): pairs of [`tokenize_pairs`], with lists of tokens in the columns `input_ids` and `labels`.
        tokenizer (`PreTrainedTokenizerBase`): the tokenizer of these pairs.
        max_tokens (`int`, *optional*): most tokens of a side; for a [`TokenBudgetBatchSampler`], its
            `tokens_per_batch`. If None, no pair is too long.

    Returns:
        `Dataset`: the remaining pairs.
        `dict[str, int]`: the number of pairs that each rule removed, `"empty"` and `"too long"`.

    Raises:
        TypeError: if `data` is not a `Dataset`, `max_tokens` is not a whole number, or a column does not hold lists.
        ValueError: if `max_tokens` is less than 1, a column is missing, or no pair would remain.
    """
    if max_tokens is not None:
        check_number("max_tokens", max_tokens, 1)
    check_columns(data)
    keep, dropped = _judge(data, tokenizer, max_tokens)
    if not keep.any():
        too_long = f"{dropped['too long']} longer than max_tokens, which is {max_tokens}; raise it, or "
        raise ValueError(
            f"none of the {len(data)} pairs would remain: {dropped['empty']} are empty on one side"
            f"{'; ' if max_tokens is None else f', and {too_long}'}give other pairs."
        )
    if keep.all():
        return data, dropped
    kept = data.with_format("arrow").filter(
        lambda labels, rows: keep[rows],
        with_indices=True,
        input_columns="labels",
        batched=True,
        batch_size=_ROWS_PER_READ,
        writer_batch_size=_ROWS_PER_WRITE,
        # Hashes the pairs kept, so that the cache does not return those of another limit.
        new_fingerprint=Hasher.hash([data._fingerprint, np.packbits(keep).tobytes()]),
        desc="removing pairs",
    )
    return kept.with_format(**data.format), dropped


def _judge(
    data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Mask of the remaining pairs, `(pairs,)`, and the number of pairs that each rule removes."""
    keep = np.empty(len(data), np.bool_)
    dropped = {"empty": 0, "too long": 0}
    maybe_blank = _maybe_blank(tokenizer)
    begin = 0
    with tqdm(total=len(data), desc="checking pairs", unit=" pairs") as bar:
        for table in data.with_format("arrow").iter(_ROWS_PER_READ):
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
    """Mask of tokens that decode to white space or to no whole character, `(tokens + 1,)`; False for unknown ids."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
    blank = [all(character.isspace() or character == _REPLACEMENT_CHARACTER for character in text) for text in texts]
    return np.array([*blank, False])


def _is_blank(
    side: pa.ChunkedArray, maybe_blank: NDArray[np.bool_], tokenizer: PreTrainedTokenizerBase
) -> NDArray[np.bool_]:
    """Mask of sentences that decode to white space, `(pairs,)`; only those that may be blank are decoded."""
    has_text = ~maybe_blank.take(pc.list_flatten(side).to_numpy(), mode="clip")
    before = np.concatenate([[0], np.cumsum(has_text)])
    ends = np.cumsum(_list_lengths(side))
    blank = before[ends] == before[np.concatenate([[0], ends[:-1]])]
    rows = np.flatnonzero(blank)
    sentences = [ids or [] for ids in side.take(rows).to_pylist()]
    blank[rows] = [not text.strip() for text in tokenizer.batch_decode(sentences, skip_special_tokens=True)]
    return blank


def pair_lengths(data: Dataset | tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Source and target lengths of tokenized pairs, in tokens, each `(pairs,)`; a missing list has length 0.

    Args:
        data (`Dataset`, or two arrays): pairs of [`tokenize_pairs`], whose tokens are not read; or the lengths.

    Raises:
        TypeError, ValueError: if `data` has no lengths, or arrays do not fit together.
    """
    if isinstance(data, Dataset):
        check_columns(data)
        source, target = (_list_lengths(data.data.column(name)) for name in _COLUMNS)
        if data._indices is None:
            return source, target
        # A filtered or shuffled data set lists rows of its table; datasets itself would copy them one by one.
        rows = data._indices.column(0).to_numpy()
        return source[rows], target[rows]
    if not isinstance(data, (tuple, list, np.ndarray)) or len(data) != 2:
        raise TypeError(
            f"a {type(data).__name__} does not know the lengths of its pairs; give a datasets.Dataset, or two arrays: "
            "source and target lengths."
        )
    source, target = map(np.asarray, data)
    if source.ndim != 1 or source.shape != target.shape:
        raise ValueError(f"lengths have the shapes {source.shape} and {target.shape}; both must be (pairs,).")
    if not all(np.issubdtype(side.dtype, np.integer) for side in (source, target)):
        raise TypeError(f"lengths are {source.dtype} and {target.dtype}; they count tokens, so give whole numbers.")
    return source, target


def check_columns(data: Dataset) -> None:
    """Check that both columns hold lists of tokens.

    Raises:
        TypeError: if a column holds something else, or `data` is not a `Dataset`.
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


def _list_lengths(column: pa.ChunkedArray) -> NDArray[Any]:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()
