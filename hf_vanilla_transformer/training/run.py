"""What the verb `train` does: check, load, train, save, average, score, write the card, push."""

import logging
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from datasets import DatasetDict, disable_progress_bars
from transformers import Seq2SeqTrainer, TrainerState, set_seed

from ..data.cleaning import held_out_size
from ..data.pair_arguments import Files, TrainingDataArguments
from ..support.atomic_files import check_free_space, is_disk_error, locked
from ..support.memory_tuning import limit_onednn_cache
from ..support.peak_memory import peak_memory
from ..support.recipes import read_recipe
from ..support.user_errors import InputError, input_errors
from .checkpoints import (
    find_checkpoint,
    is_last_checkpoint,
    remove_checkpoints,
    remove_later_marks,
    restore_path_of_best,
)
from .distillation import Teacher
from .plan import plan
from .recipe_overrides import override_recipe
from .run_arguments import Settings
from .run_checks import check_settings
from .run_report import describe_run, prepare_push, report
from .run_saving import RunStoppedError, how_to_resume, save_arguments, save_average, save_model
from .run_setup import build_trainer, check_has_validation, load_training_pairs, prepare_pairs
from .trainer_callbacks import DivergedError, EarlyStopping, RecordFacts
from .update_batches import read_smallest_device_memory


logger = logging.getLogger(__name__)


def train(
    train_files: Files | None = None,
    output_dir: str | Path | None = None,
    *,
    validation_files: Files | None = None,
    test_files: Files | None = None,
    config: str | None = None,
    dry_run: bool = False,
    **arguments: Any,
) -> Path:
    """Train a Transformer from scratch, or fine-tune one, and evaluate it, as `hf-vanilla-transformer train` does.

    ```python
    train(["train.en", "train.de"], "runs/mine", test_files=["test.en", "test.de"])
    ```

    Without `config`, `preset`, `max_steps` and `model_name_or_path`, [`plan`] chooses what is not given. What the run
    reports, the plan first, is logged at the level INFO.

    Args:
        train_files, validation_files, test_files (`str`, `Path`, or a list of them, *optional*): a table or several,
            two aligned text files, or several such pairs, for each split.
        output_dir (`str` or `Path`, *optional*): the folder of the trained model; by default the recipe's, or
            `trainer_output` without a recipe.
        config (`str`, *optional*): the name of a recipe of the package, or a YAML or JSON file of arguments.
        dry_run (`bool`): whether to stop after the report of what would be trained, and what it would cost.
        **arguments: the other arguments of `hf-vanilla-transformer train`, by their names without dashes. They override
            those of the recipe.

    Returns:
        `Path`: the folder of the trained model.

    Raises:
        OSError, TypeError, ValueError: if an argument or a file is wrong; nothing was trained then.
        KeyboardInterrupt: at Ctrl-C; Terminated, a kind of it, at SIGTERM with `enable_jit_checkpoint`.
        RunStoppedError: if the training stops early, or its outputs cannot be written.
    """
    named: dict[str, Any] = {"train_file": train_files, "validation_file": validation_files, "test_file": test_files}
    named |= {"output_dir": None if output_dir is None else str(output_dir), "dry_run": dry_run or None}
    given = {**{name: value for name, value in named.items() if value is not None}, **arguments}
    if config is not None:
        given = override_recipe(read_recipe(config, Settings), given)
    with prepared(Settings.from_arguments(may_plan=config is None, **given)) as finish_run:
        return finish_run()


def distill(
    teacher: str | Path | Sequence[str | Path],
    train_files: Files | None = None,
    output_dir: str | Path | None = None,
    **arguments: Any,
) -> Path:
    """Train a small model on the translations of a larger one, as `hf-vanilla-transformer distill` does.

    ```python
    distill("runs/mine", ["train.en", "train.de"], "runs/student")
    ```

    Args:
        teacher (`str`, `Path`, or a list of them): the model to learn from, a folder or a name on the Hub; several are
            an ensemble.
        train_files, output_dir, **arguments: as in [`train`], which also says what is returned and raised.
    """
    teachers = [teacher] if isinstance(teacher, (str, Path)) else teacher
    names = [str(name) for name in teachers]
    if not names:
        raise InputError("teacher is empty; give the folder of the model to learn from, or its name on the Hub.")
    return train(train_files, output_dir, teacher=names, **arguments)


