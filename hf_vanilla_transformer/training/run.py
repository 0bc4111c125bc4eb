"""What the verb `train` does: check, load, train, save, average, score, write the card, push."""

import logging
import pickle
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from datasets import DatasetDict
from transformers import Seq2SeqTrainer

from ..data.pair_arguments import Files
from ..evaluation.curve_files import write_curve
from ..evaluation.evaluate import describe_scores
from ..hub.staged_folder import staged
from ..support.atomic_files import locked
from ..support.disk_errors import is_disk_error
from ..support.process_memory import keep_freed_memory, peak_memory
from ..support.recipes import read_recipe
from .checkpoints import is_finished, remove_checkpoints
from .run_arguments import Settings
from .run_card import save_card
from .run_checks import check_lengths, check_space
from .run_facts import FactsOfTheRun
from .run_push import prepare_push, push
from .run_results import describe_run, save_results
from .run_saving import RunStoppedError, how_to_resume, save_average, save_model
from .run_scoring import compare_average, evaluate_saved
from .run_setup import load_training_pairs, make_model, make_trainer, set_languages, tokenize
from .run_start import Start, begin
from .trainer_callbacks import (
    DivergedError,
    LogRunSizes,
    ReleaseMemory,
    StopWhenDiverged,
    early_stopping,
)
from .validation_examples import LogExamples


# The default of save_total_limit, because the checkpoints of a long run would fill a disk.
CHECKPOINTS_KEPT = 10

logger = logging.getLogger(__name__)


def train(
    train_files: Files | None = None,
    output_dir: str | Path | None = None,
    *,
    validation_files: Files | None = None,
    test_files: Files | None = None,
    config: str | None = None,
    **arguments: Any,
) -> Path:
    """Train a Transformer from scratch, or fine-tune one, and evaluate it, as `hf-vanilla-transformer train` does.

    ```python
    train(["train.en", "train.de"], "runs/mine", test_files=["test.en", "test.de"], max_steps=10_000)
    ```

    What the run reports is logged at the level INFO.

    Args:
        train_files, validation_files, test_files (`str`, `Path`, or a list of them, *optional*): a table or several, or
            two aligned text files, for each split.
        output_dir (`str` or `Path`, *optional*): the folder of the trained model; by default the recipe's, or
            `trainer_output` without a recipe.
        config (`str`, *optional*): the name of a recipe of the package, or a YAML or JSON file of arguments.
        **arguments: the other arguments of `hf-vanilla-transformer train`, by their names without dashes. They override
            those of the recipe.

    Returns:
        `Path`: the folder of the trained model.

    Raises:
        OSError, TypeError, ValueError: if an argument or a file is wrong; nothing was trained then.
        RunStoppedError: if the training stops early, or its outputs cannot be written.
    """
    files = {"train_file": train_files, "validation_file": validation_files, "test_file": test_files}
    given: dict[str, Any] = {name: each for name, each in files.items() if each is not None}
    if output_dir is not None:
        given["output_dir"] = str(output_dir)
    recipe = {} if config is None else read_recipe(config)
    with prepared(Settings.from_arguments(**{**recipe, **given, **arguments})) as run:
        return run.finish()


