"""Train a model with `train` or `distill`. These functions take all steps, from the arguments to the evaluation.

A run checks its settings, loads the sentence pairs, chooses what was not given (the plan), builds a Trainer, trains,
and finally evaluates and publishes the model.
"""

import copy
import logging
import pickle
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from .after_training import TrainedRun, finish_run
from .checkpoints import (
    find_checkpoint,
    is_last_checkpoint,
    remove_checkpoints,
    remove_later_marks,
    restore_path_of_best,
)
from .distillation import Teacher
from .plan import Plan, plan
from .pushing import prepare_push
from .recipe_overrides import override_recipe
from .results_file import RunDescription, describe_run
from .run_arguments import RunArguments, Settings
from .run_checks import check_choices, check_start, is_in_folder
from .run_saving import RunStoppedError, describe_how_to_resume, save_arguments, save_model
from .run_setup import set_up_training
from .trainer_callbacks import DivergedError, EarlyStopping, RecordFacts
from .training_pairs import check_has_validation, load_training_pairs, prepare_pairs
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
    """Train a Transformer from scratch or fine-tune one, and evaluate it, like `hf-vanilla-transformer train`.

    ```python
    train(["train.en", "train.de"], "runs/mine", test_files=["test.en", "test.de"])
    ```

    If you pass none of `config`, `preset`, `max_steps` and `model_name_or_path`, [`plan`] chooses all arguments that
    you do not pass. The plan and the progress of the run are logged at level INFO.

    Args:
        train_files, validation_files, test_files (`str`, `Path`, or a list of them, *optional*): the files of each
            split: one or several tables, two aligned text files, or several pairs of such text files.
        output_dir (`str` or `Path`, *optional*): the folder of the trained model. The default is the recipe's folder,
            or `trainer_output` without a recipe.
        config (`str`, *optional*): the name of a bundled recipe, or a YAML or JSON file of arguments.
        dry_run (`bool`): whether to stop after logging what would be trained and what it would cost.
        **arguments: the other arguments of `hf-vanilla-transformer train`, by their names without dashes. They override
            the recipe's arguments.

    Returns:
        `Path`: the folder of the trained model.

    Raises:
        OSError, TypeError, ValueError: if an argument or a file is wrong. Nothing has been trained in this case.
        KeyboardInterrupt: at Ctrl-C. With `enable_jit_checkpoint`, its subclass Terminated at SIGTERM.
        RunStoppedError: if the training stops early, or if its outputs cannot be written.
    """
    given_arguments: dict[str, Any] = _collect_given_files(train_files, validation_files, test_files)
    # Arguments that are not given must not be in this dict, because a recipe or a plan may set them.
    if output_dir is not None:
        given_arguments["output_dir"] = str(output_dir)
    if dry_run:
        given_arguments["dry_run"] = True
    given_arguments.update(arguments)
    if config is not None:
        recipe = read_recipe(config, Settings)
        given_arguments = override_recipe(recipe, given_arguments)
    settings = Settings.from_arguments(allow_plan=config is None, **given_arguments)
    return run(settings)


def _collect_given_files(
    train_files: Files | None, validation_files: Files | None, test_files: Files | None
) -> dict[str, object]:
    """Return the files of the splits that are not None, by the names of their arguments."""
    files_by_argument = {"train_file": train_files, "validation_file": validation_files, "test_file": test_files}
    given_files: dict[str, object] = {}
    for argument, files in files_by_argument.items():
        if files is not None:
            given_files[argument] = files
    return given_files


