"""A training whose loss is no number any more is over."""

import math
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class DivergedError(ArithmeticError):
    """The loss of a training is infinite, or no number."""


class StopWhenDiverged(TrainerCallback):
    """Ends a Trainer's run at the first loss in its log that is no finite number; the last one is the mean of the run.

    Otherwise it goes on to its end: the weights are no numbers either, and nothing brings them back. It takes
    `logging_nan_inf_filter=False`, as in [`PaperTrainingArguments`]: the Trainer's default leaves such losses out of
    the log.

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
                f"the training diverged: the loss is {loss} at update {state.global_step:,}; begin anew with a lower "
                "--learning_rate or more --warmup_steps, or go on from an earlier checkpoint's weights, as --model."
            )
