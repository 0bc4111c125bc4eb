"""Batches of pairs of near-equal lengths, bounded by tokens instead of sentences (section 5.1 of the paper)."""

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

# With several processes, batches of equal work are chosen among the batches of this many steps. A larger window makes
# the work more equal, but it also makes the lengths within a step more alike, so steps become less random. With 32
# steps, the slowest of 8 processes has less than 1 % more padded tokens than the mean. If batches were dealt at random,
# it would have 6 % more at 25,000 tokens per batch, and 10 % more at 3,125.
_STEPS_PER_WINDOW = 32


# The base class tells the Trainer that this sampler yields whole batches, different ones in each process.
class TokenBudgetBatchSampler(BatchRebalanceSampler):
    """Sample batches of pairs of near-equal lengths, with a token budget for each side that includes padding.

    In every batch, rows x longest source and rows x longest target are at most `tokens_per_batch`. The paper's batches
    have about 25,000 source and 25,000 target tokens (section 5.1); its authors' code and fairseq use the same budget.

    With a stock `Seq2SeqTrainer`, add one line before `trainer.train()`:

    ```python
    TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=2048)
    ```

    With a `DataLoader` of your own, call `set_epoch` before each epoch:

    ```python
    sampler = TokenBudgetBatchSampler(data, tokens_per_batch=2048)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collator)
    ```

    The number of rows of a batch with more than 8 rows is a multiple of 8, which makes matmuls faster; only the last
    batch may differ.

    The sampler sorts pairs by their longer side, then by source minus target, and splits that order into batches, so
    every epoch has batches of the same shapes. An epoch shuffles pairs of equal lengths among themselves, and it
    shuffles the order of the batches. Both depend on `seed` and the epoch only, and global random number generators do
    not change. Each epoch has every pair exactly once, over all processes. If the number of batches is not a multiple
    of the number of processes, the batches with the most rows are halved.

    Processes that train together wait for the slowest one in every step. Therefore, the batches of a step, one for each
    process, are chosen to have nearly equal numbers of padded tokens. Their lengths still differ, because a batch of
    many short pairs has as many tokens as a batch of a few long pairs.

    Args:
        data (`Dataset`, or two arrays): tokenized pairs of [`tokenize_pairs`], with lists of tokens in the columns
            `input_ids` and `labels`, of which only the lengths are read; or source and target lengths in tokens, each
            `(pairs,)`.
        tokens_per_batch (`int`): maximum number of tokens of one process's batch on each side, padding included.
        seed (`int`): seed of the shuffle, at least 0.
        processes, rank (`int`): number of processes that train together, and the rank of this one, from 0. Do not pass
            a `DataLoader` with such batches to `accelerator.prepare`, which would divide them among the processes a
            second time.

    Raises:
        TypeError: if `data` has no lengths, as an `IterableDataset` has none, or if another argument is not a whole
            number.
        ValueError: if a column is missing, if an argument is out of range, if there are fewer pairs than processes, or
            if pairs are empty on one side or longer than `tokens_per_batch`. The message counts these pairs and names
            the first.
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
        check_number("tokens_per_batch", tokens_per_batch, 1)
        check_number("seed", seed, 0)
        check_number("processes", processes, 1)
        check_number("rank", rank, 0, processes - 1)
        self.seed = seed
        self.processes = processes
        self.rank = rank
        self.epoch = 0

        pairs = _sort_pairs(data, tokens_per_batch)
        self._order = pairs.order
        self._bounds_of_equal_lengths = _find_runs(pairs.source_lengths, pairs.target_lengths)
        longer_sides = np.maximum(pairs.source_lengths, pairs.target_lengths)
        self._bounds = _halve_until_even(_split_into_batches(longer_sides, tokens_per_batch), processes)

        longest_sources = np.maximum.reduceat(pairs.source_lengths, self._bounds[:-1])
        longest_targets = np.maximum.reduceat(pairs.target_lengths, self._bounds[:-1])
        longest_in_both = np.sum([longest_sources, longest_targets], axis=0, dtype=np.int64)
        # The tokens of each batch in both sides together, padding included, `(batches,)`.
        self._padded_tokens = np.diff(self._bounds) * longest_in_both
        token_count = pairs.source_lengths.sum(dtype=np.int64) + pairs.target_lengths.sum(dtype=np.int64)
        self._padding_share = 1 - int(token_count) / int(self._padded_tokens.sum())

    @classmethod
    def use_in(
        cls, trainer: Trainer, tokens_per_batch: int, *, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> "TokenBudgetBatchSampler":
        """Make a stock `Trainer` or `Seq2SeqTrainer` train on token-budget batches.

        `per_device_train_batch_size`, `train_sampling_strategy` and `dataloader_drop_last` lose their effect, and
        `gradient_accumulation_steps` counts token-budget batches. The seed is `data_seed` of the Trainer's arguments,
        or `seed` if `data_seed` is None. At the end of its first epoch, the Trainer logs [`padding_share`] under this
        name. A resumed run has the batches of an uninterrupted run, even if it resumes in the middle of an epoch.

        The Trainer also passes `skip_logits=True` to the model in training, which then computes the loss without all
        logits in memory. It does not do so if the loss is customized by `compute_loss_func`, `label_smoothing_factor`
        or a `compute_loss` of a subclass, because these may read the logits.

        NumPy makes the batches directly from the dataset's memory, which takes a tenth of the time and gives the same
        batches bit by bit, if both conditions hold:

        - The training data are a `datasets.Dataset` that has only the columns `input_ids` and `labels` after the
          Trainer has removed those that the model does not read.
        - The collator is a `DataCollatorForSeq2Seq` with default settings whose tokenizer pads on the right.

        All other data and collators are used as they are.

        If the Trainer's `train_dataset` or seed is replaced later, as in the trials of a hyperparameter search, the
        next training builds a new sampler. The sampler that this call returned is then no longer used.

        Args:
            trainer (`Trainer`): a Trainer that has its `train_dataset` and has not trained yet.
            tokens_per_batch: see the class.
            lengths (two arrays, *optional*): source and target lengths in tokens, each `(pairs,)`; required if
                `train_dataset` is not a `datasets.Dataset` with the columns `input_ids` and `labels`.

        Returns:
            `TokenBudgetBatchSampler`: the sampler of this process.

        Raises:
            TypeError, ValueError: see the class. ValueError also if arguments of the Trainer contradict fixed batches.
                If `train_dataset` is replaced, the next training raises the same errors, and ValueError if `lengths`
                were given for the earlier data.
        """
        holder = _SamplerHolder(trainer, tokens_per_batch, lengths)
        trainer._get_train_sampler = holder.get_sampler  # type: ignore[method-assign]
        trainer.get_train_dataloader = partial(  # type: ignore[method-assign]
            _make_dataloader, trainer, trainer.get_train_dataloader
        )
        # A second call replaces the callback of the first.
        trainer.remove_callback(_SetEpochAndLogPadding)
        trainer.add_callback(_SetEpochAndLogPadding(holder))
        skip_unused_logits(trainer)
        return holder.sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of one process in an epoch, which is equal in all processes and epochs."""
        return (len(self._bounds) - 1) // self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of this process in this epoch, each a list of indices of pairs."""
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._order.copy()
        for begin, end in pairwise(self._bounds_of_equal_lengths):
            generator.shuffle(order[begin:end])
        batches = generator.permutation(len(self._bounds) - 1)
        if self.processes > 1:
            batches = _deal_equal_work(batches, self._padded_tokens, self.processes, generator)
        for batch in batches[self.rank :: self.processes]:
            begin = self._bounds[batch]
            end = self._bounds[batch + 1]
            yield order[begin:end].tolist()

    def padding_share(self) -> float:
        """Return the share of padding among the tokens of both sides, from 0 to 1.

        It counts the batches of all processes, and is equal in all epochs.
        """
        return self._padding_share