def distill(
    teacher: str | Path | Sequence[str | Path],
    train_files: Files | None = None,
    output_dir: str | Path | None = None,
    **arguments: Any,
) -> Path:
    """Train a small model on the translations of a larger one, like `hf-vanilla-transformer distill`.

    ```python
    distill("runs/mine", ["train.en", "train.de"], "runs/student")
    ```

    Args:
        teacher (`str`, `Path`, or a list of them): the model to learn from: a folder or a name on the Hub. Several
            models are used as an ensemble.
        train_files, output_dir, **arguments: arguments of [`train`], which also describes the result and the errors.
    """
    teachers = [teacher] if isinstance(teacher, (str, Path)) else teacher
    names = [str(name) for name in teachers]
    if not names:
        raise InputError("teacher is empty; give the folder of the model to learn from, or its name on the Hub.")
    return train(train_files, output_dir, teacher=names, **arguments)


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: its settings, its sentence pairs and, for distillation, the teacher.

    Args:
        settings: the run's settings.
        pairs: the sentence pairs of all splits.
        teacher: the model whose translations are added to the pairs, or None if the run does not distill.
    """

    settings: Settings
    pairs: DatasetDict
    teacher: Teacher | None


@dataclass(frozen=True)
class BuiltRun:
    """A run that is ready to train: all settings are chosen, and the Trainer is built.

    Args:
        settings: the run's settings, with the final arguments of its Trainer.
        pairs: the sentence pairs of all splits, including a teacher's translations.
        trainer: the Trainer with its model.
        description: facts about the run for its results file.
    """

    settings: Settings
    pairs: DatasetDict
    trainer: Seq2SeqTrainer
    description: RunDescription


def run(settings: Settings) -> Path:
    """Train, save and evaluate a model, and return the output folder. With `dry_run`, only log the plan and its costs.

    See [`train`] for the errors.
    """
    started = time.monotonic()
    set_up_process(settings.args)

    checkpoint = find_common_checkpoint(settings)
    earlier_facts = _read_earlier_facts(checkpoint)
    unplanned_settings = _prepare_settings(settings, is_resumed=checkpoint is not None)
    # Loading the pairs may take long, so everything that can be checked is checked before.
    check_start(unplanned_settings, checkpoint)
    check_same_optimizer(unplanned_settings, checkpoint, earlier_facts)

    if unplanned_settings.preview.dry_run:
        plan_inputs(load_inputs(unplanned_settings))
        return unplanned_settings.output_folder

    with reserved_output_folder(unplanned_settings):
        planned_inputs = plan_inputs(load_inputs(unplanned_settings))
        built = build_run(planned_inputs, checkpoint, earlier_facts, started)
        # This comes so late that the old checkpoints remain if an error occurs above.
        _remove_checkpoints_of_replaced_run(unplanned_settings, checkpoint)
        train_and_finish(built, checkpoint)
    return unplanned_settings.output_folder


def _read_earlier_facts(checkpoint: Path | None) -> RecordFacts:
    """Return the facts about the earlier part of a resumed run; empty ones if the run starts from scratch."""
    if checkpoint is None:
        return RecordFacts()
    return RecordFacts.read_checkpoint(checkpoint)


def _prepare_settings(settings: Settings, is_resumed: bool) -> Settings:
    """Return the settings for the target language, before a plan completes them.

    A resumed run keeps the settings of its earlier part, so it needs no plan.
    """
    needs_plan = settings.needs_plan and not is_resumed
    return settings.for_target_language()._replace(needs_plan=needs_plan)


def _remove_checkpoints_of_replaced_run(settings: Settings, checkpoint: Path | None) -> None:
    """Remove an earlier run's checkpoints from the output folder, unless this run resumes from one of them.

    Only the main process removes them.
    """
    is_main_process = settings.args.process_index == 0
    if is_main_process and not is_in_folder(checkpoint, settings.output_folder):
        remove_checkpoints(settings.output_folder)


def set_up_process(args: RunArguments) -> None:
    """Limit this process's memory and, unless it is the main process, hide its progress bars and its log messages.

    Error messages are still logged.
    """
    # The limit takes effect only if it is set before the first matmul, which may be a teacher's.
    limit_onednn_cache()
    if args.process_index > 0:
        disable_progress_bars()
        logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)


def find_common_checkpoint(settings: Settings) -> Path | None:
    """Find the checkpoint that all processes resume from. Return None if the run starts from scratch.

    Only the main process writes checkpoints, perhaps to a disk that other machines cannot read. A process that does not
    find the main process's checkpoint raises InputError.
    """
    if not settings.args.resume_from_checkpoint:
        return None
    checkpoint = find_checkpoint(str(settings.args.resume_from_checkpoint), settings.output_folder)
    # Every process gets the path that the main process has found.
    (checkpoint_of_main_process,) = broadcast_object_list([checkpoint])
    if checkpoint != checkpoint_of_main_process:
        name_in_main_process = checkpoint_of_main_process or "no checkpoint"
        name_in_this_process = checkpoint or "no checkpoint"
        raise InputError(
            f"the first process resumes from {name_in_main_process}, but this one from {name_in_this_process}; give "
            "all machines one folder, or copy the checkpoint to each."
        )
    return checkpoint


def check_same_optimizer(settings: Settings, checkpoint: Path | None, earlier_facts: RecordFacts) -> None:
    """Raise InputError if a checkpoint was written with a different optimizer or learning rate schedule.

    Without this check, the Trainer would silently continue with the checkpoint's optimizer and schedule.
    """
    optimizer = settings.args.describe_optimizer()
    # The earlier optimizer is unknown if the run starts from scratch.
    if earlier_facts.optimizer is not None and earlier_facts.optimizer != optimizer:
        raise InputError(
            f"{checkpoint} was written with another optimizer ({earlier_facts.optimizer}, not {optimizer}); resume "
            "with the same learning_rate, lr_scheduler_type, optim, rate_factor, weight_decay and values of Adam."
        )


@contextmanager
def reserved_output_folder(settings: Settings) -> Iterator[None]:
    """Create the output folder, and lock it against other runs for the duration of the block.

    Only the main process does this. At the end of the block, new folders are removed if they are still empty.
    """
    if settings.args.process_index != 0:
        yield
        return
    output = settings.output_folder
    new_folders = _find_missing_folders(output)
    output.mkdir(parents=True, exist_ok=True)
    try:
        _check_is_writable(output)
        with locked(output):
            yield
    finally:
        _remove_empty_folders(new_folders)


def _find_missing_folders(folder: Path) -> list[Path]:
    """Return those of a folder and its parents that do not exist, the innermost first: "runs/mine", then "runs"."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _check_is_writable(folder: Path) -> None:
    """Raise OSError if no files can be created in a folder."""
    with tempfile.TemporaryDirectory(dir=folder):
        pass


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove those of the folders that are empty. A folder inside a different one must come before it."""
    for folder in folders:
        # For a folder that is not empty, `rmdir` raises OSError, and the folder remains.
        with suppress(OSError):
            folder.rmdir()


def load_inputs(settings: Settings) -> RunInputs:
    """Load the sentence pairs and, for distillation, prepare the teacher.

    With a teacher, the returned settings use the teacher's tokenizer if it is suitable and the user has not chosen a
    tokenizer.
    """
    with input_errors():
        pairs = load_training_pairs(settings.args, settings.data)
        if not settings.distillation.teacher:
            return RunInputs(settings, pairs, None)
        teacher = Teacher(settings)
        return RunInputs(teacher.with_tokenizer(settings), pairs, teacher)


def plan_inputs(inputs: RunInputs) -> RunInputs:
    """Choose the settings that the user has not given, and log them with the estimated costs of the run.

    Some training pairs are held out if there are no validation pairs. If the run needs no plan, the inputs are
    returned unchanged, but with `dry_run`, the costs are still logged.
    """
    needs_plan = inputs.settings.needs_plan
    is_dry_run = inputs.settings.preview.dry_run
    if not needs_plan and not is_dry_run:
        return inputs

    complete_inputs = inputs
    if needs_plan:
        # This comes before the plan, which depends on the numbers of pairs in both splits.
        with input_errors():
            complete_inputs = hold_out_validation_pairs(inputs)
    common_plan = make_common_plan(complete_inputs)
    log_plan(common_plan, complete_inputs)
    planned_settings = _apply_plan(common_plan, complete_inputs.settings)
    return replace(complete_inputs, settings=planned_settings)


def _apply_plan(common_plan: Plan, settings: Settings) -> Settings:
    """Return the settings of the plan and of the given arguments, which win. Raise InputError if they are wrong."""
    # The plan has no arguments if the run needs no plan.
    arguments = {**common_plan.arguments, **settings.given_arguments}
    planned_settings = Settings.from_arguments(**arguments).for_target_language()
    check_choices(planned_settings)
    return planned_settings


def log_plan(common_plan: Plan, inputs: RunInputs) -> None:
    """Log the plan of a run and the teacher's work, and check that the disk has enough space.

    Only the main process shows its log messages and checks the space. With `dry_run`, the space is not checked. With a
    teacher, the main process also translates up to 100 sentences, because the log says how long the teacher's work will
    take.

    Raises OSError if the disk has too little space.
    """
    settings = inputs.settings
    # Every process may log, but `set_up_process` has hidden the messages of all except the main process.
    for line in common_plan.lines():
        logger.info(line)
    if settings.args.process_index != 0:
        return
    # The plan has been logged before this check, so that the user sees the costs even if the check raises an error.
    if not settings.preview.dry_run:
        check_free_space(settings.output_folder, common_plan.costs.disk, "make room, or name another --output_dir")
    if inputs.teacher is not None:
        # `describe_work` returns a text, and translates a sample for it to measure the teacher's speed. This takes
        # longer than the check above, so it comes last.
        logger.info(inputs.teacher.describe_work(inputs.pairs))


def hold_out_validation_pairs(inputs: RunInputs) -> RunInputs:
    """Hold out some training pairs for validation if there are no validation pairs.

    The number of pairs that are held out becomes a given argument, so that it is saved with the run and a resumed run
    holds out the same pairs. A single training pair is not held out.
    """
    training_pairs = len(inputs.pairs["train"])
    if "validation" in inputs.pairs or training_pairs <= 1:
        return inputs
    validation_size = held_out_size(training_pairs)
    # Cleaning took place when the pairs were loaded. With these arguments, pairs are only held out.
    pairs = prepare_pairs(inputs.pairs, TrainingDataArguments(validation_size=validation_size))
    given_arguments = {**inputs.settings.given_arguments, "validation_size": validation_size}
    settings = inputs.settings._replace(given_arguments=given_arguments)
    return replace(inputs, settings=settings, pairs=pairs)


def make_common_plan(inputs: RunInputs) -> Plan:
    """Make the plan of a run in the main process, and return it in every process.

    Every process must call this function, because the processes wait for each other in two steps. Both must stay
    outside of the block that only the main process runs. Otherwise the main process would wait forever.
    """
    settings = inputs.settings
    with input_errors():
        expected_pairs = _expect_translations(inputs)
        # Wait 1: the processes exchange the memory of their devices. The result is None on CPUs.
        memory = read_smallest_device_memory(settings.args.device)
        plan_of_main_process = None
        if settings.args.process_index == 0:
            # If this raises an error, the launcher, such as torchrun, ends the processes that wait below. With
            # `chooses=False`, the plan contains only the costs.
            plan_of_main_process = plan(
                expected_pairs, chooses=settings.needs_plan, memory=memory, **settings.given_arguments
            )
    # Wait 2: every process gets the plan of the main process.
    (common_plan,) = broadcast_object_list([plan_of_main_process])
    return common_plan


def _expect_translations(inputs: RunInputs) -> DatasetDict:
    """Return the pairs of a run with stand-ins for the teacher's future translations, if there is a teacher."""
    if inputs.teacher is None:
        return inputs.pairs
    return inputs.teacher.make_expected_pairs(inputs.pairs)