@contextmanager
def prepared(settings: Settings) -> Iterator[Callable[[], Path]]:
    """Check the settings, load the data, plan what is not given, and build the model.

    No other process writes the output folder meanwhile.

    Yields:
        The function that trains, saves and evaluates the model, and returns its folder; see [`train`].
    """
    started = time.monotonic()
    settings = settings.for_target_language()
    args, output = settings.args, settings.output
    limit_onednn_cache()  # Before the first matmul, which may be a teacher's.
    if args.process_index > 0:  # The main process reports.
        disable_progress_bars()
        logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)
    checkpoint = checkpoint_of_all_processes(settings) if args.resume_from_checkpoint else None
    resumes = checkpoint is not None and checkpoint.resolve().parent == output.resolve()
    settings = settings._replace(plans=settings.plans and checkpoint is None)
    check_settings(settings, checkpoint, resumes)
    facts = gather_facts(settings, checkpoint)
    with holding(output) if args.process_index == 0 else nullcontext():
        with input_errors():
            pairs = load_training_pairs(args, settings.data)
            teacher = Teacher(settings) if settings.teacher.teacher else None
            settings = settings if teacher is None else teacher.with_tokenizer(settings)
        if settings.plans or settings.plan.dry_run:
            settings, pairs = with_plan(settings, pairs, teacher)
            check_settings(settings, checkpoint, resumes)
            facts = gather_facts(settings, checkpoint)
        if settings.plan.dry_run:
            yield lambda: output
            return
        with input_errors():
            set_seed(settings.args.seed)
        with input_errors():
            check_has_validation(settings, pairs)
            if args.push_to_hub:
                prepare_push(settings)
            distillation: dict[str, str] = {}
            if teacher is not None:  # Which may translate for hours, so after the checks.
                pairs, distillation = teacher.add_to(pairs)
            settings, trainer = build_trainer(settings, pairs, checkpoint, facts)
        # Before the training, because the Trainer changes its arguments. A resumed run has no total duration, because
        # that of the run that wrote the checkpoint is unknown.
        record = {**describe_run(settings), "started": None if checkpoint else started}
        if teacher is not None:
            record["distillation"] = distillation
        if args.process_index == 0 and not resumes:
            remove_checkpoints(output)
        yield partial(finish, settings, checkpoint, pairs, trainer, record)


def with_plan(settings: Settings, pairs: DatasetDict, teacher: Teacher | None) -> tuple[Settings, DatasetDict]:
    """The settings with what the first process plans for these pairs, and the pairs with validation pairs.

    Logs the plan, which is for the pairs with those of a teacher; without one, the costs of the settings as they are.
    """
    given = dict(settings.given)
    with input_errors():
        if settings.plans and "validation" not in pairs and len(pairs["train"]) > 1:
            given["validation_size"] = held_out_size(len(pairs["train"]))
            pairs = prepare_pairs(pairs, TrainingDataArguments(validation_size=given["validation_size"]))
        is_first, expected = settings.args.process_index == 0, pairs if teacher is None else teacher.expected(pairs)
        memory = read_smallest_device_memory(settings.args.device)
        planned: list[Any] = [plan(expected, chooses=settings.plans, memory=memory, **given) if is_first else None]
    (chosen,) = broadcast_object_list(planned)
    for line in chosen.lines():
        logger.info(line)
    if is_first and not settings.plan.dry_run:
        check_free_space(settings.output, chosen.costs.disk, "make room, or name another --output_dir")
    if teacher is not None and is_first:
        logger.info(teacher.describe_work(pairs))
    return Settings.from_arguments(**{**chosen.arguments, **given}).for_target_language(), pairs


def checkpoint_of_all_processes(settings: Settings) -> Path | None:
    """Find the checkpoint to resume from; only the main process writes them, perhaps to a disk of its own."""
    checkpoint = find_checkpoint(str(settings.args.resume_from_checkpoint), settings.output)
    (of_the_first,) = broadcast_object_list([checkpoint])
    if checkpoint != of_the_first:
        raise InputError(
            f"the first process resumes from {of_the_first or 'no checkpoint'}, but this one from "
            f"{checkpoint or 'no checkpoint'}; give all machines one folder, or copy the checkpoint to each."
        )
    return checkpoint