class _SamplerHolder:
    """The sampler of a Trainer, which is built anew if the Trainer's training data or seed have been replaced."""

    def __init__(
        self, trainer: Trainer, tokens_per_batch: int, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> None:
        self.trainer = trainer
        self.tokens_per_batch = tokens_per_batch
        self.lengths = lengths
        self.data: object = trainer.train_dataset
        self.sampler = self._make_sampler(trainer.train_dataset)

    def get_sampler(self, train_dataset: object = None) -> TokenBudgetBatchSampler:
        """Return the sampler for the Trainer's present data and seed.

        `train_dataset` is not read: the Trainer passes its data without the columns that the model does not read, and
        those may contain the lengths. The Trainer's attribute has all columns.
        """
        data = self.trainer.train_dataset
        has_other_data = data is not self.data
        if has_other_data and self.lengths is not None:
            raise InputError(
                "train_dataset was replaced after TokenBudgetBatchSampler.use_in() had got the lengths of the earlier "
                "one; call use_in() again with the lengths of the new one."
            )
        if has_other_data or self.sampler.seed != self._seed():
            # The data are replaced last. If this raises, a second training must raise again, and must not use the
            # sampler of the earlier data.
            self.sampler = self._make_sampler(data)
            self.data = data
        return self.sampler

    def _make_sampler(self, data: Any) -> TokenBudgetBatchSampler:
        """Build the sampler for training data of the Trainer, which may be of any type if `lengths` were given."""
        _check_arguments(self.trainer)
        sampler = TokenBudgetBatchSampler(
            data if self.lengths is None else self.lengths,
            self.tokens_per_batch,
            seed=self._seed(),
            processes=self.trainer.args.world_size,
            rank=self.trainer.args.process_index,
        )
        length_count = len(sampler._order)
        if length_count != len(data):
            raise InputError(
                f"{length_count} lengths were given for {len(data)} training pairs; give one source and one target "
                "length for each pair."
            )
        return sampler

    def _seed(self) -> int:
        args = self.trainer.args
        if args.data_seed is not None:
            return args.data_seed
        return args.seed


class _SetEpochAndLogPadding(TrainerCallback):
    """A callback that sets the sampler's epoch, and logs the share of padding once.

    The epoch is set here, because after a resume in several processes neither the Trainer nor accelerate finds the
    sampler.
    """

    def __init__(self, holder: _SamplerHolder) -> None:
        self.holder = holder

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.holder.sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # The share is the same in all epochs, so it is logged after the first one only.
        has_logged = any("padding_share" in entry for entry in state.log_history)
        if not has_logged:
            self.holder.trainer.log({"padding_share": self.holder.sampler.padding_share()})


def _make_dataloader(trainer: Trainer, get_dataloader: Callable[[], DataLoader]) -> DataLoader:
    """Make the Trainer's training dataloader, and let it pad from Arrow's memory if its batches stay the same.

    accelerate 1.12 fails for this sampler with its setting `even_batches`. The setting is switched off here only,
    because evaluation needs it.

    Args:
        trainer: the Trainer.
        get_dataloader: the Trainer's own `get_train_dataloader`.
    """
    # The accelerator is looked up in each call, because each trial of a hyperparameter search makes a new one.
    accelerator = trainer.accelerator
    even_batches = accelerator.even_batches
    accelerator.even_batches = False
    try:
        loader = get_dataloader()
    finally:
        accelerator.even_batches = even_batches
    # The Trainer has now removed the columns that the model does not read, on which the condition depends.
    pad_from_arrow(loader)
    return loader


@dataclass(frozen=True)
class _SortedPairs:
    """The lengths of pairs in sorted order, each array of shape `(pairs,)`.

    Args:
        order: the indices of the pairs in the data, in sorted order.
        source_lengths, target_lengths: the lengths in tokens, in sorted order.
    """

    order: NDArray[np.unsignedinteger]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]