def build_run(inputs: RunInputs, checkpoint: Path | None, earlier_facts: RecordFacts, started: float) -> BuiltRun:
    """Make the last checks, add the translations of the teacher if there is a teacher, and build the Trainer of a run.

    Args:
        inputs: the pairs, the teacher, and the settings, which a plan has completed if one is needed.
        checkpoint: the checkpoint to resume from, or None.
        earlier_facts: facts about the run so far, which were read from the checkpoint.
        started: the value of `time.monotonic()` at the start of the run.
    """
    facts = update_facts(earlier_facts, inputs.settings)
    settings_with_base = name_base_model(inputs.settings, facts)
    with input_errors():
        # `set_up_training` draws the weights of a new model.
        set_seed(settings_with_base.args.seed)
        # All checks come before the teacher translates, because this may take hours.
        check_has_validation(settings_with_base, inputs.pairs)
        settings = _name_repository(settings_with_base)
        distilled = _add_translations(inputs)
        final_settings, trainer = set_up_training(settings, distilled.pairs, checkpoint, facts)

    # The total duration of a run that resumes is unknown, so its description has no start.
    described_start = started if checkpoint is None else None
    description = describe_run(final_settings, distilled.card_rows, described_start)
    return BuiltRun(final_settings, distilled.pairs, trainer, description)


