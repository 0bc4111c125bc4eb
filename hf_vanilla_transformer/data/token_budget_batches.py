"""Sample training batches whose size is limited by tokens instead of sentences (section 5.1 of the paper).

Each batch contains pairs of similar lengths, so it needs little padding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_pt_utils import BatchRebalanceSampler

from ..support.argument_checks import check_number
from ..support.skip_logits import skip_unused_logits
from ..support.user_errors import InputError
from .arrow_batches import pad_from_arrow
from .length_filter import pair_lengths


# Matmuls are faster if the number of rows is a multiple of this, because GPU tiles and CPU vectors are then full.
_ROWS_MULTIPLE = 8

# With several processes, the batches of a step should have equal numbers of padded tokens. They are chosen from a
# window of this many steps. A larger window makes the numbers more equal, but it also makes the lengths within a step
# more similar, so steps become less random. With 32 steps, the slowest of 8 processes has less than 1 % more padded
# tokens than the mean. With randomly assigned batches, it would have 6 % more at 25,000 tokens per batch, and 10 % more
# at 3,125.
_STEPS_PER_WINDOW = 32


# The base class tells the Trainer that this sampler yields whole batches, different ones in each process. It has no
# other use: its public methods are overridden, and its `__init__` is not called.
class TokenBudgetBatchSampler(BatchRebalanceSampler):
    """A batch sampler that groups pairs of similar lengths, and limits each batch by tokens instead of sentences.

    In every batch, rows x longest source and rows x longest target are at most `tokens_per_batch`, so padding counts as
    well. The paper's batches have about 25,000 source and 25,000 target tokens (section 5.1). The authors' code and
    fairseq limit batches in the same way.

    With a stock `Seq2SeqTrainer`, add one line before `trainer.train()`:

    ```python
    TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=2048)
    ```

    With a `DataLoader` of your own, call `set_epoch` before each epoch:

    ```python
    sampler = TokenBudgetBatchSampler(data, tokens_per_batch=2048)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collator)
    ```

    If a batch has more than 8 rows, their number is a multiple of 8, which makes matmuls faster. Only the last batch
    may have a different number.

    The sampler sorts the pairs by the length of their longer side, then by source length minus target length, and
    splits the sorted pairs into batches. Therefore, the batches have the same shapes in every epoch. In each epoch, the
    sampler shuffles pairs of equal lengths among themselves, and it shuffles the order of the batches. Both depend only
    on `seed` and on the epoch, and global random number generators do not change. Each epoch has every pair exactly
    once, over all processes. If the number of batches is not a multiple of the number of processes, the batches with
    the most rows are halved.

    Processes that train together wait for the slowest one in every step. Therefore, the sampler chooses the batches of
    a step, one for each process, so that their numbers of tokens, including padding, are nearly equal. Their sentence
    lengths still differ: a batch with many short pairs can have the same number of tokens as one with a few long pairs.

    Args:
        data (`Dataset`, or two arrays): pairs from [`tokenize_pairs`], with lists of tokens in the columns `input_ids`
            and `labels`, of which only the lengths are read. Instead, you can pass two arrays with the source lengths
            and the target lengths in tokens, each `(pairs,)`.
        tokens_per_batch (`int`): maximum number of tokens in one process's batch, including padding. It applies to the
            sources and to the targets separately.
        seed (`int`): seed for shuffling, at least 0.
        processes, rank (`int`): number of processes that train together, and the rank of this process, starting from 0.
            If you set them, do not pass the `DataLoader` to `accelerator.prepare`, which would divide the batches among
            the processes a second time.

    Raises:
        TypeError: if `data` does not provide lengths, for example because it is an `IterableDataset`, or if one of the
            other arguments is not a whole number.
        ValueError: if a column is missing, if an argument is out of range, if there are fewer pairs than processes, or
            if pairs are empty on one side or longer than `tokens_per_batch`. The message contains the number of these
            pairs and the index of the first one.
    """

    def __init__(
        self,
        data: Dataset | tuple[ArrayLike, ArrayLike],
        tokens_per_batch: int,
        *,
        seed: int = 0,
        processes: int = 1,
        rank: int = 0,
    ) -> None:
        """Sort the pairs by length, and split them into batches, which are the same in all epochs and processes."""
        check_number("tokens_per_batch", tokens_per_batch, 1)
        check_number("seed", seed, 0)
        check_number("processes", processes, 1)
        check_number("rank", rank, 0, processes - 1)
        self.seed = seed
        self.processes = processes
        self.rank = rank
        self.epoch = 0

        pairs = _sort_pairs(data, tokens_per_batch)
        # The pairs' indices in the data, sorted by length, `(pairs,)`.
        self._order = pairs.order
        # Two arrays of bounds divide `_order` into slices: the bounds [0, 3, 5] stand for the slices [0:3] and [3:5].
        # In a slice of the first array, all pairs have the same lengths. Each slice of the second array is a batch.
        self._equal_length_bounds = _find_runs(pairs.source_lengths, pairs.target_lengths)
        self._batch_bounds = _make_batches(pairs, tokens_per_batch, processes)
        # The number of source and target tokens in each batch, including padding, `(batches,)`.
        self._padded_tokens = _count_padded_tokens(pairs, self._batch_bounds)
        self._padding_share = 1 - _count_tokens(pairs) / int(self._padded_tokens.sum())

    @classmethod
    def use_in(
        cls, trainer: Trainer, tokens_per_batch: int, *, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> "TokenBudgetBatchSampler":
        """Make a stock `Trainer` or `Seq2SeqTrainer` train on batches with a token budget.

        The arguments `per_device_train_batch_size`, `train_sampling_strategy` and `dataloader_drop_last` no longer have
        an effect, and `gradient_accumulation_steps` counts token-budget batches. The seed is `data_seed` from the
        Trainer's arguments, or `seed` if `data_seed` is None. At the end of the first epoch, the Trainer logs
        [`padding_share`] under this name. A resumed run has the same batches as an uninterrupted run, even if it
        resumes in the middle of an epoch.

        During training, the Trainer passes `skip_logits=True` to the model, which then computes the loss without
        keeping all logits in memory. The Trainer does not do so if the loss is customized by `compute_loss_func`,
        `label_smoothing_factor` or a subclass's `compute_loss`, because these may read the logits.

        NumPy builds the same batches directly from the dataset's memory, in a tenth of the time, if both conditions
        hold:

        - The training data is a `datasets.Dataset` that has only the columns `input_ids` and `labels` after the Trainer
          has removed the columns that the model does not read.
        - The collator is a `DataCollatorForSeq2Seq` with default settings whose tokenizer pads on the right.

        If the Trainer's `train_dataset` or seed is replaced later, for example in the trials of a hyperparameter
        search, the next training run builds a new sampler, and the returned one is no longer used.

        Args:
            trainer (`Trainer`): a Trainer that has a `train_dataset` and has not trained yet.
            tokens_per_batch (`int`): maximum number of source tokens, and of target tokens, in one process's batch.
            lengths (two arrays, *optional*): source and target lengths in tokens, each `(pairs,)`. They are required if
                `train_dataset` is not a `datasets.Dataset` with the columns `input_ids` and `labels`.

        Returns:
            `TokenBudgetBatchSampler`: the sampler for this process.

        Raises:
            TypeError, ValueError: for the same reasons as the class, or if the Trainer's arguments contradict fixed
                batches. If `train_dataset` is replaced, the next training run may raise the same errors, and it raises
                ValueError if `lengths` were given for the earlier data.
        """
        # This comes first, because it raises the errors. The Trainer is changed only if there are none.
        holder = _SamplerHolder(trainer, tokens_per_batch, lengths)
        # When training starts, get_train_dataloader() calls this method.
        trainer._get_train_sampler = holder.get_sampler  # type: ignore[method-assign]
        # The original must be read before it is replaced. Otherwise `_make_dataloader` would call itself. If `use_in`
        # was called before, the original is the `_make_dataloader` of that call, and the work is done twice, which
        # changes nothing.
        original_get_dataloader = trainer.get_train_dataloader
        trainer.get_train_dataloader = partial(  # type: ignore[method-assign]
            _make_dataloader, trainer, original_get_dataloader
        )
        # If `use_in` was called before, its callback sets the epoch of an earlier sampler, so it is replaced.
        trainer.remove_callback(_SetEpochAndLogPadding)
        trainer.add_callback(_SetEpochAndLogPadding(holder))
        skip_unused_logits(trainer)
        return holder.sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, whose batches the next iteration over the sampler yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch for one process. All processes and epochs have the same number."""
        batch_count = len(self._batch_bounds) - 1
        return batch_count // self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this process's batches for the current epoch, each as a list of pair indices."""
        # All processes compute the same batches, because their generators have the same seed, so each process can pick
        # its share without communication. `rank` must not affect anything that the generator draws.
        generator = np.random.default_rng((self.seed, self.epoch))
        # Both calls draw from the generator. Their order must stay, because a resumed run needs the same batches as
        # before.
        pair_indices = self._shuffle_equal_lengths(generator)
        batches_in_steps = self._shuffle_batches(generator)

        # From each step, this process gets the batch at place `rank`.
        batches_of_process = batches_in_steps[self.rank :: self.processes]
        for batch in batches_of_process:
            begin = self._batch_bounds[batch]
            end = self._batch_bounds[batch + 1]
            yield pair_indices[begin:end].tolist()

    def _shuffle_batches(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices of all batches in random order. Every `processes` consecutive ones form one step."""
        batch_count = len(self._batch_bounds) - 1
        shuffled_batches = generator.permutation(batch_count)
        if self.processes == 1:
            return shuffled_batches
        return _deal_equal_work(shuffled_batches, self._padded_tokens, self.processes, generator)

    def _shuffle_equal_lengths(self, generator: np.random.Generator) -> NDArray[np.unsignedinteger]:
        """Return the pairs' indices in sorted order, with pairs of equal lengths shuffled among themselves."""
        # A copy, because every epoch must begin with the same order.
        shuffled = self._order.copy()
        for begin, end in pairwise(self._equal_length_bounds):
            # The slice is a view, so this changes `shuffled`.
            generator.shuffle(shuffled[begin:end])
        return shuffled

    def padding_share(self) -> float:
        """Return the share of padding among all source and target tokens, from 0 to 1.

        The share covers the batches of all processes, and it is the same in all epochs.
        """
        return self._padding_share


class _SamplerHolder:
    """Stores a Trainer's sampler, and builds a new one if the Trainer's training data or seed has been replaced."""

    def __init__(
        self, trainer: Trainer, tokens_per_batch: int, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> None:
        self.trainer = trainer
        self.tokens_per_batch = tokens_per_batch
        self.lengths = lengths
        # The data from which `sampler` was built.
        self.sampled_data: object = trainer.train_dataset
        # This comes last, because `_make_sampler` reads the attributes above.
        self.sampler = self._make_sampler(trainer.train_dataset)

    def get_sampler(self, train_dataset: object = None) -> TokenBudgetBatchSampler:
        """Return the sampler for the Trainer's current data and seed, and store it in `self.sampler`.

        `train_dataset` is ignored. The Trainer passes a dataset from which it has removed the columns that the model
        does not read, and the lengths may depend on these columns. The Trainer's attribute `train_dataset` has all
        columns.
        """
        current_data = self.trainer.train_dataset
        # `sampled_data` is the data from which `sampler` was built.
        data_was_replaced = current_data is not self.sampled_data
        if data_was_replaced and self.lengths is not None:
            raise InputError(
                "train_dataset was replaced after TokenBudgetBatchSampler.use_in() had got the lengths of the earlier "
                "one; call use_in() again with the lengths of the new one."
            )
        seed_was_replaced = self._current_seed() != self.sampler.seed
        if data_was_replaced or seed_was_replaced:
            # If this raises an error, `sampled_data` stays the same. Therefore, a second training run raises the error
            # again, instead of using the sampler for the earlier data.
            self.sampler = self._make_sampler(current_data)
            self.sampled_data = current_data
        return self.sampler

    def _make_sampler(self, data: Any) -> TokenBudgetBatchSampler:
        """Build the sampler for the given training data.

        Raises ValueError if the Trainer's arguments contradict token-budget batches, or if `self.lengths` were given
        for a different number of pairs.
        """
        _check_arguments(self.trainer)
        # Data whose lengths are given may have any type.
        data_or_lengths = data
        if self.lengths is not None:
            data_or_lengths = self.lengths
        sampler = TokenBudgetBatchSampler(
            data_or_lengths,
            self.tokens_per_batch,
            seed=self._current_seed(),
            processes=self.trainer.args.world_size,
            rank=self.trainer.args.process_index,
        )
        length_count = len(sampler._order)  # The sampler has one index for each pair of lengths.
        if length_count != len(data):
            raise InputError(
                f"{length_count} lengths were given for {len(data)} training pairs; give one source and one target "
                "length for each pair."
            )
        return sampler

    def _current_seed(self) -> int:
        args = self.trainer.args
        if args.data_seed is not None:
            return args.data_seed
        return args.seed


class _SetEpochAndLogPadding(TrainerCallback):
    """A Trainer callback that sets the sampler's epoch, and logs the share of padding after the first epoch.

    The callback sets the epoch because neither the Trainer nor accelerate finds the sampler when a run with several
    processes is resumed.
    """

    def __init__(self, holder: _SamplerHolder) -> None:
        self.holder = holder

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.holder.sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # The share is the same in all epochs, so it is logged only after the first one.
        has_logged = any("padding_share" in entry for entry in state.log_history)
        if not has_logged:
            self.holder.trainer.log({"padding_share": self.holder.sampler.padding_share()})


def _make_dataloader(trainer: Trainer, get_dataloader: Callable[[], DataLoader]) -> DataLoader:
    """Make the Trainer's training data loader. If possible, it builds its batches directly from Arrow's memory.

    accelerate 1.12 does not allow batches of varying sizes if its setting `even_batches` is on, so it would fail with
    this sampler. Evaluation needs the setting, so it is switched off only while the data loader is made.

    Args:
        trainer: the Trainer.
        get_dataloader: the Trainer's `get_train_dataloader` before `use_in` replaced it.
    """
    # The accelerator is read in each call, because each trial of a hyperparameter search creates a new one.
    accelerator = trainer.accelerator
    even_batches = accelerator.even_batches
    accelerator.even_batches = False
    try:
        loader = get_dataloader()
    finally:
        accelerator.even_batches = even_batches
    # This changes `loader` in place: its dataset and its collator are replaced by faster ones that make the same
    # batches. It changes nothing if the dataset has other columns than `input_ids` and `labels`. The Trainer removes
    # such columns in get_dataloader(), so this step must come after it.
    pad_from_arrow(loader)
    return loader


@dataclass(frozen=True)
class _SortedPairs:
    """Pairs sorted by length, as indices and lengths. Each array has the shape `(pairs,)`.

    Args:
        order: the pairs' indices in the original data, in sorted order.
        source_lengths, target_lengths: the lengths in tokens, in sorted order.
    """

    order: NDArray[np.unsignedinteger]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]


def _sort_pairs(data: Dataset | tuple[ArrayLike, ArrayLike], tokens_per_batch: int) -> _SortedPairs:
    """Read and check the pairs' lengths, and sort the pairs so that neighbors have similar lengths.

    A corpus may have hundreds of millions of pairs, so the arrays have small dtypes. Raises ValueError if there are no
    pairs, or if a pair is empty on one side or exceeds the token budget.
    """
    all_source_lengths, all_target_lengths = pair_lengths(data)
    _check_lengths(all_source_lengths, all_target_lengths, tokens_per_batch)
    source_lengths = all_source_lengths.astype(np.int32, copy=False)
    target_lengths = all_target_lengths.astype(np.int32, copy=False)
    order = _sort_by_length(source_lengths, target_lengths)
    smallest_dtype = np.min_scalar_type(len(order))
    return _SortedPairs(
        order=order.astype(smallest_dtype),
        source_lengths=source_lengths[order],
        target_lengths=target_lengths[order],
    )


def _check_lengths(source: NDArray[np.integer], target: NDArray[np.integer], tokens_per_batch: int) -> None:
    """Raise ValueError if there are no pairs, or if a pair is empty on one side or exceeds the token budget."""
    if len(source) == 0:
        raise InputError("the data set is empty; give at least one pair.")
    is_empty = np.minimum(source, target) < 1
    is_too_long = np.maximum(source, target) > tokens_per_batch
    faulty_pairs = np.flatnonzero(is_empty | is_too_long)
    if len(faulty_pairs) > 0:
        first = faulty_pairs[0]
        raise InputError(
            f"{len(faulty_pairs)} of {len(source)} pairs are empty on one side or longer than tokens_per_batch, which "
            f"is {tokens_per_batch}; the first is pair {first} ({source[first]} source, {target[first]} target "
            "tokens). Remove them with filter_pairs() or --max_tokens, split them, or raise tokens_per_batch."
        )


def _sort_by_length(source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the indices that sort pairs by the length of their longer side, then by source minus target length.

    If the longer side's length is even, the differences are sorted in rising order, otherwise in falling order. As a
    result, the last pairs of one length resemble the first pairs of the next length, and a batch that contains both
    needs little padding. The indices have the shape `(pairs,)`.
    """
    longer_side = np.maximum(source, target)
    difference = source - target
    # The mask of odd lengths gets no name, so that its memory is free while the pairs are sorted.
    alternating_difference = np.where(longer_side % 2 == 1, -difference, difference)
    # lexsort sorts by its last key first.
    return np.lexsort((alternating_difference, longer_side))


def _find_runs(*lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Find runs of consecutive pairs with equal lengths.

    Args:
        *lengths: one or more arrays of lengths, each `(pairs,)`, which must all be equal within a run.

    Returns:
        The index at which each run starts, and the total number of pairs, as an array of shape `(runs + 1,)`.
    """
    number_of_pairs = len(lengths[0])
    # For all pairs but the first, (pairs - 1,).
    differs_from_previous = np.logical_or.reduce([side[1:] != side[:-1] for side in lengths])
    later_starts = np.flatnonzero(differs_from_previous) + 1
    return np.concatenate([[0], later_starts, [number_of_pairs]])


def _make_batches(pairs: _SortedPairs, tokens_per_batch: int, processes: int) -> NDArray[np.int64]:
    """Return the bounds of the largest batches that the budget allows.

    Some of them are halved, so that their number is a multiple of `processes`.
    """
    longer_sides = np.maximum(pairs.source_lengths, pairs.target_lengths)
    bounds = _split_into_batches(longer_sides, tokens_per_batch)
    return _halve_until_even(bounds, processes)


def _split_into_batches(longer_side: NDArray[np.int32], tokens_per_batch: int) -> NDArray[np.int64]:
    """Split sorted pairs into the largest batches that the token budget allows.

    Args:
        longer_side: the length of each pair's longer side, in rising order, `(pairs,)`.
        tokens_per_batch: maximum number of source tokens, and of target tokens, in a batch, including padding.

    Returns:
        The index at which each batch starts, and the total number of pairs, as an array of shape `(batches + 1,)`. For
        example, the lengths [1, 1, 1, 2, 3] and a budget of 6 tokens give [0, 3, 5].
    """
    starts_of_closed_batches = []
    # The last batch so far is open: longer pairs may be added to it.
    open_batch_start = 0
    run_bounds = _find_runs(longer_side)
    for run_start, run_end in pairwise(run_bounds.tolist()):
        # All pairs of a run have this length. It is the longest so far, so it decides how many rows fit.
        longest = int(longer_side[run_start])
        rows_of_full_batch = _round_rows(tokens_per_batch // longest)
        # The pairs of the open batch and of the run are split together. All these batches are full and can be closed,
        # except for the last one, which stays open.
        starts = np.arange(open_batch_start, run_end, rows_of_full_batch)
        starts_of_closed_batches.append(starts[:-1])
        open_batch_start = starts[-1]
    number_of_pairs = len(longer_side)
    return np.concatenate([*starts_of_closed_batches, [open_batch_start, number_of_pairs]])


def _round_rows(rows: int) -> int:
    """Round a number of rows down to a multiple of `_ROWS_MULTIPLE`, unless it is smaller than that."""
    if rows < _ROWS_MULTIPLE:
        return rows
    return rows - rows % _ROWS_MULTIPLE


def _halve_until_even(bounds: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Halve the largest batch repeatedly, until the number of batches is a multiple of the number of processes.

    Returns the new bounds, which describe up to `processes - 1` additional batches. Raises ValueError if the largest
    batch has only one row.

    Args:
        bounds: the index at which each batch starts, and the total number of pairs, `(batches + 1,)`.
        processes: number of processes that train together.
    """
    while True:
        rows_of_batches = np.diff(bounds)
        if len(rows_of_batches) % processes == 0:
            return bounds
        if rows_of_batches.max() == 1:
            raise InputError(
                f"{bounds[-1]} pairs, each a batch of its own, cannot be split evenly among {processes} processes; "
                "give more or fewer pairs, or raise tokens_per_batch so that two fit."
            )
        bounds = _halve_largest_batch(bounds)


def _halve_largest_batch(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bounds with one more start, at which the second half of the batch with the most rows begins."""
    rows_of_batches = np.diff(bounds)
    largest = int(rows_of_batches.argmax())
    # The rows are rounded down to a multiple of `_ROWS_MULTIPLE`, so the second half may have more rows.
    rows_of_first_half = _round_rows(rows_of_batches[largest] // 2)
    start_of_second_half = bounds[largest] + rows_of_first_half
    return np.insert(bounds, largest + 1, start_of_second_half)


def _count_tokens(pairs: _SortedPairs) -> int:
    """Count the source and target tokens of all pairs, without padding."""
    return int(pairs.source_lengths.sum(dtype=np.int64) + pairs.target_lengths.sum(dtype=np.int64))


def _count_padded_tokens(pairs: _SortedPairs, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the source and target tokens in each batch, including padding, `(batches,)`.

    Args:
        pairs: the sorted pairs.
        bounds: the index at which each batch starts, and the total number of pairs, `(batches + 1,)`.
    """
    starts = bounds[:-1]
    rows = np.diff(bounds)
    # reduceat() computes the maximum from each start up to the next one. All arrays have shape `(batches,)`.
    longest_sources = np.maximum.reduceat(pairs.source_lengths, starts)
    longest_targets = np.maximum.reduceat(pairs.target_lengths, starts)
    tokens_per_row = np.add(longest_sources, longest_targets, dtype=np.int64)
    return rows * tokens_per_row


def _deal_equal_work(
    batches: NDArray[np.int64], padded_tokens: NDArray[np.int64], processes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Reorder shuffled batches so that all processes have nearly the same number of padded tokens in a step.

    Returns the same indices, `(batches,)`, in which each group of `processes` consecutive batches forms one step.

    Args:
        batches: the shuffled indices of the batches, `(batches,)`. Their number is a multiple of `processes`.
        padded_tokens: the number of tokens in each batch, including padding, by the batch's index, `(batches,)`.
        processes: number of processes that train together.
        generator: the source of randomness, which has the same state in all processes. All must draw the same numbers.
    """
    # Small batches are the last batch of the corpus, and the two halves of each of at most `processes - 1` batches that
    # `_halve_until_even` has halved. They fit into two steps, which they get for themselves, because in a step with a
    # full batch, the processes with small batches would have to wait for it.
    sorted_batches = _sort_by_size(batches, padded_tokens)
    small_batches = sorted_batches[: 2 * processes]
    # These keep the shuffled order. If there are at most two steps, there are no large batches.
    large_batches = batches[~np.isin(batches, small_batches)]

    # Each row of these arrays is one step: `(steps, processes)`.
    steps_of_small_batches = small_batches.reshape(-1, processes)
    steps_of_large_batches = _sort_within_windows(large_batches.reshape(-1, processes), padded_tokens)
    steps = np.concatenate([steps_of_small_batches, steps_of_large_batches])
    # The order of the two draws must stay, because a resumed run needs the same batches as before.
    shuffled_steps = generator.permutation(steps)
    # The batches of a step are sorted by size. Without shuffling them, the last process would always have the largest.
    return generator.permuted(shuffled_steps, axis=1).ravel()


def _sort_within_windows(steps: NDArray[np.int64], padded_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchange batches between nearby steps, so that the batches of each step have nearly equal sizes.

    Args:
        steps: the indices of the batches, `(steps, processes)`. There may be no steps.
        padded_tokens: the size of each batch, which is its number of tokens including padding, `(batches,)`.

    Returns:
        The same indices, `(steps, processes)`. In each window of about `_STEPS_PER_WINDOW` consecutive steps, they are
        sorted by size, so that each step has neighbors in this order.
    """
    processes = steps.shape[1]
    window_count = max(1, round(len(steps) / _STEPS_PER_WINDOW))
    sorted_windows = []
    for window in np.array_split(steps, window_count):
        sorted_batches = _sort_by_size(window.ravel(), padded_tokens)
        sorted_windows.append(sorted_batches.reshape(-1, processes))
    return np.concatenate(sorted_windows)


def _sort_by_size(batches: NDArray[np.int64], padded_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort the indices of some batches by the batches' padded tokens; see [`_deal_equal_work`] for the arguments."""
    order = np.argsort(padded_tokens[batches], kind="stable")
    return batches[order]


def _check_arguments(trainer: Trainer) -> None:
    """Raise ValueError if a Trainer's arguments contradict token-budget batches."""
    if trainer.args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size contradicts batches by tokens, which have a size; give a smaller tokens_per_batch."
        )
    if trainer.accelerator.split_batches or trainer.accelerator.dispatch_batches:
        raise InputError(
            "accelerator_config with split or dispatched batches contradicts batches by tokens, which are fixed; leave "
            "it out."
        )
    # With tensor, context or sequence parallelism, several processes must read the same batch.
    processes_per_batch = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
    if processes_per_batch > 1:
        raise InputError(
            "tensor, context or sequence parallelism contradicts batches by tokens, which differ between processes; "
            "use DDP or FSDP."
        )
