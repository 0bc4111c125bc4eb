"""Build padded training batches directly from an Arrow table's memory, faster than `DataCollatorForSeq2Seq` does.

`datasets` converts each sentence to a Python list, and `DataCollatorForSeq2Seq` pads the lists one by one. For 800
pairs this takes 15 ms, during which a GPU waits. Here NumPy copies the sentences from the table into the batch, which
takes about 1 ms. The batches are the same.
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


# The label of padding positions, which PyTorch's cross-entropy ignores by default.
NO_LABEL = -100
# The columns of tokenized pairs: source tokens and target tokens.
COLUMNS = ("input_ids", "labels")


class PreparesDecoderInputs(Protocol):
    """Interface of a model that can compute its decoder inputs from the labels."""

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class TokenChunk:
    """A chunk of consecutive token lists of a column, as views of the table's memory.

    The list with the index i has the tokens from `offsets[i]` up to, but not including, `offsets[i + 1]`.

    Args:
        tokens: the tokens of all lists, one list after the other.
        offsets: the indices in `tokens` between the lists, `(lists + 1,)`.
    """

    tokens: NDArray[np.integer]
    offsets: NDArray[np.integer]


class TokenColumn:
    """A column of token lists in an Arrow table. It is read in place, so memory-mapped files are not copied.

    Args:
        column (`pyarrow.ChunkedArray`): lists of integers, with no missing lists or integers.
    """

    def __init__(self, column: pyarrow.ChunkedArray) -> None:
        # Arrow stores the lists of a column in chunks.
        self.chunks: list[TokenChunk] = []
        for chunk in column.chunks:
            # If the table is a slice, `values` still contains all tokens of the chunk. The offsets also count from the
            # first of these tokens, so the two match.
            self.chunks.append(TokenChunk(tokens=chunk.values.to_numpy(), offsets=chunk.offsets.to_numpy()))
        sizes = np.array([len(chunk) for chunk in column.chunks], dtype=np.int64)
        # The row of the column with which each chunk begins, `(chunks,)`.
        self.first_row_of_chunk = np.cumsum(sizes) - sizes

    def pad(self, rows: NDArray[np.integer], value: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the token lists with the given indices as one array, padded on the right to the longest list.

        Args:
            rows: the indices of the lists in the table, `(rows,)`. There must be at least one.
            value: the padding token, which fills the positions after the end of a list.

        Returns:
            The tokens, and a mask that is True for tokens and False for padding, both `(rows, longest)`.
        """
        sentences = self._find_token_lists(rows)
        lengths = np.array([len(sentence) for sentence in sentences])
        is_token = np.arange(lengths.max()) < lengths[:, None]  # (rows, longest)
        padded = np.full(is_token.shape, value, dtype=np.int64)
        # The mask selects positions row by row, which is the order of the tokens in the concatenated sentences.
        padded[is_token] = np.concatenate(sentences)
        return padded, is_token

    def _find_token_lists(self, rows: NDArray[np.integer]) -> list[NDArray[np.integer]]:
        """Return the token lists with the given indices as views of the table's memory.

        A column is stored in chunks of consecutive rows. For example, if the chunks begin with the rows 0 and 100, the
        row 130 is in the second chunk, where its index is 30.
        """
        # The last chunk that begins at or before a row contains the row.
        chunk_of_row = np.searchsorted(self.first_row_of_chunk, rows, side="right") - 1
        index_in_chunk = rows - self.first_row_of_chunk[chunk_of_row]
        token_lists = []
        for chunk_index, index in zip(chunk_of_row.tolist(), index_in_chunk.tolist(), strict=True):
            chunk = self.chunks[chunk_index]
            # `tokens` has the tokens of all lists in the chunk, and `offsets` has the bounds of each list.
            start = chunk.offsets[index]
            end = chunk.offsets[index + 1]
            token_lists.append(chunk.tokens[start:end])
        return token_lists


