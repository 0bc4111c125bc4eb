"""Give the processes of a distributed training run different dropout masks."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler


class ProcessSeeds(TrainerCallback):
    """Callback that gives every process of a distributed training run different dropout masks.

    The Trainer uses the same seed in all processes. Batches of the same shape therefore get the same dropout masks in
    all processes, and an update averages over fewer masks than it should. With a stock `Trainer` or `Seq2SeqTrainer`,
    add one line before `trainer.train()`:

    ```python
    ProcessSeeds.use_in(trainer)
    ```

    The training then starts with the seed `args.seed + rank`, where `rank` counts data-parallel processes. Processes
    that hold parts of the same model (tensor parallelism) have the same rank, so they keep equal masks. Only the random
    number generator of the training device is seeded, and only after the model's weights are initialized. The masks of
    the first process do not change, and neither do those of a single-process run.

    Trainer checkpoints contain the random state of every process, so a resumed run has the same masks as an
    uninterrupted run.

    On CPUs, dropout and samplers draw from the same generator. The samplers of `train_sampling_strategy` and
    [`TokenBudgetBatchSampler`] nevertheless draw the same order in all processes. If you write your own sampler, do not
    draw from PyTorch's global generator on CPUs, because each process would draw a different order.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @classmethod
    def use_in(cls, trainer: Trainer) -> "ProcessSeeds":
        """Add this callback to a stock `Trainer` or `Seq2SeqTrainer`, and return the callback."""
        callback = cls(trainer)
        # An earlier call may have added the callback already.
        trainer.remove_callback(cls)
        trainer.add_callback(callback)
        return callback

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # At this point, the weights are initialized, and the Trainer has not yet loaded a checkpoint's random state.
        processes_per_model = self.trainer.get_tp_size() * self.trainer.get_cp_size() * self.trainer.get_sp_size()
        rank = args.process_index // processes_per_model
        # Rank 0 keeps the seed `args.seed`, which the Trainer has already set.
        if rank > 0:
            _seed_dropout(args.device, args.seed + rank)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.world_size > 1:
            seed_order_of_lengths(args, state, kwargs["train_dataloader"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # If the program trains again, accelerate derives the order of the sentences from each process's random state,
        # so all processes need the same state.
        if args.world_size > 1:
            _seed_dropout(args.device, args.seed)


def seed_order_of_lengths(args: TrainingArguments, state: TrainerState, dataloader: DataLoader) -> None:
    """Make `group_by_length` draw an order of the sentences that depends only on the seed and the epoch.

    Call this function before each epoch. Otherwise the Trainer draws the order from the global random state, which
    differs between processes and after a resume. Other sampling strategies are not affected.
    """
    sampler = _find_sampler(dataloader)
    if not isinstance(sampler, LengthGroupedSampler):
        return
    seed = args.seed
    if args.data_seed is not None:
        seed = args.data_seed
    # The epoch is None before the first update, and has a fraction after a resume.
    epoch = int(state.epoch or 0)
    sampler.generator = torch.Generator().manual_seed(seed + epoch)


def _find_sampler(dataloader: DataLoader) -> object | None:
    """Return the sampler that draws the order of the sentences, or None if the data loader has no such sampler."""
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    # With several processes, accelerate wraps the batch sampler in a batch sampler of its own.
    inner_batch_sampler = getattr(batch_sampler, "batch_sampler", batch_sampler)
    return getattr(inner_batch_sampler, "sampler", None)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the random number generator that dropout uses on a device."""
    if device.type == "cpu":
        torch.manual_seed(seed)
    else:
        # The CPU's generator keeps its state, because samplers must draw the same order in all processes.
        torch.get_device_module(device).manual_seed(seed)
