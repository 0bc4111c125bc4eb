"""Batches of pairs of near-equal lengths, bounded by tokens instead of sentences (section 5.1 of the paper)."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from accelerate import Accelerator
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import BatchRebalanceSampler
from transformers.trainer_utils import has_length

from ..checks import check_number
from .lengths import count_and_lengths


# A key of 64 bits sorts a pair: 16 bits for its longer side, 16 for its place among those as long, 32 for its index.
# These parts are read where they lie, from the lowest on, because copies of them for millions of pairs take memory.
_LONGEST_POSSIBLE = 2**15 - 1
_FAULTS_TO_NAME = 5
# Matrix products of so many rows, and multiples of it, are faster than others.
_ROWS_MULTIPLE = 8


# The Trainer takes batches instead of sentences from this class only, and leaves sharing them out to it.
class TokenBudgetBatchSampler(BatchRebalanceSampler):
    """Batches of pairs of near-equal lengths that have at most so many tokens on each side, padding included.

    In every batch, rows x longest source and rows x longest target are at most `tokens_per_batch`. The paper's batches
    have about 25,000 source and 25,000 target tokens (section 5.1); its authors' code and fairseq bound them like this.

    With stock `Seq2SeqTrainer`, one line before `trainer.train()`:

    ```python
    TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=2048)
    ```

    With a `DataLoader`, which has no epochs of its own, `set_epoch` is the caller's:

    ```python
    sampler = TokenBudgetBatchSampler(data, tokens_per_batch=2048)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collator)
    ```

    A batch of more than 8 rows has a multiple of 8, which makes matrix products faster, but for the last one.

    Pairs are sorted by their longer side, then by source minus target. Batches are cut from that order, so all epochs
    have batches of the same shapes. What changes with the epoch is which of the pairs with equal lengths are in which
    batch, and the order of the batches. Both depend on `seed` and the epoch alone, and no global random numbers are
    drawn. An epoch has every pair exactly once, over all processes; where the number of batches is no multiple of
    that of processes, the batches with most rows are halved.

    Memory for a large corpus, where lengths repeat: 14 bytes a pair while batches are cut, 8 afterwards, and some for
    each batch.

    Args:
        data (`Dataset`, or two arrays): tokenised pairs, as of [`tokenize_pairs`], with lists of tokens in the columns
            `input_ids` and `labels`, of which only the lengths are read; or these: source and target lengths in tokens,
            each `(pairs,)`.
        tokens_per_batch (`int`): of a batch of one process, on each side, padding included.
        seed (`int`): of the shuffle, at least 0.
        largest_first (`bool`): begin the first epoch with the batches that have most tokens, one for each process, so
            that the memory that training needs shows at once.
        processes, rank (`int`): number of processes that train together, and which of them this is.

    Raises:
        TypeError: if `data` has no lengths to ask for, such as an `IterableDataset`, or a number is none.
        ValueError: if a column is missing, an argument is out of range, there are fewer pairs than processes, or pairs
            are empty on one side or longer than the budget (or than 32,767 tokens): they are counted, and the first
            ones named.
    """

    def __init__(
        self,
        data: Dataset | tuple[ArrayLike, ArrayLike],
        tokens_per_batch: int,
        *,
        seed: int = 0,
        largest_first: bool = False,
        processes: int = 1,
        rank: int = 0,
    ) -> None:
        check_number("tokens_per_batch", tokens_per_batch, 1)
        check_number("seed", seed, 0)
        check_number("processes", processes, 1)
        check_number("rank", rank, 0, processes - 1)
        self.seed, self.largest_first, self.processes, self.rank = seed, largest_first, processes, rank
        self.epoch = 0
        keys = _sorted_keys(data, min(tokens_per_batch, _LONGEST_POSSIBLE))
        self._equal = _runs(keys.view("<u4")[1::2])
        longest = keys.view("<u2")[3::4]
        self._bounds = _halve_until_even(_cut(longest, tokens_per_batch), processes)
        place = _place(keys)
        self._source_shape, source_tokens = self._measure(np.minimum(place, longest))
        np.minimum(np.subtract(2 * longest, place, out=place), longest, out=place)
        self._target_shape, target_tokens = self._measure(place)
        self._tokens = source_tokens + target_tokens
        del place
        self._order = keys.view("<u4")[::2].copy()

    @classmethod
    def use_in(
        cls,
        trainer: Trainer,
        tokens_per_batch: int,
        *,
        largest_first: bool = False,
        lengths: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> "TokenBudgetBatchSampler":
        """Let a stock `Trainer` or `Seq2SeqTrainer` train on token-budget batches.

        `per_device_train_batch_size`, `train_sampling_strategy` and `dataloader_drop_last` no longer matter.
        `gradient_accumulation_steps` counts batches. The seed is `data_seed` of the arguments, or else `seed`. At the
        end of each epoch [`padding_share`] is logged under that name. A run that is resumed, in the middle of an epoch
        too, has the batches of one that was not stopped.

        Args:
            trainer (`Trainer`): with its `train_dataset`, before `trainer.train()`.
            tokens_per_batch, largest_first: see the class.
            lengths (two arrays, *optional*): source and target lengths in tokens, each `(pairs,)`; needed where
                `train_dataset` is no `datasets.Dataset` with columns `input_ids` and `labels`.

        Returns:
            `TokenBudgetBatchSampler`: of this process.

        Raises:
            TypeError, ValueError: see the class; and if the arguments of the Trainer ask for something that batches
                of given sentences rule out.
        """
        args = trainer.args
        pairs = _count_pairs(trainer)
        sampler = cls(
            trainer.train_dataset if lengths is None else lengths,
            tokens_per_batch,
            seed=args.seed if args.data_seed is None else args.data_seed,
            largest_first=largest_first,
            processes=args.world_size,
            rank=args.process_index,
        )
        if len(sampler._order) != pairs:
            raise ValueError(
                f"there are {len(sampler._order)} lengths and {pairs} training pairs; give one source and one target "
                "length for each pair."
            )
        trainer._get_train_sampler = lambda train_dataset=None: sampler  # type: ignore[method-assign]
        trainer.get_train_dataloader = partial(  # type: ignore[method-assign]
            _with_uneven_batches, trainer.accelerator, trainer.get_train_dataloader
        )
        trainer.remove_callback(_Epochs)
        trainer.add_callback(_Epochs(sampler, trainer))
        return sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches the next iteration yields, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of one process in an epoch, the same in all processes and epochs."""
        return (len(self._bounds) - 1) // self.processes

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of this process in this epoch: indices of pairs."""
        generator = np.random.default_rng((self.seed, self.epoch))
        order = self._order.copy()
        for begin, end in self._equal:
            generator.shuffle(order[begin:end])
        numbers = generator.permutation(len(self._bounds) - 1)
        if self.largest_first and self.epoch == 0:
            largest = self._largest()
            numbers = np.concatenate([largest, numbers[~np.isin(numbers, largest)]])
        for number in numbers[self.rank :: self.processes]:
            yield order[self._bounds[number] : self._bounds[number + 1]].tolist()

    def padding_share(self) -> float:
        """Share of padding among the tokens of both sides, the same in all epochs, over all processes; in [0, 1)."""
        return 1 - self._tokens / int(self._padded_tokens().sum())

    def _measure(self, lengths: NDArray[np.uint16]) -> tuple[NDArray[np.uint16], int]:
        """Longest sentence of each batch, `(batches,)`, and the sum of all lengths, which are in the sorted order."""
        return np.maximum.reduceat(lengths, self._bounds[:-1]), int(lengths.sum(dtype=np.int64))

    def _padded_tokens(self) -> NDArray[np.int64]:
        """Tokens of each batch on both sides with padding, `(batches,)`."""
        return np.diff(self._bounds) * (self._source_shape.astype(np.int64) + self._target_shape)

    def _largest(self) -> NDArray[np.int64]:
        """The batch with most tokens for each process; of equal ones, the one with longer sentences."""
        longest = np.maximum(self._source_shape, self._target_shape)
        return np.lexsort((longest, self._padded_tokens()))[::-1][: self.processes]


class _Epochs(TrainerCallback):
    """Tells the sampler the epoch, and the log the share of padding.

    After a resume in several processes, neither the Trainer nor accelerate finds the sampler to tell it the epoch.
    """

    def __init__(self, sampler: TokenBudgetBatchSampler, trainer: Trainer) -> None:
        self.sampler = sampler
        self.trainer = trainer

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.sampler.set_epoch(int(state.epoch or 0))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.log({"padding_share": self.sampler.padding_share()})


def _with_uneven_batches(accelerator: Accelerator, get_dataloader: Callable[[], DataLoader]) -> DataLoader:
    """The training data, for which accelerate 1.12 must not be asked to even out batches; evaluation needs it."""
    even_batches, accelerator.even_batches = accelerator.even_batches, False
    try:
        return get_dataloader()
    finally:
        accelerator.even_batches = even_batches


def _sorted_keys(data: Dataset | tuple[ArrayLike, ArrayLike], limit: int) -> NDArray[np.uint64]:
    """Lengths and index of each pair in one number, sorted, `(pairs,)`."""
    count, chunks = count_and_lengths(data)
    if count == 0:
        raise ValueError("there are no pairs to make batches of; give at least one.")
    keys = np.empty(count, "<u8")
    begin, faulty = 0, 0
    named: list[str] = []
    for source, target in chunks:
        end = begin + len(source)
        wrong = np.flatnonzero((np.minimum(source, target) < 1) | (np.maximum(source, target) > limit))
        faulty += len(wrong)
        for row in wrong[: _FAULTS_TO_NAME - len(named)]:
            named.append(f"pair {begin + row} ({source[row]} source, {target[row]} target tokens)")
        keys[begin:end] = _keys(source, target, begin)
        begin = end
    if faulty:
        more = ", ..." if faulty > len(named) else ""
        raise ValueError(
            f"{faulty} of {count} pairs are empty on one side or longer than {limit} tokens, the most that a batch may "
            f"have on a side: {', '.join(named)}{more}; leave them out with filter_pairs() or --max_tokens, split "
            f"them, or raise tokens_per_batch (sentences have at most {_LONGEST_POSSIBLE} tokens)."
        )
    keys.sort()
    return keys


def _keys(source: NDArray[Any], target: NDArray[Any], begin: int) -> NDArray[np.uint64]:
    """Numbers that sort by the longer side, then by source minus target, up and down in turn: neighbours are alike."""
    source, target = source.astype(np.int64), target.astype(np.int64)
    longest = np.maximum(source, target)
    place = longest + source - target
    folded = np.where(longest % 2, 2 * longest - place, place)
    index = np.arange(begin, begin + len(source))
    return (longest << 48 | folded << 32 | index).astype(np.uint64)


def _place(keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """The longer side of each pair plus source minus target, `(pairs,)`."""
    longest = keys.view("<u2")[3::4]
    odd = longest % 2 == 1
    place = keys.view("<u2")[2::4].copy()
    return np.subtract(2 * longest, place, out=place, where=odd)


def _runs(lengths: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Begin and end of each run of two or more pairs with equal lengths, `(runs, 2)`."""
    bounds = np.concatenate([[0], np.flatnonzero(lengths[1:] != lengths[:-1]) + 1, [len(lengths)]])
    return np.stack([bounds[:-1], bounds[1:]], axis=1)[np.diff(bounds) > 1]