@dataclass(frozen=True)
class PaddedPairs:
    """A padded batch of tokenized pairs, as NumPy arrays.

    Args:
        input_ids: source tokens, `(rows, longest source)`.
        attention_mask: 1 for source tokens and 0 for padding, `(rows, longest source)`.
        labels: target tokens, with -100 in place of padding, `(rows, longest target)`.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    labels: NDArray[np.int64]


class ArrowPairs(torch.utils.data.Dataset):
    """A tokenized dataset that gives a data loader whole padded batches instead of single pairs.

    Args:
        data (`Dataset`): tokenized pairs in the columns `input_ids` and `labels`, with no missing lists or tokens.
        pad_token_id (`int`): the padding token for the sources.
    """

    def __init__(self, data: Dataset, pad_token_id: int) -> None:
        """Find the token columns in the Arrow table behind a dataset, and the rows of the table that belong to it."""
        self.data = data
        self.pad_token_id = pad_token_id
        self.source = TokenColumn(data.data.column("input_ids"))
        self.target = TokenColumn(data.data.column("labels"))
        # The table's row for each row of the dataset. `select` and `shuffle` do not change the table, but store these
        # rows. None means that the dataset has all rows of the table, in the same order.
        self.table_rows = None
        if data._indices is not None:
            self.table_rows = data._indices.column(0).to_numpy()

    def __reduce__(self) -> tuple[type["ArrowPairs"], tuple[Dataset, int]]:
        # A dataset is pickled as its file name, but arrays would be pickled with all their tokens.
        return ArrowPairs, (self.data, self.pad_token_id)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> dict[str, list[int]]:
        """Return a single pair in the dataset's own form, for code that does not read whole batches."""
        return self.data[row]

    def __getitems__(self, rows: Sequence[int]) -> PaddedPairs:
        """Return the given rows as a padded batch. PyTorch's data loader calls this with the indices of a batch."""
        rows_of_batch = np.asarray(rows, dtype=np.int64)
        if self.table_rows is not None:
            # Convert rows of the dataset to rows of the table; the shape is still (rows,).
            rows_of_batch = self.table_rows[rows_of_batch].astype(np.int64)
        input_ids, is_source_token = self.source.pad(rows_of_batch, self.pad_token_id)
        # The loss ignores the positions whose label is NO_LABEL.
        labels, _ = self.target.pad(rows_of_batch, NO_LABEL)
        attention_mask = is_source_token.astype(np.int64)
        return PaddedPairs(input_ids, attention_mask, labels)


class TensorsOfPairs:
    """A collator that converts `PaddedPairs` to the same tensors that `DataCollatorForSeq2Seq` would return.

    Args:
        model (*optional*): a model that computes the decoder inputs from the labels. Without it, the batch contains no
            decoder inputs.
    """

    def __init__(self, model: PreparesDecoderInputs | None = None) -> None:
        self.model = model

    def __call__(self, pairs: PaddedPairs) -> BatchEncoding:
        # from_numpy() shares the memory of the arrays. This is safe, because the arrays were made for this batch alone.
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
    """Speed up a data loader, in place, by building its batches directly from an Arrow table's memory.

    The batches stay the same, bit by bit. Nothing is changed unless the data loader is PyTorch's own `DataLoader`, or
    accelerate's wrapper around one, and its dataset and its collator meet the conditions of [`from_arrow`].

    Args:
        loader: a data loader that has not been used yet. An existing iterator over it would keep the earlier dataset
            and collator.
    """
    # accelerate's data loaders store PyTorch's data loader in this attribute.
    torch_loader = getattr(loader, "base_dataloader", loader)
    if type(torch_loader) is not DataLoader:
        return
    replacements = from_arrow(torch_loader.dataset, torch_loader.collate_fn)
    if replacements is None:
        return

    # Both must be replaced, because only the faster collator can read the batches of the faster dataset.
    faster_dataset, faster_collator = replacements
    # The loader's own __setattr__ rejects a new dataset, because the sampler might not match it. Here it matches.
    object.__setattr__(torch_loader, "dataset", faster_dataset)
    torch_loader.collate_fn = faster_collator


