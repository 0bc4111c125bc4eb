"""Batches of pairs of near-equal lengths, bounded by tokens instead of sentences (section 5.1 of the paper)."""

from collections.abc import Callable, Iterator
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


# Matmuls are faster where the number of rows is a multiple of this.
_ROWS_MULTIPLE = 8

# With several processes, batches of equal work are chosen among those of this many steps. More steps make the work more
# equal, and the lengths within a step, too. With 32 steps the slowest of 8 processes has less than 1 % more padded
# tokens than the mean; if batches are dealt at random, it has 6 % more at 25,000 tokens per batch, and 10 % at 3,125.
_STEPS_PER_WINDOW = 32


# The base class makes the Trainer take whole batches from this sampler, and leave each process its own.
class TokenBudgetBatchSampler(BatchRebalanceSampler):
    """Batches of pairs of near-equal lengths with a token budget for each side, padding included.

    In every batch, rows x longest source and rows x longest target are at most `tokens_per_batch`. The paper's batches
    have about 25,000 source and 25,000 target tokens (section 5.1); its authors' code and fairseq use the same budget.

    With stock `Seq2SeqTrainer`, one line before `trainer.train()`:

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
    every epoch has batches of the same shapes. An epoch shuffles pairs of equal lengths among themselves, and the
    order of the batches. Both depend on `seed` and the epoch only, and leave global random number generators alone.
    Each epoch has every pair exactly once, over all processes. Where the number of batches is not a multiple of the
    number of processes, the batches with the most rows are halved.

    Processes that train together wait for the slowest one in every step. So the batches of a step, one for each
    process, are chosen to have nearly equal numbers of padded tokens. Their lengths still differ, because a batch of
    many short pairs has as many tokens as a batch of a few long ones.

    Args:
        data (`Dataset`, or two arrays): tokenized pairs of [`tokenize_pairs`], with lists of tokens in the columns
            `input_ids` and `labels`, of which only the lengths are read; or source and target lengths in tokens, each
            `(pairs,)`.
        tokens_per_batch (`int`): most tokens of one process's batch on each side, padding included.
        seed (`int`): of the shuffle, at least 0.
        processes, rank (`int`): number of processes that train together, and the rank of this one, from 0. Do not pass
            a `DataLoader` with such batches to `accelerator.prepare`, which would divide them among the processes a
            second time.

    Raises:
        TypeError: if `data` has no lengths, such as an `IterableDataset`, or another argument is not a whole number.
        ValueError: if a column is missing, an argument is out of range, there are fewer pairs than processes, or pairs
            are empty on one side or longer than `tokens_per_batch`; the message counts these and names the first.
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
        self.seed, self.processes, self.rank = seed, processes, rank
        self.epoch = 0
        source, target = pair_lengths(data)
        _check_lengths(source, target, tokens_per_batch)
        source, target = source.astype(np.int32, copy=False), target.astype(np.int32, copy=False)
        order = _sort(source, target)
        source, target = source[order], target[order]
        self._order = order.astype(np.min_scalar_type(len(order)))
        self._equal = _runs(source, target)
        self._bounds = _halve_until_even(_batch_bounds(np.maximum(source, target), tokens_per_batch), processes)
        longest = [np.maximum.reduceat(side, self._bounds[:-1]) for side in (source, target)]
        # Of each batch, in both sides together.
        self._padded_tokens = np.diff(self._bounds) * np.sum(longest, axis=0, dtype=np.int64)
        tokens = int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64))
        self._padding_share = 1 - tokens / int(self._padded_tokens.sum())

    @classmethod
    def use_in(
        cls, trainer: Trainer, tokens_per_batch: int, *, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> "TokenBudgetBatchSampler":
        """Make a stock `Trainer` or `Seq2SeqTrainer` train on token-budget batches.

        `per_device_train_batch_size`, `train_sampling_strategy` and `dataloader_drop_last` lose their effect.
        `gradient_accumulation_steps` counts batches. The seed is `data_seed` of the arguments, or `seed` if that is
        None. At the end of its first epoch the Trainer logs [`padding_share`] under that name. A resumed run, in the
        middle of an epoch too, has the batches of an uninterrupted one.

        The Trainer also passes `skip_logits=True` to the model in training, which then computes the loss without all
        logits in memory. It does not if the loss is customized, by `compute_loss_func`, `label_smoothing_factor` or a
        `compute_loss` of a subclass, because those may read the logits.

        If the training data are a `datasets.Dataset` with the columns `input_ids` and `labels` alone, after the Trainer
        has removed those that the model does not read, and the collator is a `DataCollatorForSeq2Seq` with default
        settings whose tokenizer pads on the right, NumPy makes the batches straight from the dataset's memory. They are
        the same, bit by bit, and take a tenth of the time. All other data and collators are used as they are.

        If the Trainer gets another `train_dataset` or seed later, as in the trials of a hyperparameter search, the next
        training builds a new sampler for it. The sampler that this call returned is then no longer used.

        Args:
            trainer (`Trainer`): with its `train_dataset`, before `trainer.train()`.
            tokens_per_batch: see the class.
            lengths (two arrays, *optional*): source and target lengths in tokens, each `(pairs,)`; required if
                `train_dataset` is not a `datasets.Dataset` with the columns `input_ids` and `labels`.

        Returns:
            `TokenBudgetBatchSampler`: the sampler of this process.

        Raises:
            TypeError, ValueError: see the class; and if arguments of the Trainer contradict fixed batches. The training
                raises the same errors for another `train_dataset`, and ValueError if `lengths` were given for the
                earlier one.
        """
        batches = _SamplerOfTrainer(trainer, tokens_per_batch, lengths)
        trainer._get_train_sampler = batches.get_sampler  # type: ignore[method-assign]
        trainer.get_train_dataloader = partial(  # type: ignore[method-assign]
            _make_dataloader, trainer, trainer.get_train_dataloader
        )
        trainer.remove_callback(_SetEpochAndLogPadding)
        trainer.add_callback(_SetEpochAndLogPadding(batches))
        skip_unused_logits(trainer)
        return batches.sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of batches of one process in an epoch, equal in all processes and epochs."""
        return (len(self._bounds) - 1) // self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of this process in this epoch, each a list of indices of pairs."""
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._order.copy()
        for begin, end in pairwise(self._equal):
            generator.shuffle(order[begin:end])
        numbers = generator.permutation(len(self._bounds) - 1)
        if self.processes > 1:
            numbers = _deal_equal_work(numbers, self._padded_tokens, self.processes, generator)
        for number in numbers[self.rank :: self.processes]:
            yield order[self._bounds[number] : self._bounds[number + 1]].tolist()

    def padding_share(self) -> float:
        """Share of padding among the tokens of both sides, over all processes; in [0, 1), equal in all epochs."""
        return self._padding_share