def _name_repository(settings: Settings) -> Settings:
    """Prepare the repository on the Hub if the run pushes, and return settings with its name.

    In the main process, the name may include the user, as in "user/name".
    """
    if not settings.args.push_to_hub:
        return settings
    repository = prepare_push(settings)
    return settings.change_training(hub_model_id=repository)


class _DistilledPairs(NamedTuple):
    """The sentence pairs to train on, with the translations of the teacher if there is a teacher.

    Args:
        pairs: the sentence pairs of all splits.
        card_rows: rows about the distillation for the table in the model card, or None without a teacher.
    """

    pairs: DatasetDict
    card_rows: dict[str, str] | None


def _add_translations(inputs: RunInputs) -> _DistilledPairs:
    """Return the pairs of a run with the translations of the teacher. Without a teacher, they stay as they are."""
    if inputs.teacher is None:
        return _DistilledPairs(inputs.pairs, None)
    pairs, card_rows = inputs.teacher.add_translations(inputs.pairs)
    return _DistilledPairs(pairs, card_rows)


def name_base_model(settings: Settings, facts: RecordFacts) -> Settings:
    """Return settings that name the base model, i.e. the model that is fine-tuned.

    If the settings do not name a base model, a run that resumes takes the name from the facts, which come from its
    checkpoint.
    """
    if settings.model.model_name_or_path is not None or facts.base_model is None:
        return settings
    # `dataclasses.replace` would check the arguments again, and would reject this combination of arguments.
    model_args_with_base = copy.copy(settings.model)
    model_args_with_base.model_name_or_path = facts.base_model
    return settings._replace(model=model_args_with_base)


