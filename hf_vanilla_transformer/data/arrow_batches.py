"""Padded batches straight from the memory of an Arrow table, equal to those of the stock collator.

`datasets` makes a Python list of each sentence, and `DataCollatorForSeq2Seq` pads the lists one by one: 15 ms for 800
pairs, during which a GPU waits. Here NumPy copies each sentence from the table into the batch, in about 1 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from transformers import BatchEncoding, DataCollatorForSeq2Seq, PreTrainedTokenizerBase


NO_LABEL = -100
COLUMNS = ("input_ids", "labels")


class PreparesDecoderInputs(Protocol):
    """A model whose decoder inputs follow from the labels."""

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor: ...


class TokenColumn:
    """A column of token lists, read in place: a file that is mapped into memory stays there.

    Args:
        column (`pyarrow.ChunkedArray`): lists of integers, without missing ones.
    """

    def __init__(self, column: pyarrow.ChunkedArray) -> None:
        self.tokens_of_chunks: list[NDArray[np.integer]] = []
        self.offsets_of_chunks: list[NDArray[np.integer]] = []
        chunk_sizes = []
        for chunk in column.chunks:
            # `values` ignores where a slice of a table begins, and the offsets count from there, so they belong
            # together.
            self.tokens_of_chunks.append(chunk.values.to_numpy())
            self.offsets_of_chunks.append(chunk.offsets.to_numpy())
            chunk_sizes.append(len(chunk))
        # The first row of each chunk.
        self.first_rows = np.cumsum([0, *chunk_sizes])[:-1]

    def pad(self, rows: NDArray[np.integer], value: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Pad lists on the right to the longest of them.

        Args:
            rows: indices of lists, `(rows,)`.
            value: fills the positions after the end of a list.

        Returns:
            The tokens, and which of them are not padding, both `(rows, longest)`.
        """
        chunks = np.searchsorted(self.first_rows, rows, side="right") - 1
        rows_in_chunks = rows - self.first_rows[chunks]
        sentences = []
        for chunk, row in zip(chunks.tolist(), rows_in_chunks.tolist(), strict=True):
            offsets = self.offsets_of_chunks[chunk]
            sentences.append(self.tokens_of_chunks[chunk][offsets[row] : offsets[row + 1]])
        lengths = np.array([len(sentence) for sentence in sentences])
        is_token = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full(is_token.shape, value, dtype=np.int64)
        padded[is_token] = np.concatenate(sentences)
        return padded, is_token


@dataclass(frozen=True)
class PaddedPairs:
    """Source and target tokens of a batch, padded, and which source tokens are not padding; `(rows, longest)`."""

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    labels: NDArray[np.int64]


class ArrowPairs(torch.utils.data.Dataset):
    """A view of a dataset with the columns `input_ids` and `labels` that returns whole padded batches.

    Args:
        data (`Dataset`): lists of tokens, without missing ones.
        pad_token_id (`int`): the source's padding.
    """

    def __init__(self, data: Dataset, pad_token_id: int) -> None:
        self.data = data
        self.pad_token_id = pad_token_id
        self.source = TokenColumn(data.data.column("input_ids"))
        self.target = TokenColumn(data.data.column("labels"))
        # `select` and `shuffle` leave the table alone, and store which of its rows they mean.
        self.rows_of_table = None
        if data._indices is not None:
            self.rows_of_table = data._indices.column(0).to_numpy()

    def __reduce__(self) -> tuple[type["ArrowPairs"], tuple[Dataset, int]]:
        # A dataset is pickled as the name of its file, but arrays would be pickled with all tokens.
        return ArrowPairs, (self.data, self.pad_token_id)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        """Return a pair as the dataset does, for code that looks at single pairs."""
        return self.data[row]

    def __getitems__(self, rows: Sequence[int]) -> PaddedPairs:
        """Return the padded batch of these rows; torch's loader calls this with the indices of a batch."""
        rows_of_table = np.asarray(rows, dtype=np.int64)
        if self.rows_of_table is not None:
            rows_of_table = self.rows_of_table[rows_of_table].astype(np.int64)
        input_ids, is_token = self.source.pad(rows_of_table, self.pad_token_id)
        labels, _ = self.target.pad(rows_of_table, NO_LABEL)
        return PaddedPairs(input_ids, is_token.astype(np.int64), labels)