class _SamplerOfTrainer:
    """Holds a Trainer's sampler, and replaces it when the Trainer has got other training data or another seed."""

    def __init__(
        self, trainer: Trainer, tokens_per_batch: int, lengths: tuple[ArrayLike, ArrayLike] | None = None
    ) -> None:
        self.trainer = trainer
        self.tokens_per_batch = tokens_per_batch
        self.lengths = lengths
        self.data: object = trainer.train_dataset
        self.sampler = self._make_sampler(trainer.train_dataset)

    def get_sampler(self, train_dataset: object = None) -> TokenBudgetBatchSampler:
        """Return the sampler of the Trainer's present data and seed.

        The Trainer passes its data without unused columns, which may be the columns with the lengths, so the data are
        read from the Trainer itself.
        """
        data = self.trainer.train_dataset
        has_other_data = data is not self.data
        if has_other_data and self.lengths is not None:
            raise InputError(
                "train_dataset was replaced after TokenBudgetBatchSampler.use_in() had got the lengths of the earlier "
                "one; call use_in() again with the lengths of the new one."
            )
        if has_other_data or self.sampler.seed != self._seed():
            # Made first: if this raises, a second training must raise again, and not use the sampler of other data.
            sampler = self._make_sampler(data)
            self.sampler = sampler
            self.data = data
        return self.sampler

    def _make_sampler(self, data: Any) -> TokenBudgetBatchSampler:
        _check_arguments(self.trainer)
        sampler = TokenBudgetBatchSampler(
            data if self.lengths is None else self.lengths,
            self.tokens_per_batch,
            seed=self._seed(),
            processes=self.trainer.args.world_size,
            rank=self.trainer.args.process_index,
        )
        if len(sampler._order) != len(data):
            raise InputError(
                f"{len(sampler._order)} lengths were given for {len(data)} training pairs; give one source and one "
                "target length for each pair."
            )
        return sampler

    def _seed(self) -> int:
        args = self.trainer.args
        return args.seed if args.data_seed is None else args.data_seed


class _SetEpochAndLogPadding(TrainerCallback):
    """Sets the sampler's epoch, and logs the share of padding.

    After a resume in several processes, neither the Trainer nor accelerate finds the sampler to set its epoch.
    """

    def __init__(self, batches: _SamplerOfTrainer) -> None:
        self.batches = batches

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.batches.sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not any("padding_share" in entry for entry in state.log_history):  # It is the same in all epochs.
            self.batches.trainer.log({"padding_share": self.batches.sampler.padding_share()})


def _make_dataloader(trainer: Trainer, get_dataloader: Callable[[], DataLoader]) -> DataLoader:
    """Make the Trainer's training dataloader, which pads from Arrow's memory if its batches stay the same.

    It is made without `even_batches`, for which accelerate 1.12 fails here. Evaluation needs that setting.
    """
    # Read now, because each trial of a hyperparameter search makes another accelerator.
    accelerator = trainer.accelerator
    even_batches = accelerator.even_batches
    accelerator.even_batches = False
    try:
        loader = get_dataloader()
    finally:
        accelerator.even_batches = even_batches
    # Only now, because the Trainer itself removes columns that the model does not read.
    pad_from_arrow(loader)
    return loader


