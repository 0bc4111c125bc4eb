"""One run of `train`: check, prepare, train, save, evaluate."""

import logging
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import broadcast_object_list
from datasets import DatasetDict, disable_progress_bars
from transformers import SchedulerType, Seq2SeqTrainer, TrainerCallback, TrainerControl, TrainerState, set_seed

from ..cli.parser import plain_errors
from ..support.atomic_files import locked
from ..support.disk_errors import is_disk_error
from ..support.process_memory import keep_freed_memory, peak_memory
from .checkpoints import find_checkpoint, is_finished, remove_checkpoints
from .example_translations import ShowExamples
from .paper_arguments import describe_precision
from .run_arguments import TRAINED, Settings, changed_arguments
from .run_checks import check_lengths, check_settings, check_space
from .run_facts import FactsOfTheRun
from .run_outputs import describe_run, how_to_resume, prepare_push, report, save_average, save_model
from .run_setup import load_training_pairs, make_model, make_trainer, set_languages, tokenize
from .trainer_callbacks import DivergedError, ReleaseMemory, SaveEveryEpochs, StopWhenDiverged, early_stopping


# The default of save_total_limit, because the checkpoints of a long run would fill a disk.
CHECKPOINTS_KEPT = 10
# Arguments that a resumed run takes from its checkpoint, whatever the command line says.
OF_THE_CHECKPOINT = {"learning_rate", "rate_factor", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}
OF_THE_CHECKPOINT |= {"preset", "config_overrides", *TRAINED}
# What a shell reports of a process that Ctrl-C ended.
INTERRUPTED = 130
WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)


class Start(NamedTuple):
    """Where a run starts: the checkpoint, whether it is this run's own, and the facts recorded so far."""

    checkpoint: Path | None
    resumes: bool
    facts: FactsOfTheRun


class Plan(TrainerCallback):
    """Prints what is about to be trained, and has a short run log its loss before its end.

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
        print(
            f"training in {describe_precision(args)}: {self.parameters:,} parameters, {self.pairs:,} pairs, "
            f"{state.max_steps:,} updates of {tokens or f'{args.train_batch_size * batches} sentences'}"
        )
        warmup = args.get_warmup_steps(state.max_steps)
        if warmup >= state.max_steps and args.lr_scheduler_type not in WITHOUT_WARMUP:
            print(f"the learning rate rises for {warmup:,} updates, so until the end; see --warmup_steps")


def run(settings: Settings) -> Path:
    """Train, save and evaluate a model; returns its folder."""
    started = time.monotonic()
    with plain_errors():
        start = begin(settings)
    with holding(settings.output) if settings.args.process_index == 0 else nullcontext():
        return run_from(start, settings, started)


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep other processes out of the output folder, which is made; it goes again if it stays empty."""
    with ExitStack() as stack:
        if not folder.exists():
            stack.callback(remove_if_empty, folder)
        with plain_errors():
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
        yield


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def run_from(start: Start, settings: Settings, started: float) -> Path:
    """The rest of a run, in a folder that no other process writes."""
    with plain_errors():
        # Before the training, because the Trainer changes its arguments.
        record = describe_run(settings)
        pairs, trainer = prepare(settings, start)
    if trainer.is_world_process_zero() and not start.resumes:
        remove_checkpoints(settings.output)
    train(trainer, start.checkpoint)
    record["peak_memory_bytes"] = peak_memory(trainer.args.device)
    save_model(trainer, settings.output)
    if trainer.is_world_process_zero():
        if settings.model.average_last is not None:
            save_average(settings.output, settings.model.average_last, trainer.state.global_step)
        try:
            # The duration of the run that wrote the checkpoint is unknown.
            report(trainer, settings, pairs, record, started=None if start.checkpoint else started)
        except Exception as error:
            if not is_disk_error(error):
                raise
            sys.exit(
                f"error: {error}; the model in {settings.output} is trained, but its scores and card are not complete. "
                f"Make room; then {how_to_resume(settings.output)}."
            )
    return settings.output


def begin(settings: Settings) -> Start:
    """Find the checkpoint to resume from, and check the settings before any work.

    Raises:
        OSError, ValueError: see `find_checkpoint` and `check_settings`.
    """
    model_args, args = settings.model, settings.args
    if args.process_index > 0:
        leave_output_to_main_process()
    set_seed(args.seed)
    wanted = args.resume_from_checkpoint
    checkpoint = find_checkpoint(wanted, settings.output) if wanted else None
    if wanted:
        check_same_checkpoint(checkpoint)
    resumes = checkpoint is not None and checkpoint.resolve().parent == settings.output.resolve()
    check_settings(settings, checkpoint, resumes)
    facts = FactsOfTheRun.of_checkpoint(checkpoint) if checkpoint else FactsOfTheRun()
    facts.base_model = model_args.model_name_or_path = located(model_args.model_name_or_path) or facts.base_model
    facts.optimizer = facts.optimizer or args.describe_optimizer()
    changes = facts.replace_settings(
        {**changed_arguments(model_args, settings.data, args), "processes": args.world_size}
    )
    if args.process_index == 0:
        print_changes(checkpoint, changes)
        print_unused(settings)
    return Start(checkpoint, resumes, facts)


def leave_output_to_main_process() -> None:
    disable_progress_bars()
    logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)