def from_arrow(data: object, collator: object) -> tuple[ArrowPairs, TensorsOfPairs] | None:
    """Return a faster dataset and collator that make the same batches, or None if the batches might differ.

    Args:
        data: any dataset. It can be replaced only if it is a `datasets.Dataset` without a format, and its only columns
            are the two that [`tokenize_pairs`] makes.
        collator: any collator. It can be replaced only if it is a `DataCollatorForSeq2Seq` with default settings, and
            its tokenizer pads on the right.
    """
    # A subclass may make different batches, so isinstance() would accept too much. This check comes first, because the
    # others read attributes that only these classes have.
    if type(data) is not Dataset or type(collator) is not DataCollatorForSeq2Seq:
        return None
    makes_same_batches = (
        _has_only_lists_of_tokens(data)
        and _has_default_settings(collator)
        and _pads_on_the_right_as_usual(collator.tokenizer)
    )
    if not makes_same_batches:
        return None

    faster_dataset = ArrowPairs(data, collator.tokenizer.pad_token_id)
    faster_collator = TensorsOfPairs(_find_model_for_decoder_inputs(collator))
    return faster_dataset, faster_collator


def _find_model_for_decoder_inputs(collator: DataCollatorForSeq2Seq) -> PreparesDecoderInputs | None:
    """Return the model with which a collator adds `decoder_input_ids` to each batch, or None if it adds none."""
    if hasattr(collator.model, "prepare_decoder_input_ids_from_labels"):
        return collator.model
    return None


def _has_default_settings(collator: DataCollatorForSeq2Seq) -> bool:
    """Return True if a collator has the default settings, so that it pads to the longest sentence of the batch."""
    return (
        collator.padding is True
        and collator.pad_to_multiple_of is None
        and collator.label_pad_token_id == NO_LABEL
        and collator.return_tensors == "pt"
    )


def _pads_on_the_right_as_usual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if a tokenizer uses transformers' own methods to pad on the right and to make an attention mask."""
    # `pad` calls `_pad`. If a subclass overrides one of these methods, or if one was replaced in this object, the
    # tokenizer may pad differently.
    for method in ("pad", "_pad"):
        is_overridden_in_class = getattr(type(tokenizer), method) is not getattr(PreTrainedTokenizerBase, method)
        is_overridden_in_object = method in vars(tokenizer)
        if is_overridden_in_class or is_overridden_in_object:
            return False
    if tokenizer.padding_side != "right" or tokenizer.pad_token_id is None:
        return False
    # `pad` pads the first name in this list, and makes an attention mask only if the list contains "attention_mask".
    pads_tokens_and_makes_mask = tokenizer.model_input_names[:2] == ["input_ids", "attention_mask"]
    return pads_tokens_and_makes_mask


def _has_only_lists_of_tokens(data: Dataset) -> bool:
    """Return True if a dataset has only the token columns `input_ids` and `labels`, no missing values and no format."""
    if sorted(data.column_names) != sorted(COLUMNS):
        return False
    # with_format() makes a dataset return other types than lists, or leave out columns.
    has_format = data.format["type"] is not None or sorted(data.format["columns"]) != sorted(COLUMNS)
    if has_format:
        return False
    return all(_has_only_lists_of_integers(data.data.column(name)) for name in COLUMNS)


def _has_only_lists_of_integers(column: pyarrow.ChunkedArray) -> bool:
    """Return True if a column consists of lists of integers, and no list and no integer is missing.

    The result may be False for a column that has no missing integers. Its dataset is then read as usual, which is
    slower but gives the same batches.
    """
    # `is_list` is False for Arrow's type `large_list`, so columns of this rare type are read as usual, too.
    if not pyarrow.types.is_list(column.type) or not pyarrow.types.is_integer(column.type.value_type):
        return False
    has_missing_lists = column.null_count > 0
    if has_missing_lists:
        return False
    # If the table is a slice, `values` also contains integers outside of it, and a missing one among them counts, too.
    # [`TokenColumn`] converts the whole of `values` with `to_numpy()`, which raises an error if an integer is missing.
    missing_integers = sum(chunk.values.null_count for chunk in column.chunks)
    return missing_integers == 0
