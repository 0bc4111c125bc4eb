"""Callbacks for a stock `Trainer`: non-finite losses, memory, early stopping, saving every n epochs, sizes of a run."""

import logging
import math
from pathlib import Path
from typing import Any

from transformers import (
    EarlyStoppingCallback,
    SchedulerType,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SaveStrategy

from ..model.prepacked_weights import forget_packed
from ..support.argument_checks import check_number
from ..support.process_memory import release_freed_memory
from .paper_arguments import describe_precision


logger = logging.getLogger(__name__)

_WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)


class DivergedError(ArithmeticError):
    """The training loss is NaN or infinite."""


class StopWhenDiverged(TrainerCallback):
    """Stops a Trainer at the first non-finite loss in its log; the last loss logged is the mean of the run.

    Without it training continues with NaN weights, from which no update recovers. It needs
    `logging_nan_inf_filter=False`, the default of [`PaperTrainingArguments`]: the Trainer's own default replaces such
    losses in the log.

    Raises:
        DivergedError: out of `trainer.train()`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        loss = logs.get("loss", logs.get("train_loss", 0.0))
        if not math.isfinite(loss):
            raise DivergedError(
                f"the training diverged: the loss is {loss} at update {state.global_step:,}; start again with a lower "
                "learning_rate or more warmup_steps, or fine-tune the weights of an earlier checkpoint."
            )


class ReleaseMemory(TrainerCallback):
    """Releases freed memory to the operating system every few updates, and after each evaluation.

    Sentences of many lengths fragment the memory that [`~hf_vanilla_transformer.keep_freed_memory`] keeps, so that the
    process would grow without limit. After an evaluation this callback also drops the weights that were prepacked for
    its translations, because the next evaluation has other weights.

    Args:
        updates (`int`, defaults to 50): updates between two releases.
    """

    def __init__(self, updates: int = 50):
        self.updates = updates

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            release_freed_memory()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        forget_packed()
        release_freed_memory()


class EarlyStopping(EarlyStoppingCallback):
    """`EarlyStoppingCallback` that a resumed run can add, although the run before did not have it."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        add_to_saved_callbacks(self, state)


class SaveEveryEpochs(TrainerCallback):
    """Saves a checkpoint every few epochs, and at the end of the run; with `save_strategy="epoch"`.

    Args:
        epochs (`int`): epochs between two checkpoints.

    Raises:
        ValueError: if `epochs` is less than 1, or, at the start of the training, with another `save_strategy`.
    """

    def __init__(self, epochs: int):
        check_number("the number of epochs between two checkpoints", epochs, 1)
        self.epochs = epochs

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        strategy = SaveStrategy(args.save_strategy)
        if strategy != SaveStrategy.EPOCH:
            raise ValueError(f'save_strategy is "{strategy.value}"; SaveEveryEpochs needs save_strategy="epoch".')

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        # The Trainer computes the epoch as a sum of floats.
        if not is_last and round(state.epoch or 0) % self.epochs > 0:
            control.should_save = False


class LogRunSizes(TrainerCallback):
    """Logs what is about to be trained, and has a short run log its loss before its end.

    Args:
        parameters, pairs (`int`): of the model, and of the training data.
    """

    def __init__(self, parameters: int, pairs: int):
        self.parameters, self.pairs = parameters, pairs

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.logging_steps >= state.max_steps:
            state.logging_steps = max(1, state.max_steps // 10)
        # A finished run is resumed without updates.
        if not state.is_world_process_zero or state.global_step >= state.max_steps:
            return
        batches = args.gradient_accumulation_steps * args.world_size
        tokens = args.tokens_per_batch and f"at most {args.tokens_per_batch * batches:,} tokens on each side"
        logger.info(
            f"training in {describe_precision(args)}: {self.parameters:,} parameters, {self.pairs:,} pairs, "
            f"{state.max_steps:,} updates of {tokens or f'{args.train_batch_size * batches} sentences'}"
        )
        warmup = args.get_warmup_steps(state.max_steps)
        if warmup >= state.max_steps and args.lr_scheduler_type not in _WITHOUT_WARMUP:
            logger.info(f"the learning rate rises for {warmup:,} updates, so until the end; see --warmup_steps")


def early_stopping(patience: int, checkpoint: Path | None) -> EarlyStopping:
    """A callback that continues the checkpoint's count of evaluations without improvement.

    Args:
        patience (`int`): stop after this many evaluations without improvement in a row.
        checkpoint (`Path`, *optional*): the checkpoint that the run resumes from. The count starts at 0 without one,
            or if the run that wrote it did not count.
    """
    callback = EarlyStopping(patience)
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        callback.early_stopping_patience_counter = evaluations_without_improvement(state)
    return callback


def evaluations_without_improvement(state: TrainerState) -> int:
    """The count that an early-stopping callback saved in a checkpoint; 0 if there was no such callback."""
    saved: Any = state.stateful_callbacks
    of_callback = saved.get(EarlyStopping.__name__) or saved.get(EarlyStoppingCallback.__name__) or {}
    return of_callback.get("attributes", {}).get("early_stopping_patience_counter", 0)


def add_to_saved_callbacks(callback: TrainerCallback, state: Any) -> None:
    """Make the Trainer save the state of a callback that the checkpoint it resumed from lacks.

    When the Trainer saves, it looks up the name of every stateful callback here, and would raise KeyError.
    """
    state.stateful_callbacks.setdefault(type(callback).__name__, {})
