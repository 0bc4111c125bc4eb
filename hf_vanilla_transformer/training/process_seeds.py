"""Different dropout masks in processes that train together."""

from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler


class ProcessSeeds(TrainerCallback):
    """Gives every process of a distributed training dropout masks of its own.

    The Trainer seeds all processes alike, so batches of equal shapes get equal dropout masks in all processes, and an
    update averages over fewer masks than it should. With stock `Seq2SeqTrainer`, one line before `trainer.train()`:

    ```python
    ProcessSeeds.use_in(trainer)
    ```

    The training then starts with the seed `args.seed + rank`, where `rank` counts data-parallel processes, so the
    processes that hold parts of one model (tensor parallelism) keep equal masks. Only the random number generator of
    the training's device is seeded, and only after the model has its initial weights. The first process and a training
    in one process do not change.

    Checkpoints of the Trainer contain the random state of every process, so a resumed run has the masks of an
    uninterrupted one.

    On CPUs, dropout and samplers draw from the same generator. The samplers of `train_sampling_strategy` and
    [`TokenBudgetBatchSampler`] draw the same order in all processes nevertheless. A sampler of your own must not draw
    from torch's global generator there, because each process would draw a different order.
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

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # Here the model and the dataloader are complete. The Trainer loads the random state of a checkpoint later.
        processes_of_a_model = self.trainer.get_tp_size() * self.trainer.get_cp_size() * self.trainer.get_sp_size()
        rank = args.process_index // processes_of_a_model
        if rank > 0:
            _seed_dropout(args.device, args.seed + rank)

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            seed_order_of_lengths(args, state, kwargs["train_dataloader"])

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # In another training, accelerate derives the order of the sentences from the seed of each process.
        if args.world_size > 1:
            _seed_dropout(args.device, args.seed)


def seed_order_of_lengths(args: TrainingArguments, state: TrainerState, dataloader: DataLoader) -> None:
    """Make the order of `group_by_length` depend on the seed and the epoch only; call this before each epoch.

    Otherwise the Trainer draws it from the global random state, which differs between processes and after a resume.
    Other samplers do not change.
    """
    batches = getattr(dataloader, "batch_sampler", None)
    # With several processes accelerate wraps the sampler of batches.
    batches = getattr(batches, "batch_sampler", batches)
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, LengthGroupedSampler):
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the generator from which dropout draws on a device."""
    if device.type == "cpu":
        torch.manual_seed(seed)
    else:
        # Not the CPU's, from which samplers draw the same order in all processes.
        torch.get_device_module(device).manual_seed(seed)