def _sort_pairs(data: Dataset | tuple[ArrayLike, ArrayLike], tokens_per_batch: int) -> _SortedPairs:
    """Read and check the lengths of pairs, and sort them so that neighbours have similar lengths.

    A corpus may have hundreds of millions of pairs, so the arrays have few bits per pair.
    """
    all_source_lengths, all_target_lengths = pair_lengths(data)
    _check_lengths(all_source_lengths, all_target_lengths, tokens_per_batch)
    source_lengths = all_source_lengths.astype(np.int32, copy=False)
    target_lengths = all_target_lengths.astype(np.int32, copy=False)
    order = _sort_by_length(source_lengths, target_lengths)
    smallest_dtype = np.min_scalar_type(len(order))
    return _SortedPairs(order.astype(smallest_dtype), source_lengths[order], target_lengths[order])


def _check_lengths(source: NDArray[np.integer], target: NDArray[np.integer], tokens_per_batch: int) -> None:
    """Raise ValueError if there are no pairs, or if a pair is empty on one side or longer than a batch."""
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
    """Return the indices that sort pairs by their longer side, then by source minus target, `(pairs,)`.

    The difference rises where the longer side is even and falls where it is odd. So the last pairs of one length are
    like the first pairs of the next length, and a batch that has both needs little padding.
    """
    longer_side = np.maximum(source, target)
    difference = source - target
    alternating_difference = np.where(longer_side % 2, -difference, difference)
    # lexsort sorts by its last key first.
    return np.lexsort((alternating_difference, longer_side))


