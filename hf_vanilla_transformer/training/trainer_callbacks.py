"""Define callbacks for a stock `Trainer`, which for example stop a run early, release memory, or log examples."""

import json
import logging
import math
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from accelerate.utils import gather_object
from datasets import Dataset
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    SchedulerType,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
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

# Number of validation pairs whose translations are logged at every evaluation.
EXAMPLES_PER_EVALUATION = 5
_SCHEDULES_WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)


class DivergedError(ArithmeticError):
    """Raised if the training loss is NaN or infinite."""


class StopWhenDiverged(TrainerCallback):
    """Callback that stops training at the first logged loss that is NaN or infinite.

    Without this callback, training continues with NaN weights, from which no update recovers. The callback needs
    `logging_nan_inf_filter=False`, the default of [`PaperTrainingArguments`], because the Trainer's default replaces
    such losses in the log.

    Raises:
        DivergedError: from `trainer.train()`.
    """

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        # The last log entry contains the mean loss of the whole run, `train_loss`. Entries about evaluations contain
        # neither loss, and are ignored.
        loss = logs.get("loss", logs.get("train_loss", 0.0))
        if not math.isfinite(loss):
            raise DivergedError(
                f"the training diverged: the loss is {loss} at update {state.global_step:,}; start again with a lower "
                "learning_rate or more warmup_steps, or fine-tune the weights of an earlier checkpoint."
            )


class ReleaseMemory(TrainerCallback):
    """Callback that releases freed memory to the operating system every few updates and after each evaluation.

    Sentences of many lengths fragment the memory that [`~hf_vanilla_transformer.keep_freed_memory`] keeps, so the
    process would grow without limit. After an evaluation, this callback also drops the prepacked copies of the weights,
    which made its translations faster, because the next evaluation has different weights.

    Args:
        updates (`int`, defaults to 25): number of updates between two releases.
    """

    def __init__(self, updates: int = 25):
        self.updates = updates

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            release_freed_memory()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        forget_packed()
        release_freed_memory()


class EarlyStopping(EarlyStoppingCallback):
    """An `EarlyStoppingCallback` that keeps its count of evaluations without improvement when a run resumes.

    If the run writes checkpoints, the callback also makes the Trainer write one when it stops the training.
    """

    @property
    def has_stopped(self) -> bool:
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *metrics: Any, **kwargs: Any
    ) -> None:
        # The Trainer passes `metrics` by name. This signature fits both base classes, one of which accepts it by
        # position.
        # This updates the count, and sets `control.should_training_stop` if the count reaches the patience.
        super().on_evaluate(args, state, control, *metrics, **kwargs)
        if self.has_stopped and args.save_strategy in (SaveStrategy.STEPS, SaveStrategy.EPOCH):
            control.should_save = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        # If the run resumes, the Trainer has read `state` from the checkpoint.
        self.early_stopping_patience_counter = count_evaluations_without_improvement(state)
        _add_state_entry(self, state)


def count_evaluations_without_improvement(state: TrainerState) -> int:
    """Read from a checkpoint's state how many evaluations in a row brought no improvement.

    An early-stopping callback counts these evaluations. The result is 0 if the run had no such callback.
    """
    # The state has an entry for each callback of the run that wrote the checkpoint, by the name of its class. For
    # example, {"EarlyStopping": {"args": {...}, "attributes": {"early_stopping_patience_counter": 2}}}.
    states_of_callbacks: Any = state.stateful_callbacks
    # A run has `EarlyStopping` if `train` wrote the checkpoint, or `EarlyStoppingCallback` of transformers.
    for callback_class in (EarlyStopping, EarlyStoppingCallback):
        callback_state = states_of_callbacks.get(callback_class.__name__)
        if callback_state:
            attributes = callback_state.get("attributes", {})
            return attributes.get("early_stopping_patience_counter", 0)
    return 0


def _add_state_entry(callback: TrainerCallback, state: TrainerState) -> None:
    """Add an entry for a callback to the Trainer's state, unless the state already has one.

    A run that resumes reads the state from its checkpoint. If the checkpoint has no entry for a callback, the Trainer
    would raise KeyError when it saves the callback's state.
    """
    states_of_callbacks: Any = state.stateful_callbacks
    states_of_callbacks.setdefault(type(callback).__name__, {})