def check_same_checkpoint(checkpoint: Path | None) -> None:
    """Check that all processes resume from one checkpoint. Only the first writes them, perhaps to a disk of its own.

    Raises:
        ValueError: if this process found another checkpoint than the first one.
    """
    (of_the_first,) = broadcast_object_list([checkpoint])
    if checkpoint != of_the_first:
        raise ValueError(
            f"the first process resumes from {of_the_first or 'no checkpoint'}, but this one from "
            f"{checkpoint or 'no checkpoint'}; give all machines one folder, or copy the checkpoint to each."
        )


def located(model: str | None) -> str | None:
    """A model's name on the Hub, or the absolute path of its folder, which cannot be taken for a name."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def print_changes(checkpoint: Path | None, changes: dict[str, str]) -> None:
    """Print which settings differ from a checkpoint's: those that are new, and those that the checkpoint overrides."""
    kept = [name for name in changes if name in OF_THE_CHECKPOINT]
    new = [words for name, words in changes.items() if name not in kept]
    if new:
        print(f"{checkpoint} was written with other settings; now: {'; '.join(new)}")
    if kept:
        print(f"{', '.join(kept)}: without effect, because {checkpoint} has its own")


def print_unused(settings: Settings) -> None:
    """Print which arguments have no effect in combination with the others."""
    model_args, args = settings.model, settings.args
    of_tokenizer = [name for name in TRAINED if name in changed_arguments(model_args)]
    if model_args.model_name_or_path is not None and of_tokenizer:
        print(f"{', '.join(of_tokenizer)}: without effect, because {model_args.model_name_or_path} has a tokenizer")
    if args.eval_strategy != "no":
        return
    given = {name: getattr(args, name) for name in ("eval_steps", "metric_for_best_model", "predict_with_generate")}
    given |= {"validation_file": settings.data.validation_file}
    # The Trainer sets the metric, too.
    unused = [name for name, value in given.items() if value and (name, value) != ("metric_for_best_model", "loss")]
    if unused:
        print(f"without effect during training: {', '.join(unused)}; --eval_strategy steps or epoch adds evaluations")


def prepare(settings: Settings, start: Start) -> tuple[DatasetDict, Seq2SeqTrainer]:
    """Load the pairs and build the Trainer; with --push_to_hub, create the repository first.

    Raises:
        OSError, ValueError: if something is missing or does not fit together.
    """
    model_args, args = settings.model, settings.args
    if args.save_total_limit is None:
        args.save_total_limit = max(CHECKPOINTS_KEPT, (model_args.average_last or 0) + 1)
    # Before large allocations, which the allocator would return to the OS.
    keeps_freed_memory = args.device.type == "cpu" and keep_freed_memory()
    pairs = load_training_pairs(args, settings.data)
    if args.push_to_hub:
        prepare_push(settings)
    tokenizer, model = make_model(model_args, pairs, start.checkpoint)
    model.generation_config.update(**settings.decoding.generate_kwargs())
    data = tokenize(args, model_args, pairs, tokenizer)
    set_languages(tokenizer, settings.data.languages())
    check_lengths(model.config, data)
    trainer = make_trainer(args, tokenizer, model, data, settings.scoring.options(pairs["train"]))
    callbacks = [start.facts, Plan(model.num_parameters(), len(data["train"])), StopWhenDiverged()]
    if args.eval_strategy != "no":
        callbacks.append(ShowExamples(trainer, tokenizer, pairs["validation"]))
    if args.save_every_epochs is not None:
        callbacks.append(SaveEveryEpochs(args.save_every_epochs))
    if keeps_freed_memory:
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(early_stopping(args.early_stopping_patience, start.checkpoint))
    for callback in callbacks:
        trainer.add_callback(callback)
    if args.process_index == 0:
        check_space(trainer, settings.output)
    return pairs, trainer


def train(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> None:
    """Train from scratch, or resume from a checkpoint."""
    if checkpoint is not None and is_finished(trainer.args, checkpoint):
        if trainer.is_world_process_zero():
            print(f"{checkpoint} is the end of the run, so no updates are left")
        # From the last checkpoint the Trainer would make one more update.
        trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except DivergedError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        if not trainer.is_world_process_zero():
            sys.exit(INTERRUPTED)
        raise KeyboardInterrupt(how_to_resume(Path(str(trainer.args.output_dir)))) from None
    except pickle.UnpicklingError:
        sys.exit(
            f"error: {checkpoint} holds a pickle that torch does not load, because it may run code; resume from a "
            "checkpoint of your own."
        )
    except (KeyError, ValueError) as error:
        if "parameter group" not in str(error) and not is_raised_by_optimizer(error):
            raise
        if checkpoint is None:
            sys.exit(f"error: {error}")
        sys.exit(
            f"error: {checkpoint} was written with another optimizer ({error}); resume with the same learning_rate, "
            "lr_scheduler_type, optim and weight_decay."
        )
    except Exception as error:
        if not is_disk_error(error):
            raise
        output, state = Path(str(trainer.args.output_dir)), trainer.state
        if state.global_step < state.max_steps:
            sys.exit(f"error: a checkpoint could not be written ({error}). Make room; then {how_to_resume(output)}.")
        print(f"the last checkpoint could not be written ({error})")


def is_raised_by_optimizer(error: Exception) -> bool:
    """Whether torch.optim raised an error, for example because it loads the state of another optimizer."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return innermost[0].f_globals["__name__"].startswith("torch.optim.")