class TensorsOfPairs:
    """A collator that turns `PaddedPairs` into the tensors of the stock collator.

    Args:
        model (*optional*): makes decoder inputs from the labels, as in the stock collator.
    """

    def __init__(self, model: PreparesDecoderInputs | None = None) -> None:
        self.model = model

    def __call__(self, pairs: PaddedPairs) -> BatchEncoding:
        labels = torch.from_numpy(pairs.labels)
        batch = {
            "input_ids": torch.from_numpy(pairs.input_ids),
            "attention_mask": torch.from_numpy(pairs.attention_mask),
            "labels": labels,
        }
        if self.model is not None:
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
        return BatchEncoding(batch)


def pad_from_arrow(loader: DataLoader) -> None:
    """Make a data loader that has not been used yet pad from Arrow's memory; its batches stay equal, bit by bit.

    Nothing changes unless the loader is torch's own, also within accelerate's, and dataset and collator are those that
    [`from_arrow`] takes.
    """
    torch_loader = getattr(loader, "base_dataloader", loader)
    if type(torch_loader) is not DataLoader:
        return
    faster = from_arrow(torch_loader.dataset, torch_loader.collate_fn)
    if faster is None:
        return
    pairs, tensors_of_pairs = faster
    # torch refuses another dataset, because samplers and sizes would no longer fit. These are the same pairs.
    object.__setattr__(torch_loader, "dataset", pairs)
    torch_loader.collate_fn = tensors_of_pairs


def from_arrow(data: object, collator: object) -> tuple[ArrowPairs, TensorsOfPairs] | None:
    """Return a dataset and a collator that make the same batches faster, or None if they might not be the same.

    Args:
        data: a `datasets.Dataset` whose only columns are those of [`tokenize_pairs`], without a format.
        collator: a `DataCollatorForSeq2Seq` with default settings, whose tokenizer pads on the right.
    """
    if type(data) is not Dataset or type(collator) is not DataCollatorForSeq2Seq:
        return None
    if not (_holds_lists_of_tokens(data) and _pads_to_the_longest(collator) and _pads_as_stock(collator.tokenizer)):
        return None
    model = None
    if hasattr(collator.model, "prepare_decoder_input_ids_from_labels"):
        model = collator.model
    return ArrowPairs(data, collator.tokenizer.pad_token_id), TensorsOfPairs(model)


def _pads_to_the_longest(collator: DataCollatorForSeq2Seq) -> bool:
    """Return True if a collator has its default settings."""
    return (
        collator.padding is True
        and collator.pad_to_multiple_of is None
        and collator.label_pad_token_id == NO_LABEL
        and collator.return_tensors == "pt"
    )


def _pads_as_stock(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if a tokenizer pads on the right, by the methods of transformers, and makes a mask."""
    for name in ("pad", "_pad"):
        is_overridden = getattr(type(tokenizer), name) is not getattr(PreTrainedTokenizerBase, name)
        if is_overridden or name in vars(tokenizer):
            return False
    return (
        tokenizer.padding_side == "right"
        and tokenizer.pad_token_id is not None
        and tokenizer.model_input_names[:2] == ["input_ids", "attention_mask"]
    )


def _holds_lists_of_tokens(data: Dataset) -> bool:
    """Return True if a dataset has the columns of `tokenize_pairs` alone, without missing values, and no format."""
    if sorted(data.column_names) != sorted(COLUMNS):
        return False
    if data.format["type"] is not None or sorted(data.format["columns"]) != sorted(COLUMNS):
        return False
    for name in COLUMNS:
        column = data.data.column(name)
        if not pyarrow.types.is_list(column.type) or not pyarrow.types.is_integer(column.type.value_type):
            return False
        if column.null_count > 0 or any(chunk.values.null_count > 0 for chunk in column.chunks):
            return False
    return True