def update_facts(earlier_facts: RecordFacts, settings: Settings) -> RecordFacts:
    """Return a checkpoint's facts, updated with the base model and the optimizer of this run."""
    given_base_model = settings.model.model_name_or_path
    if given_base_model is None:
        base_model = earlier_facts.base_model
    elif Path(given_base_model).is_dir():
        # Checkpoints may be pushed, and the full path would disclose folder names of this machine. The dot is needed,
        # because a name without it could be a name on the Hub.
        base_model = f"./{Path(given_base_model).resolve().name}"
    else:
        base_model = given_base_model
    return replace(earlier_facts, base_model=base_model, optimizer=settings.args.describe_optimizer())


def train_and_finish(built: BuiltRun, checkpoint: Path | None) -> None:
    """Train a run's model and save it. The main process then evaluates the model and takes all further steps."""
    trained = train_and_save(built, checkpoint)
    if not built.trainer.is_world_process_zero():
        return
    try:
        finish_run(trained)
    except Exception as error:
        # The message of a RunStoppedError already says what to do, even if its cause is a full disk. Errors that have
        # nothing to do with the disk are unexpected.
        if isinstance(error, RunStoppedError) or not is_disk_error(error):
            raise
        output = built.settings.output_folder
        raise RunStoppedError(
            f"{error}; the model in {output} is trained, but its scores and card are not complete. Make room; "
            f"then {describe_how_to_resume(output)}."
        ) from error


def train_and_save(built: BuiltRun, checkpoint: Path | None) -> TrainedRun:
    """Train a run's model, starting from scratch or from a checkpoint, and save the model.

    Raises RunStoppedError in the main process if the last checkpoint is needed for an average, but could not be
    written. The model is saved in this case, too.
    """
    trainer = built.trainer
    settings = built.settings
    is_main_process = trainer.is_world_process_zero()
    if is_main_process:
        save_arguments(settings)
    # This is None if the last checkpoint was written.
    error_of_last_checkpoint = run_updates(trainer, checkpoint)
    # Saving the model takes memory, too, so the memory of the training is read before.
    memory_of_training = peak_memory(trainer.args.device)
    save_model(trainer, settings.output_folder)

    if is_main_process and error_of_last_checkpoint is not None:
        _check_can_average_without_last(settings, error_of_last_checkpoint)
    return TrainedRun(settings, built.pairs, trainer, built.description, memory_of_training)


def _check_can_average_without_last(settings: Settings, error_of_last_checkpoint: Exception) -> None:
    """Raise RunStoppedError if the run averages checkpoints, because it has no last checkpoint for the average."""
    if settings.output.average_last is None:
        return
    output = settings.output_folder
    raise RunStoppedError(
        f"the last checkpoint could not be written ({error_of_last_checkpoint}), so the model in {output} has the "
        f"weights of the last update, not an average. Make room; then {describe_how_to_resume(output)}."
    )