def gather_facts(settings: Settings, checkpoint: Path | None) -> RecordFacts:
    """Facts for the card, with those of the checkpoint.

    Another optimizer or schedule raises ValueError: the Trainer would continue with the checkpoint's.
    """
    facts = RecordFacts() if checkpoint is None else RecordFacts.read_checkpoint(checkpoint)
    base, optimizer = settings.model.model_name_or_path, settings.args.describe_optimizer()
    if base is not None and Path(base).is_dir():
        # Not the path, because checkpoints may be pushed; the dot, because "mine" alone may be a name on the Hub.
        facts.base_model = f"./{Path(base).resolve().name}"
    else:
        facts.base_model = settings.model.model_name_or_path = base or facts.base_model
    if facts.optimizer not in (None, optimizer):
        raise InputError(
            f"{checkpoint} was written with another optimizer ({facts.optimizer}, not {optimizer}); resume with the "
            "same learning_rate, lr_scheduler_type, optim, rate_factor, weight_decay and values of Adam."
        )
    facts.optimizer = optimizer
    return facts


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Make the output folder and keep other processes out of it; what was made is removed again if it stays empty."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            pass  # Raises if the folder is read-only.
        with locked(folder):
            yield
    finally:
        for each in made:
            with suppress(OSError):
                each.rmdir()


def finish(
    settings: Settings, checkpoint: Path | None, pairs: DatasetDict, trainer: Seq2SeqTrainer, record: dict[str, Any]
) -> Path:
    """Train, save and evaluate the model; returns its folder. See [`report`] for the record."""
    output, count = settings.output, settings.model.average_last
    if trainer.is_world_process_zero():
        save_arguments(settings)
    lost_checkpoint = run_updates(trainer, checkpoint)
    record["peak_memory_bytes"] = peak_memory(trainer.args.device)
    save_model(trainer, output)
    if not trainer.is_world_process_zero():
        return output
    if count is not None and lost_checkpoint is not None:
        raise RunStoppedError(
            f"the last checkpoint could not be written ({lost_checkpoint}), so the model in {output} has the weights "
            f"of the last update, not an average. Make room; then {how_to_resume(output)}."
        )
    averaged = [] if count is None else save_average(output, count)
    try:
        report(trainer, settings, pairs, averaged, record)
    except Exception as error:
        if isinstance(error, RunStoppedError) or not is_disk_error(error):
            raise
        raise RunStoppedError(
            f"{error}; the model in {output} is trained, but its scores and card are not complete. Make room; "
            f"then {how_to_resume(output)}."
        ) from error
    return output


def run_updates(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> Exception | None:
    """Train from scratch, or resume from a checkpoint.

    Returns:
        The error of the disk if all updates were made, but the last checkpoint could not be written.

    Raises:
        KeyboardInterrupt: at Ctrl-C or SIGTERM; in the main process with a way to resume.
        RunStoppedError: if the loss diverges, a checkpoint does not fit, or the disk is full.
    """
    output = Path(str(trainer.args.output_dir))
    if checkpoint is not None and is_last_checkpoint(trainer.args, checkpoint):
        # From the last checkpoint the Trainer would make one more update. The model has its weights already.
        logger.info("%s is the end of the run, so no updates are left", checkpoint)
        trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        # No engine was started that would hold the weights or save them.
        trainer.is_deepspeed_enabled = trainer.is_fsdp_enabled = False
        if trainer.is_world_process_zero():
            remove_later_marks(output, trainer.state.global_step)
        restore_path_of_best(trainer.state, output)
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
            trainer._load_best_model()
        return None
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        check_reached_its_end(trainer)
    except DivergedError as error:
        raise RunStoppedError(str(error)) from error
    except KeyboardInterrupt as interrupt:
        if trainer.is_world_process_zero():
            interrupt.args = (how_to_resume(output),)
        raise
    except pickle.UnpicklingError as error:
        raise RunStoppedError(
            f"{checkpoint} holds a pickle that torch does not load, because it may run code; resume from a "
            "checkpoint of your own."
        ) from error
    except (KeyError, ValueError) as error:
        if checkpoint is None or "parameter group" not in str(error):
            raise
        raise RunStoppedError(
            f"{checkpoint} was written with another optimizer ({error}); resume with the same one."
        ) from error
    except Exception as error:
        if not is_disk_error(error):
            raise
        if trainer.state.global_step < trainer.state.max_steps:
            raise RunStoppedError(
                f"a checkpoint could not be written ({error}). Make room; then {how_to_resume(output)}."
            ) from error
        logger.info("the last checkpoint could not be written (%s)", error)
        return error
    return None


def check_reached_its_end(trainer: Seq2SeqTrainer) -> None:
    """Raise RunStoppedError if a training stopped neither after its last update nor by early stopping."""
    state, callbacks = trainer.state, trainer.callback_handler.callbacks
    stopped_early = any(isinstance(each, EarlyStopping) and each.has_stopped for each in callbacks)
    if state.global_step < state.max_steps and not stopped_early:
        raise RunStoppedError(
            f"the training stopped after {state.global_step:,} of {state.max_steps:,} updates; "
            f"{how_to_resume(Path(str(trainer.args.output_dir)))}."
        )