@contextmanager
def prepared(settings: Settings) -> Iterator["Run"]:
    """A run whose settings are checked and whose data and model are loaded; no other process writes its folder.

    Raises:
        OSError, ValueError: if something is missing or does not fit together.
    """
    started = time.monotonic()
    settings = settings.for_target_language()
    start = begin(settings)
    with holding(settings.output) if settings.args.process_index == 0 else nullcontext():
        # Before the training, because the Trainer changes its arguments.
        record = describe_run(settings)
        pairs, trainer = build_trainer(settings, start)
        # The duration of the run that wrote the checkpoint is unknown.
        yield Run(settings, start, pairs, trainer, record, None if start.checkpoint else started)


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep other processes out of the output folder, which is made; it goes again if it stays empty."""
    with ExitStack() as stack:
        if not folder.exists():
            stack.callback(remove_if_empty, folder)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder))
        yield


def remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def build_trainer(settings: Settings, start: Start) -> tuple[DatasetDict, Seq2SeqTrainer]:
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
    callbacks = [start.facts, LogRunSizes(model.num_parameters(), len(data["train"])), StopWhenDiverged()]
    if args.eval_strategy != "no":
        callbacks.append(LogExamples(trainer, tokenizer, pairs["validation"]))
    if keeps_freed_memory:
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(early_stopping(args.early_stopping_patience, start.checkpoint))
    for callback in callbacks:
        trainer.add_callback(callback)
    if args.process_index == 0:
        check_space(trainer, settings.output)
    return pairs, trainer


class Run(NamedTuple):
    """A run before its first update.

    Args:
        settings (`Settings`): all arguments.
        start (`Start`): where it starts.
        pairs (`DatasetDict`): sentence pairs by split.
        trainer (`Seq2SeqTrainer`): with model, token ids and callbacks.
        record (`dict`): what `describe_run` returned, for the results file.
        started (`float`, *optional*): time of the start by `time.monotonic()`; None if the run was resumed.
    """

    settings: Settings
    start: Start
    pairs: DatasetDict
    trainer: Seq2SeqTrainer
    record: dict[str, Any]
    started: float | None

    def finish(self) -> Path:
        """Train, save and evaluate the model; returns its folder.

        Raises:
            RunStoppedError: if the training stops early, or its outputs cannot be written.
        """
        settings, trainer, output = self.settings, self.trainer, self.settings.output
        if trainer.is_world_process_zero() and not self.start.resumes:
            remove_checkpoints(output)
        run_updates(trainer, self.start.checkpoint)
        self.record["peak_memory_bytes"] = peak_memory(trainer.args.device)
        save_model(trainer, output)
        if trainer.is_world_process_zero():
            if settings.model.average_last is not None:
                save_average(output, settings.model.average_last, trainer.state.global_step)
            try:
                report(trainer, settings, self.pairs, self.record, self.started)
            except RunStoppedError:
                raise
            except Exception as error:
                if not is_disk_error(error):
                    raise
                raise RunStoppedError(
                    f"{error}; the model in {output} is trained, but its scores and card are not complete. Make room; "
                    f"then {how_to_resume(output)}."
                ) from error
        return output


def run_updates(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> None:
    """Train from scratch, or resume from a checkpoint.

    Raises:
        KeyboardInterrupt: in the main process, with a way to resume.
        RunStoppedError: if the loss diverges, a checkpoint does not fit, or the disk is full.
    """
    if checkpoint is not None and is_finished(trainer.args, checkpoint):
        if trainer.is_world_process_zero():
            logger.info("%s is the end of the run, so no updates are left", checkpoint)
        # From the last checkpoint the Trainer would make one more update.
        trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except DivergedError as error:
        raise RunStoppedError(str(error)) from error
    except KeyboardInterrupt:
        if not trainer.is_world_process_zero():
            raise
        raise KeyboardInterrupt(how_to_resume(Path(str(trainer.args.output_dir)))) from None
    except pickle.UnpicklingError as error:
        raise RunStoppedError(
            f"{checkpoint} holds a pickle that torch does not load, because it may run code; resume from a "
            "checkpoint of your own."
        ) from error
    except (KeyError, ValueError) as error:
        if "parameter group" not in str(error) and not is_raised_by_optimizer(error):
            raise
        if checkpoint is None:
            raise RunStoppedError(str(error)) from error
        raise RunStoppedError(
            f"{checkpoint} was written with another optimizer ({error}); resume with the same learning_rate, "
            "lr_scheduler_type, optim and weight_decay."
        ) from error
    except Exception as error:
        if not is_disk_error(error):
            raise
        output, state = Path(str(trainer.args.output_dir)), trainer.state
        if state.global_step < state.max_steps:
            raise RunStoppedError(
                f"a checkpoint could not be written ({error}). Make room; then {how_to_resume(output)}."
            ) from error
        logger.info("the last checkpoint could not be written (%s)", error)


def is_raised_by_optimizer(error: Exception) -> bool:
    """Whether torch.optim raised an error, for example because it loads the state of another optimizer."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return innermost[0].f_globals["__name__"].startswith("torch.optim.")


def report(
    trainer: Seq2SeqTrainer, settings: Settings, pairs: DatasetDict, record: dict[str, Any], started: float | None
) -> None:
    """Evaluate the saved model, write curve, scores, card and results, log the scores, and push if asked.

    Args:
        record: what `describe_run` returned, for the results file.
        started: time of the start by `time.monotonic()`; None if the run was resumed.
    """
    # Not `start.facts`: restore_callback_states_from_checkpoint replaces callbacks by copies.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, FactsOfTheRun))
    with staged(settings.output) as folder:
        curve = write_curve(folder, trainer.state.log_history)
    compares = settings.model.average_last is not None and "validation" in pairs
    average_scores = compare_average(settings, pairs, trainer.state.global_step) if compares else {}
    scores = evaluate_saved("test", settings, pairs)
    save_card(trainer, settings, pairs, scores, facts, average_scores)
    if scores is not None:
        for line in describe_scores(scores):
            logger.info(line)
    logger.info("the model is in %s", settings.output)
    if settings.args.results:
        record["data"] = {split: settings.data.describe(split) for split in pairs}
        validation = average_scores.get("average") or evaluate_saved("validation", settings, pairs)
        record["scores"] = {"validation": validation, "test": scores}
        if average_scores:
            record["scores"]["validation_of_last_checkpoint"] = average_scores["last_checkpoint"]
        record["total_seconds"] = None if started is None else time.monotonic() - started
        save_results(settings.args.results, trainer, facts, curve, record)
    if settings.args.push_to_hub:
        push(settings, trainer.state.global_step, scores)