def run_updates(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> Exception | None:
    """Make the updates of a run, starting from scratch or from a checkpoint.

    If this function returns, the model has its final weights, with one exception: if the run keeps its best model, and
    the result is an error, it has the weights of the last update, because the best model would be loaded afterwards.

    Returns:
        None if everything went well. If all updates were made, but the last checkpoint could not be written to the
        disk, the error is returned and not raised, so that the caller can still save the model.

    Raises:
        KeyboardInterrupt: at Ctrl-C or SIGTERM. In the main process, its message says how to resume.
        RunStoppedError: if the loss diverges, if the checkpoint is unsuitable, if the disk is full, or if the Trainer
            ends before the last update without an error, unless the run has stopped early.
        Exception: any other error of the training, unchanged.
    """
    if checkpoint is not None and is_last_checkpoint(trainer.args, checkpoint):
        load_finished_state(trainer, checkpoint)
        return None

    checkpoint_name = None if checkpoint is None else str(checkpoint)
    try:
        trainer.train(resume_from_checkpoint=checkpoint_name)
    except KeyboardInterrupt as interrupt:
        _add_how_to_resume(interrupt, trainer)
        raise
    except Exception as error:
        if _has_made_all_updates(trainer) and is_writing_error(error):
            logger.info("the last checkpoint could not be written (%s)", error)
            return error
        explanation = explain_training_error(error, trainer, checkpoint)
        if explanation is None:
            raise
        raise RunStoppedError(explanation) from error
    check_reached_its_end(trainer)
    return None


def _output_folder_of(trainer: Seq2SeqTrainer) -> Path:
    """Return the output folder of a Trainer."""
    return Path(str(trainer.args.output_dir))


def _add_how_to_resume(interrupt: KeyboardInterrupt, trainer: Seq2SeqTrainer) -> None:
    """Set the message of an interrupt in the main process. It says how to resume the run.

    The exception is changed and not replaced, because the exit code of the command depends on its class.
    """
    if trainer.is_world_process_zero():
        interrupt.args = (describe_how_to_resume(_output_folder_of(trainer)),)


def _has_made_all_updates(trainer: Seq2SeqTrainer) -> bool:
    """Return True if no updates are left in a training that has begun."""
    # Both numbers are 0 before the first update.
    return 0 < trainer.state.max_steps <= trainer.state.global_step


def explain_training_error(error: Exception, trainer: Seq2SeqTrainer, checkpoint: Path | None) -> str | None:
    """Return a message that says why the training stopped and what to do. None if the error is of an unknown type.

    Args:
        error: the error that stopped the training before its last update.
        trainer: the Trainer that raised the error.
        checkpoint: the checkpoint that the run resumed from, or None.
    """
    if isinstance(error, DivergedError):
        return str(error)
    if isinstance(error, pickle.UnpicklingError):
        return (
            f"{checkpoint} holds a pickle that torch does not load, because it may run code; resume from a "
            "checkpoint of your own."
        )
    if checkpoint is not None and _is_about_other_optimizer(error):
        return f"{checkpoint} was written with another optimizer ({error}); resume with the same one."
    if is_writing_error(error):
        resuming = describe_how_to_resume(_output_folder_of(trainer))
        return f"a checkpoint could not be written ({error}). Make room; then {resuming}."
    return None


def _is_about_other_optimizer(error: Exception) -> bool:
    """Return True for PyTorch's error if a checkpoint contains the state of a different optimizer."""
    return isinstance(error, (KeyError, ValueError)) and "parameter group" in str(error)


def is_writing_error(error: Exception) -> bool:
    """Return True if an error during training means that a checkpoint could not be written."""
    # KeyError and ValueError come from wrong settings, or from a checkpoint that the run cannot resume from.
    return is_disk_error(error) and not isinstance(error, (KeyError, ValueError))


def load_finished_state(trainer: Seq2SeqTrainer, checkpoint: Path) -> None:
    """Give a Trainer the state that it has at the end of training. The state is read from the last checkpoint.

    This replaces `trainer.train()`, which would make one more update. The model already has the checkpoint's weights.
    If the run keeps its best model, the model gets the weights of the best checkpoint.

    The first and the last step must stay where they are. The last step, the Trainer's private method
    `_load_best_model`, reads the attributes about DeepSpeed and FSDP and the path of the best checkpoint.
    """
    logger.info("%s is the end of the run, so no updates are left", checkpoint)
    output = _output_folder_of(trainer)
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    # `trainer.train()` has not started DeepSpeed or FSDP, so the Trainer must not use them to load or save weights.
    trainer.is_deepspeed_enabled = False
    trainer.is_fsdp_enabled = False
    # As at the start of `trainer.train()`, later checkpoints lose their marks. They exist if the run is now shorter.
    if trainer.is_world_process_zero():
        remove_later_marks(output, trainer.state.global_step)
    # The folder may have been moved since the path was stored.
    restore_path_of_best(trainer.state, output)
    # The path is None if the run has no best checkpoint.
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        trainer._load_best_model()


def check_reached_its_end(trainer: Seq2SeqTrainer) -> None:
    """Raise RunStoppedError if training stopped before its last update for a reason other than early stopping."""
    state = trainer.state
    if state.global_step >= state.max_steps:
        return
    # Early stopping is an expected end of the training.
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStopping) and callback.has_stopped:
            return
    raise RunStoppedError(
        f"the training stopped after {state.global_step:,} of {state.max_steps:,} updates; "
        f"{describe_how_to_resume(_output_folder_of(trainer))}."
    )