def _find_runs(*lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Find runs of consecutive pairs with equal lengths.

    Args:
        *lengths: the lengths of one or more sides, each `(pairs,)`.

    Returns:
        The index at which each run starts, and the total number of pairs, as an array of shape `(runs + 1,)`.
    """
    differs_from_previous = np.logical_or.reduce([side[1:] != side[:-1] for side in lengths])
    starts = np.flatnonzero(differs_from_previous) + 1
    return np.concatenate([[0], starts, [len(lengths[0])]])


def _split_into_batches(longer_side: NDArray[np.int32], tokens_per_batch: int) -> NDArray[np.int64]:
    """Split sorted pairs into batches that are as large as the token budget allows.

    Args:
        longer_side: the length of the longer side of each pair, in rising order, `(pairs,)`.
        tokens_per_batch: maximum number of tokens of a batch on each side, padding included.

    Returns:
        The index at which each batch starts, and the total number of pairs, as an array of shape `(batches + 1,)`.
    """
    starts_of_batches = []
    # The start of a batch that is not full yet, because longer pairs may still be added to it.
    open_batch = 0
    for run_start, run_end in pairwise(_find_runs(longer_side).tolist()):
        rows = tokens_per_batch // int(longer_side[run_start])
        if rows > _ROWS_MULTIPLE:
            rows -= rows % _ROWS_MULTIPLE
        # The pairs of this length, together with those of the open batch, fill batches of `rows` rows.
        starts = np.arange(open_batch, run_end, rows)
        starts_of_batches.append(starts[:-1])
        open_batch = starts[-1]
    return np.concatenate([*starts_of_batches, [open_batch, len(longer_side)]])


def _halve_until_even(bounds: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Halve the batch with the most rows until the number of batches is a multiple of the number of processes.

    Args:
        bounds: the index at which each batch starts, and the total number of pairs, `(batches + 1,)`.
        processes: number of processes that train together.

    Returns:
        The new bounds, with at most `processes - 1` batches more.

    Raises:
        ValueError: if the largest batch has only one row.
    """
    while (len(bounds) - 1) % processes:
        rows_of_batches = np.diff(bounds)
        largest = int(rows_of_batches.argmax())
        if rows_of_batches[largest] == 1:
            raise InputError(
                f"{bounds[-1]} pairs, each a batch of its own, cannot be split evenly among {processes} processes; "
                "give more or fewer pairs, or raise tokens_per_batch so that two fit."
            )
        half = rows_of_batches[largest] // 2
        if half > _ROWS_MULTIPLE:
            half -= half % _ROWS_MULTIPLE
        bounds = np.insert(bounds, largest + 1, bounds[largest] + half)
    return bounds


def _deal_equal_work(
    batches: NDArray[np.int64], work: NDArray[np.int64], processes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Reorder shuffled batches so that the batches of a step, one for each process, have nearly equal work.

    Args:
        batches: the shuffled indices of the batches, `(batches,)`; a multiple of `processes`.
        work: the padded tokens of each batch, by its index, `(batches,)`.
        processes: number of processes that train together.
        generator: draws the order of the steps, and the process of each batch in a step.

    Returns:
        The same indices, `(batches,)`; each `processes` consecutive batches are one step.
    """
    # At most 2 * processes - 1 batches have much less work than others: the halves of those that were halved, and the
    # last batch of the corpus. They get steps of their own, because one full batch among them would make all wait.
    smallest_batches = batches[np.argsort(work[batches], kind="stable")][: 2 * processes]
    dealt_steps = [smallest_batches.reshape(-1, processes)]

    # All other steps are sorted by work within windows, so that a step has neighbours of its window.
    other_steps = batches[~np.isin(batches, smallest_batches)].reshape(-1, processes)
    window_count = max(1, round(len(other_steps) / _STEPS_PER_WINDOW))
    for window in np.array_split(other_steps, window_count):
        batches_of_window = window.ravel()
        order_by_work = np.argsort(work[batches_of_window], kind="stable")
        dealt_steps.append(batches_of_window[order_by_work].reshape(-1, processes))

    steps = generator.permutation(np.concatenate(dealt_steps))
    # The batches of a step are sorted by work. Without this, the last process would always have the most work.
    return generator.permuted(steps, axis=1).ravel()


def _check_arguments(trainer: Trainer) -> None:
    """Raise ValueError if arguments of a Trainer contradict token-budget batches."""
    if trainer.args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size contradicts batches by tokens, which have a size; give a smaller tokens_per_batch."
        )
    if trainer.accelerator.split_batches or trainer.accelerator.dispatch_batches:
        raise InputError(
            "accelerator_config with split or dispatched batches contradicts batches by tokens, which are fixed; leave "
            "it out."
        )
    # With these, several processes must read the same batch.
    processes_per_batch = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
    if processes_per_batch > 1:
        raise InputError(
            "tensor, context or sequence parallelism contradicts batches by tokens, which differ between processes; "
            "use DDP or FSDP."
        )