def _cut(longest: NDArray[np.uint16], tokens_per_batch: int) -> NDArray[np.int64]:
    """Where batches begin, and the end of the last, `(batches + 1,)`; `longest`, `(pairs,)`, is sorted."""
    levels = np.concatenate([[0], np.flatnonzero(longest[1:] != longest[:-1]) + 1, [len(longest)]])
    begins, begin = [], 0
    for level, end in pairwise(levels.tolist()):
        rows = tokens_per_batch // int(longest[level])
        if rows > _ROWS_MULTIPLE:
            rows -= rows % _ROWS_MULTIPLE
        starts = np.arange(begin, end, rows)
        begins.append(starts[:-1])
        begin = starts[-1]
    return np.concatenate([*begins, [begin, len(longest)]])


def _halve_until_even(bounds: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Halve the batch with most rows until each process has as many batches as the others.

    Raises:
        ValueError: if there are too few pairs for that.
    """
    if bounds[-1] < processes:
        raise ValueError(f"there are {bounds[-1]} pairs for {processes} processes; each needs at least one.")
    while (len(bounds) - 1) % processes:
        largest = int(np.diff(bounds).argmax())
        if bounds[largest + 1] - bounds[largest] == 1:
            raise ValueError(
                f"there are {bounds[-1]} pairs for {processes} processes, each a batch of its own; leave out "
                f"{bounds[-1] % processes}, or raise tokens_per_batch so that two pairs fit."
            )
        half = (bounds[largest + 1] - bounds[largest]) // 2
        if half > _ROWS_MULTIPLE:
            half -= half % _ROWS_MULTIPLE
        bounds = np.insert(bounds, largest + 1, bounds[largest] + half)
    return bounds


def _count_pairs(trainer: Trainer) -> int:
    """Number of training pairs; settings that batches of each process's own would silently break are refused."""
    data = trainer.train_dataset
    if data is None:
        raise ValueError("the Trainer has no train_dataset; give it one.")
    if not has_length(data):
        raise TypeError(
            f"train_dataset is a {type(data).__name__}, which comes in an order of its own; give a data set with a "
            "length, such as datasets.Dataset."
        )
    if trainer.args.auto_find_batch_size:
        raise ValueError("auto_find_batch_size looks for a number of sentences; leave it out, and lower the tokens.")
    if trainer.accelerator.split_batches or trainer.accelerator.dispatch_batches:
        raise ValueError("accelerator_config splits or dispatches batches, but each process has its own; leave it out.")
    if trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1:
        raise ValueError(
            "processes that share sentences (tensor, context or sequence parallelism) would get different batches; "
            "use DDP or FSDP."
        )
    return len(data)