class CheckpointAtSigterm(TrainerCallback):
    """Callback that reacts to SIGTERM: it writes a checkpoint after the current update and ends the training.

    The option `--enable_jit_checkpoint` selects this callback. It replaces the Trainer's own callback, which has two
    drawbacks. The Trainer's callback may write the checkpoint in the middle of an update, from which no run resumes
    exactly. It also does not call other callbacks, so the checkpoint gets no completion mark.

    Raises:
        Terminated: from `trainer.train()`.
    """

    def __init__(self) -> None:
        self.has_received_signal = False

    def _handle_signal(self, signal_number: int, frame: object) -> None:
        # Python may call this method in the middle of an update, so the method only takes a note for `on_step_end`.
        self.has_received_signal = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # `on_train_end` restores the previous handler.
        self._previous_handler = signal.signal(signal.SIGTERM, self._handle_signal)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # The signal may reach the processes during different updates, but all must save and stop together.
        self.has_received_signal = any(gather_object([self.has_received_signal]))
        if self.has_received_signal:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # This comes first, because the handler must be restored even if the next lines raise an error.
        signal.signal(signal.SIGTERM, self._previous_handler)
        # The Trainer has already written the checkpoint, because it saves after `on_step_end`.
        if self.has_received_signal:
            raise Terminated


@dataclass(eq=False)
class RecordFacts(TrainerCallback, ExportableState):
    """Callback that records facts about a run, such as the training time, for its model card and its curve.

    The Trainer saves the facts in checkpoints, so they cover the whole run even if it is resumed. Checkpoints contain
    the name of this class, so it must not be renamed.

    Args:
        base_model (`str`, *optional*): the model that is fine-tuned.
        optimizer (`str`, *optional*): a text about the optimizer and its schedule.
        pairs (`str`, *optional*): a hash of the training pairs.
        seconds (`float`): duration of the training so far, including evaluations.
        evaluation_seconds (`float`): duration of the evaluations so far.
    """

    base_model: str | None = None
    optimizer: str | None = None
    pairs: str | None = None
    seconds: float = 0
    evaluation_seconds: float = 0
    # `seconds` includes the time up to this moment. If it is infinite, no time is added. Without a type annotation,
    # this attribute is no field of the dataclass, so checkpoints do not contain it.
    _counted_until = math.inf

    @classmethod
    def read_checkpoint(cls, checkpoint: Path) -> "RecordFacts":
        """Read the facts from a checkpoint. If its run did not use this callback, return the default values."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        callback_state = state.get("stateful_callbacks", {}).get(cls.__name__, {})
        return cls(**callback_state.get("args", {}))

    def _update_seconds(self) -> None:
        """Add the time since the last call of this method to `seconds`."""
        now = time.monotonic()
        # If `_counted_until` is infinite, the difference is -inf, and nothing is added.
        self.seconds += max(0, now - self._counted_until)
        self._counted_until = now

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._counted_until = time.monotonic()
        _add_state_entry(self, state)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add `training_seconds` and `evaluation_seconds` to the newest entry of the Trainer's log.

        `training_seconds` is the time since the start of the training, without evaluations.
        """
        # `self.seconds` is the duration of the training so far, including evaluations.
        self._update_seconds()
        # Only the log entry of an evaluation has a runtime.
        self.evaluation_seconds += kwargs["logs"].get("eval_runtime", 0)

        # The Trainer appends the entry before it calls this method. It writes all entries to checkpoints later.
        newest_entry = state.log_history[-1]
        newest_entry["training_seconds"] = self.seconds - self.evaluation_seconds
        newest_entry["evaluation_seconds"] = self.evaluation_seconds

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._update_seconds()
        self._counted_until = math.inf

    def state(self) -> dict[str, Any]:
        """Return the facts in the format in which the Trainer saves the state of a callback in a checkpoint."""
        self._update_seconds()
        return {"args": asdict(self), "attributes": {}}


