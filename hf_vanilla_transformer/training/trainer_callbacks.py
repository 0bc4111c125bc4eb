"""Callbacks for a stock `Trainer`: non-finite losses, memory, early stopping, and what a run logs and records."""

import json
import logging
import math
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    SchedulerType,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerState,
)
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy

from ..acceleration.prepacked_weights import forget_packed
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.target_language import TargetCodes
from ..evaluation.evaluate import format_examples
from ..model.input_checks import is_blank
from ..support.memory_tuning import release_freed_memory
from ..support.user_errors import Terminated
from .paper_arguments import describe_precision


logger = logging.getLogger(__name__)

# Validation pairs that every evaluation translates and logs.
EXAMPLES_PER_EVALUATION = 5
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

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
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
        updates (`int`, defaults to 25): updates between two releases.
    """

    def __init__(self, updates: int = 25):
        self.updates = updates

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            release_freed_memory()

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        forget_packed()
        release_freed_memory()


class EarlyStopping(EarlyStoppingCallback):
    """`EarlyStoppingCallback` that continues the count of the checkpoint that a run resumes from, if that has one.

    It also has the Trainer write a checkpoint where it stops, if the run writes checkpoints.
    """

    @property
    def has_stopped(self) -> bool:
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, *metrics: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, *metrics, **kwargs)
        control.should_save |= self.has_stopped and args.save_strategy in (SaveStrategy.STEPS, SaveStrategy.EPOCH)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.early_stopping_patience_counter = count_evaluations_without_improvement(state)
        ensure_saved_state(self, state)


def count_evaluations_without_improvement(state: TrainerState) -> int:
    """The count that an early-stopping callback saved in a checkpoint; 0 if there was no such callback."""
    saved: Any = state.stateful_callbacks
    of_callback = saved.get(EarlyStopping.__name__) or saved.get(EarlyStoppingCallback.__name__) or {}
    return of_callback.get("attributes", {}).get("early_stopping_patience_counter", 0)


def ensure_saved_state(callback: TrainerCallback, state: Any) -> None:
    """Make the Trainer save a callback's state if the checkpoint that it resumed from has none; it raises KeyError."""
    state.stateful_callbacks.setdefault(type(callback).__name__, {})


class CheckpointAtSigterm(TrainerCallback):
    """At SIGTERM writes a checkpoint after the current update, and ends the training: `--enable_jit_checkpoint`.

    The Trainer's own callback may write it in the middle of an update, which no run resumes from exactly, and calls no
    callbacks for it, so that it gets no mark.

    Raises:
        Terminated: out of `trainer.train()`.
    """

    def __init__(self) -> None:
        self.received = False

    def _note(self, number: int, frame: object) -> None:
        self.received = True

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._before = signal.signal(signal.SIGTERM, self._note)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # The signal reaches the processes during different updates, but they have to save and stop together.
        self.received = any(gather_object([self.received]))
        if self.received:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if self.received:
            raise Terminated


@dataclass(eq=False)
class RecordFacts(TrainerCallback, ExportableState):
    """Facts for model card and curve that cover a whole run, resumed or not; the Trainer saves them in checkpoints.

    `optimizer` has optimizer and schedule in words, `pairs` a digest of the training pairs. `seconds`, the training
    time so far, contain `evaluation_seconds`.
    """

    base_model: str | None = None
    optimizer: str | None = None
    pairs: str | None = None
    seconds: float = 0
    evaluation_seconds: float = 0
    _counted = math.inf  # Until when `seconds` counts; outside of the training no time passes.

    @classmethod
    def read_checkpoint(cls, checkpoint: Path) -> "RecordFacts":
        """The facts that a checkpoint holds; none if its run did not use this callback."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        return cls(**state.get("stateful_callbacks", {}).get(cls.__name__, {}).get("args", {}))

    def _count(self) -> None:
        now = time.monotonic()
        self.seconds, self._counted = self.seconds + max(0, now - self._counted), now

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._counted = time.monotonic()
        ensure_saved_state(self, state)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add to the log `training_seconds`, without evaluations, and `evaluation_seconds`, since the start."""
        self._count()
        self.evaluation_seconds += logs.get("eval_runtime", 0)
        times = {"training_seconds": self.seconds - self.evaluation_seconds}
        state.log_history[-1] |= times | {"evaluation_seconds": self.evaluation_seconds}

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._count()
        self._counted = math.inf

    def state(self) -> dict[str, Any]:
        """The content that the Trainer saves in a checkpoint."""
        self._count()
        return {"args": asdict(self), "attributes": {}}


class LogRunSizes(TrainerCallback):
    """Logs the numbers of parameters and pairs that are trained, and has a short run log its loss before its end."""

    def __init__(self, parameters: int, pairs: int):
        self.parameters, self.pairs = parameters, pairs

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.logging_steps >= state.max_steps:
            state.logging_steps = max(1, state.max_steps // 10)
        batches = args.gradient_accumulation_steps * args.world_size
        tokens = args.tokens_per_batch and f"at most {args.tokens_per_batch * batches:,} tokens on each side"
        logger.info(
            f"training in {describe_precision(args)}: {self.parameters:,} parameters, {self.pairs:,} pairs, "
            f"{state.max_steps:,} updates of {tokens or f'{args.train_batch_size * batches} sentences'}"
        )
        warmup = args.get_warmup_steps(state.max_steps)
        if warmup >= state.max_steps and args.lr_scheduler_type not in _WITHOUT_WARMUP:
            logger.info(f"the learning rate rises for {warmup:,} updates, so until the end; see --warmup_steps")


class LogExamples(TrainerCallback):
    """Logs, at each evaluation, the same five validation pairs as source, prediction and reference.

    TensorBoard shows them as text. Every process translates them, because the weights of one may be spread over all.
    """

    def __init__(self, trainer: Seq2SeqTrainer, tokenizer: PreTrainedTokenizerBase, pairs: Dataset):
        self.trainer, self.tokenizer = trainer, tokenizer
        self.examples = pairs.select(pick_evenly_spaced_rows(len(pairs), EXAMPLES_PER_EVALUATION))

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # A model whose training diverged may have no translation.
        if not math.isfinite(kwargs["metrics"].get("eval_loss", 0)):
            return
        predictions = self._translate(args, kwargs["model"])
        if not state.is_world_process_zero:
            return
        text = format_examples(self.examples["source"], predictions, self.examples["target"])
        logger.info("%s\n", text)
        for each in self.trainer.callback_handler.callbacks:
            if isinstance(each, TensorBoardCallback) and each.tb_writer is not None:
                # Markdown, in which an indented block keeps its lines.
                each.tb_writer.add_text("eval/examples", text.replace("\n", "\n    "), state.global_step)

    def _translate(self, args: Any, model: Any) -> list[str]:
        """Not by `translate()`, whose inference mode makes tensors that training cannot use."""
        codes = TargetCodes(self.tokenizer)
        # A blank source has no code in training, either.
        sources = [source if is_blank(source) else codes.put_before(source) for source in self.examples["source"]]
        ids = self.tokenizer(sources, verbose=False).input_ids
        inputs = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
        settings = {"num_beams": args.generation_num_beams, "max_length": args.generation_max_length}
        given = {name: value for name, value in settings.items() if value is not None}
        return self.tokenizer.batch_decode(model.generate(**inputs, **given), skip_special_tokens=True)
