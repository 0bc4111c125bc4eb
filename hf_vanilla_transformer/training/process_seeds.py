"""Give each of the processes that train together different dropout masks."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler


class ProcessSeeds(TrainerCallback):
    """Give every process of a distributed training its own dropout masks.

    The Trainer uses the same seed in all processes. Batches of equal shapes therefore get equal dropout masks in all
    processes, and an update averages over fewer masks than it should. With a stock `Trainer` or `Seq2SeqTrainer`, add
    one line before `trainer.train()`:

    ```python
    ProcessSeeds.use_in(trainer)
    ```

    The training then starts with the seed `args.seed + rank`, where `rank` counts data-parallel processes. Processes
    that hold parts of one model (tensor parallelism) have the same rank and keep equal masks. Only the random number
    generator of the training device is seeded, and only after the model has its initial weights. The masks of the first
    process, and of a training in one process, do not change.

    Checkpoints of the Trainer contain the random state of every process, so a resumed run has the masks of an
    uninterrupted one.

    On CPUs, dropout and samplers draw from the same generator. The samplers of `train_sampling_strategy` and
    [`TokenBudgetBatchSampler`] nevertheless draw the same order in all processes. If you write your own sampler, do not
    draw from torch's global generator on CPUs, because each process would draw a different order.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @classmethod
    def use_in(cls, trainer: Trainer) -> "ProcessSeeds":
        """Add the callback to a stock `Trainer` or `Seq2SeqTrainer`, and return it."""
        callback = cls(trainer)
        trainer.remove_callback(cls)
        trainer.add_callback(callback)
        return callback

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # At this point the model has its weights, and the Trainer has not yet loaded the random state of a checkpoint.
        processes_per_model = self.trainer.get_tp_size() * self.trainer.get_cp_size() * self.trainer.get_sp_size()
        rank = args.process_index // processes_per_model
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
        # If the program trains again, accelerate derives the order of the sentences from the random state of each
        # process, so all processes need the same state.
        if args.world_size > 1:
            _seed_dropout(args.device, args.seed)


def seed_order_of_lengths(args: TrainingArguments, state: TrainerState, dataloader: DataLoader) -> None:
    """Make the order of `group_by_length` depend only on the seed and the epoch; call this before each epoch.

    Otherwise the Trainer draws the order from the global random state, which differs between processes and after a
    resume. Other samplers do not change.
    """
    batch_sampler = getattr(dataloader, "batch_sampler", None)
    # With several processes, accelerate wraps the batch sampler in its own one.
    inner_batch_sampler = getattr(batch_sampler, "batch_sampler", batch_sampler)
    sampler = getattr(inner_batch_sampler, "sampler", None)
    if not isinstance(sampler, LengthGroupedSampler):
        return
    seed = args.seed if args.data_seed is None else args.data_seed
    epoch = int(state.epoch or 0)
    sampler.generator = torch.Generator().manual_seed(seed + epoch)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the random number generator from which dropout draws on a device."""
    if device.type == "cpu":
        torch.manual_seed(seed)
    else:
        # The generator of the CPU keeps its state, because samplers must draw the same order in all processes.
        torch.get_device_module(device).manual_seed(seed)