class LogRunSizes(TrainerCallback):
    """Callback that logs the size of a run when it starts: its parameters, training pairs and updates.

    The callback also makes short runs log their loss about ten times, even if `logging_steps` is larger.

    Args:
        parameters (`int`): number of parameters of the model.
        pairs (`int`): number of training pairs.
    """

    def __init__(self, parameters: int, pairs: int):
        self.parameters = parameters
        self.pairs = pairs

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the precision and the sizes of the run. There are two more steps for short runs.

        - If a run would log no loss before its end, make it log the loss about ten times.
        - If the warm-up lasts until the end of the training, log a message about it.
        """
        if state.logging_steps >= state.max_steps:
            # Ten entries are enough to see whether the loss falls. During training, the Trainer reads this attribute of
            # its state, not `args.logging_steps`.
            state.logging_steps = max(1, state.max_steps // 10)

        logger.info(
            f"training in {describe_precision(args)}: {self.parameters:,} parameters, {self.pairs:,} pairs, "
            f"{state.max_steps:,} updates of {_describe_update_size(args)}"
        )

        warmup_steps = args.get_warmup_steps(state.max_steps)
        has_warmup = args.lr_scheduler_type not in _SCHEDULES_WITHOUT_WARMUP
        if has_warmup and warmup_steps >= state.max_steps:
            logger.info(f"the learning rate rises for {warmup_steps:,} updates, so until the end; see --warmup_steps")


def _describe_update_size(args: TrainingArguments) -> str:
    """Describe the size of an update, summed over all processes, such as "32 sentences"."""
    batches_per_update = args.gradient_accumulation_steps * args.world_size
    # A stock Trainer's arguments have no token budget, only a number of sentences per batch.
    tokens_per_batch = getattr(args, "tokens_per_batch", None)
    if tokens_per_batch:
        tokens_per_update = tokens_per_batch * batches_per_update
        return f"at most {tokens_per_update:,} tokens on each side"
    # `train_batch_size` is the number of sentences in one batch of one process.
    sentences_per_update = args.train_batch_size * batches_per_update
    return f"{sentences_per_update} sentences"


class LogExamples(TrainerCallback):
    """Callback that translates the same few validation sentences at each evaluation, and logs them with references.

    Every process translates the sentences, because the model's weights may be distributed over the processes.

    Args:
        trainer (`Seq2SeqTrainer`): the Trainer. If it has a TensorBoard callback, TensorBoard shows the examples.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        pairs (`Dataset`): validation pairs with columns `source` and `target`.
    """

    def __init__(self, trainer: Seq2SeqTrainer, tokenizer: PreTrainedTokenizerBase, pairs: Dataset):
        self.trainer = trainer
        self.tokenizer = tokenizer
        self.examples = pairs.select(pick_evenly_spaced_rows(len(pairs), EXAMPLES_PER_EVALUATION))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Translate and log the examples, unless the training has diverged."""
        # A model whose training has diverged may generate no valid token.
        loss = kwargs["metrics"].get("eval_loss", 0)
        if not math.isfinite(loss):
            return
        predictions = self._translate(cast("Seq2SeqTrainingArguments", args), kwargs["model"])
        # All processes must translate together, but only the first one logs. So this check comes after the translation.
        if not state.is_world_process_zero:
            return
        text = format_examples(self.examples["source"], predictions, self.examples["target"])
        logger.info("%s\n", text)
        self._show_in_tensorboard(text, state.global_step)

    def _show_in_tensorboard(self, text: str, update: int) -> None:
        """Add a text to TensorBoard, if the Trainer uses TensorBoard. `update` is the number of updates so far."""
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
                # TensorBoard reads Markdown, in which an indented block keeps its lines.
                indented_text = text.replace("\n", "\n    ")
                callback.tb_writer.add_text("eval/examples", indented_text, update)

    def _translate(self, args: Seq2SeqTrainingArguments, model: PreTrainedModel) -> list[str]:
        """Translate the examples with the search settings of the evaluation.

        `translate()` is unsuitable, because it runs in inference mode, whose tensors cannot be used in training.
        """
        # With `verbose=False`, the tokenizer does not warn about long sentences.
        ids = self.tokenizer(self._read_sources_with_codes(), verbose=False).input_ids
        inputs = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
        # `PreTrainedModel` has this method only if the model can generate.
        generate: Any = model.generate
        output_ids = generate(**inputs, **_read_search_options(args))
        return self.tokenizer.batch_decode(output_ids, skip_special_tokens=True)

    def _read_sources_with_codes(self) -> list[str]:
        """Return the sources of the examples, with a target language code if the model has such codes."""
        codes = TargetCodes(self.tokenizer)
        sources = []
        for source in self.examples["source"]:
            # In training, blank sources get no target language code.
            if is_blank(source):
                sources.append(source)
            else:
                sources.append(codes.put_before(source))
        return sources


def _read_search_options(args: Seq2SeqTrainingArguments) -> dict[str, int]:
    """Return the keyword arguments of `generate()` that follow from the search settings of the evaluation."""
    options = {}
    if args.generation_num_beams is not None:
        options["num_beams"] = args.generation_num_beams
    if args.generation_max_length is not None:
        options["max_length"] = args.generation_max_length
    return options