def _check_lengths(source: NDArray[Any], target: NDArray[Any], limit: int) -> None:
    if len(source) == 0:
        raise InputError("the data set is empty; give at least one pair.")
    faulty = np.flatnonzero((np.minimum(source, target) < 1) | (np.maximum(source, target) > limit))
    if len(faulty):
        first = faulty[0]
        raise InputError(
            f"{len(faulty)} of {len(source)} pairs are empty on one side or longer than tokens_per_batch, which is "
            f"{limit}; the first is pair {first} ({source[first]} source, {target[first]} target tokens). Remove them "
            "with filter_pairs() or --max_tokens, split them, or raise tokens_per_batch."
        )


def _sort(source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int64]:
    """Indices that sort pairs by their longer side, then by source minus target, `(pairs,)`.

    The difference rises where the longer side is even and falls where it is odd, so that neighbours are alike.
    """
    longest = np.maximum(source, target)
    difference = source - target
    return np.lexsort((np.where(longest % 2, -difference, difference), longest))


def _runs(*lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Bounds of the runs of neighbours with equal lengths, `(runs + 1,)`; each of `lengths` is `(pairs,)`."""
    differs = np.logical_or.reduce([side[1:] != side[:-1] for side in lengths])
    return np.concatenate([[0], np.flatnonzero(differs) + 1, [len(lengths[0])]])


def _batch_bounds(longest: NDArray[np.int32], tokens_per_batch: int) -> NDArray[np.int64]:
    """First pair of each batch, and the end of the last, `(batches + 1,)`; `longest`, `(pairs,)`, is sorted."""
    begins, begin = [], 0
    for level, end in pairwise(_runs(longest).tolist()):
        rows = tokens_per_batch // int(longest[level])
        if rows > _ROWS_MULTIPLE:
            rows -= rows % _ROWS_MULTIPLE
        starts = np.arange(begin, end, rows)
        begins.append(starts[:-1])
        begin = starts[-1]
    return np.concatenate([*begins, [begin, len(longest)]])


def _halve_until_even(bounds: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Halve the batch with most rows until every process has the same number of batches."""
    while (len(bounds) - 1) % processes:
        largest = int(np.diff(bounds).argmax())
        if bounds[largest + 1] - bounds[largest] == 1:
            raise InputError(
                f"{bounds[-1]} pairs, each a batch of its own, cannot be split evenly among {processes} processes; "
                "give more or fewer pairs, or raise tokens_per_batch so that two fit."
            )
        half = (bounds[largest + 1] - bounds[largest]) // 2
        if half > _ROWS_MULTIPLE:
            half -= half % _ROWS_MULTIPLE
        bounds = np.insert(bounds, largest + 1, bounds[largest] + half)
    return bounds


def _deal_equal_work(
    numbers: NDArray[np.int64], work: NDArray[np.int64], processes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Reorder shuffled batches so that the batches of a step, one for each process, have nearly equal work.

    Args:
        numbers (`(batches,)`): the shuffled numbers of the batches, as many as a multiple of `processes`.
        work (`(batches,)`): the padded tokens of each batch, by its number.
        processes (`int`): processes that train together.
        generator (`np.random.Generator`): draws the order of the steps, and the process of each batch in a step.

    Returns:
        The same numbers, `(batches,)`; each `processes` of them make a step.
    """
    by_work = numbers[np.argsort(work[numbers], kind="stable")]
    # At most 2 * processes - 1 batches have much less work than others: the halves of those that were halved, and the
    # last batch of the corpus. They get steps of their own, because one full batch among them would make all wait.
    smallest = by_work[: 2 * processes]
    dealt_steps = [smallest.reshape(-1, processes)]
    steps_of_others = numbers[~np.isin(numbers, smallest)].reshape(-1, processes)
    windows = max(1, round(len(steps_of_others) / _STEPS_PER_WINDOW))
    for window in np.array_split(steps_of_others, windows):
        batches = window.ravel()
        batches = batches[np.argsort(work[batches], kind="stable")]
        dealt_steps.append(batches.reshape(-1, processes))
    steps = generator.permutation(np.concatenate(dealt_steps))
    # Without this, the last process would always have the most work.
    return generator.permuted(steps, axis=1).ravel()


def _check_arguments(trainer: Trainer) -> None:
    splits = trainer.accelerator.split_batches or trainer.accelerator.dispatch_batches
    shares = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1
    for name, is_given, why in (
        ("auto_find_batch_size", trainer.args.auto_find_batch_size, "have a size; give a smaller tokens_per_batch"),
        ("accelerator_config with split or dispatched batches", splits, "are fixed; leave it out"),
        ("tensor, context or sequence parallelism", shares, "differ between processes; use DDP or FSDP"),
    ):
        if is_given:
            raise InputError(f"{name} contradicts batches by tokens, which {why}.")
