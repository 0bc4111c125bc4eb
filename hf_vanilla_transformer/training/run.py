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
        config (`str`, *optional*): the name of a recipe (a set of arguments that is bundled with the package), or a
            YAML or JSON file of arguments.
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
    # Arguments that are not given must not be in this dict, because a recipe or a plan may set them.
    given_arguments: dict[str, Any] = {}
    if train_files is not None:
        given_arguments["train_file"] = train_files
    if validation_files is not None:
        given_arguments["validation_file"] = validation_files
    if test_files is not None:
        given_arguments["test_file"] = test_files
    if output_dir is not None:
        given_arguments["output_dir"] = str(output_dir)
    if dry_run:
        given_arguments["dry_run"] = True
    given_arguments.update(arguments)
    if config is not None:
        given_arguments = override_recipe(read_recipe(config, Settings), given_arguments)
    return run(Settings.from_arguments(allow_plan=config is None, **given_arguments))


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

    While a model is trained, other runs cannot write into the output folder. See [`train`] for the errors.
    """
    started = time.monotonic()
    set_up_process(settings.args)

    # Find out where the run starts. A resumed run keeps the settings of its earlier part, so it needs no plan.
    checkpoint = find_common_checkpoint(settings)
    earlier_facts = RecordFacts()
    if checkpoint is not None:
        earlier_facts = RecordFacts.read_checkpoint(checkpoint)
    needs_plan = settings.needs_plan and checkpoint is None
    # These are the settings before a plan completes them.
    requested = settings.for_target_language()._replace(needs_plan=needs_plan)

    # Check everything that can be checked before the pairs are loaded, which may take long.
    check_start(requested, checkpoint)
    check_same_optimizer(requested, checkpoint, earlier_facts)

    if requested.preview.dry_run:
        plan_inputs(load_inputs(requested))
        return requested.output_folder

    with reserved_output_folder(requested):
        # Load the pairs, and choose the settings that are not given.
        planned = plan_inputs(load_inputs(requested))

        # Build, train and finish.
        built = build_run(planned, checkpoint, earlier_facts, started)
        is_main_process = requested.args.process_index == 0
        if is_main_process and not is_in_folder(checkpoint, requested.output_folder):
            # The checkpoints in the folder belong to an earlier run, which this one replaces. They are removed only
            # now, so that they remain if an error occurs before the training.
            remove_checkpoints(requested.output_folder)
        train_and_finish(built, checkpoint)
    return requested.output_folder


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

    Only the main process does this, on behalf of all processes. At the end of the block, folders that were created here
    are removed if they are still empty.
    """
    if settings.args.process_index != 0:
        yield
        return
    output = settings.output_folder
    # The innermost folder comes first: "runs/mine" and then "runs", if neither exists.
    new_folders = [folder for folder in (output, *output.parents) if not folder.exists()]
    output.mkdir(parents=True, exist_ok=True)
    try:
        # Creating a temporary folder raises an error if the output folder is read-only.
        with tempfile.TemporaryDirectory(dir=output):
            pass
        with locked(output):
            yield
    finally:
        _remove_empty_folders(new_folders)


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

    If there are no validation pairs, some training pairs are held out for validation. If the run needs no plan, the
    inputs are returned unchanged, but with `dry_run`, the costs are still logged.
    """
    needs_plan = inputs.settings.needs_plan
    if not needs_plan and not inputs.settings.preview.dry_run:
        return inputs

    # The pairs must be held out before the plan is made, because it depends on the numbers of pairs in both splits.
    complete_inputs = inputs
    if needs_plan:
        with input_errors():
            complete_inputs = hold_out_validation_pairs(inputs)
    common_plan = make_common_plan(complete_inputs)
    log_plan(common_plan, complete_inputs)

    # The given arguments take precedence over the plan's arguments, which are {} if the run needs no plan.
    arguments = {**common_plan.arguments, **complete_inputs.settings.given_arguments}
    planned_settings = Settings.from_arguments(**arguments).for_target_language()
    check_choices(planned_settings)
    return replace(complete_inputs, settings=planned_settings)


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

    The plan takes a teacher's future translations into account.

    Every process must call this function, because it has two steps in which the processes wait for each other:
    `read_smallest_device_memory` and `broadcast_object_list`. The main process makes the plan between them. Both steps
    must stay outside of the block that only the main process runs. Otherwise the main process would wait forever.
    """
    settings = inputs.settings
    # In the other processes, this stays None.
    plan_of_main_process = None
    with input_errors():
        expected_pairs = inputs.pairs
        if inputs.teacher is not None:
            expected_pairs = inputs.teacher.make_expected_pairs(inputs.pairs)
        # Wait 1: the processes exchange the memory of their devices. The result is None on CPUs.
        memory = read_smallest_device_memory(settings.args.device)
        if settings.args.process_index == 0:
            # If this raises an error, the main process ends, while the other processes are already waiting in
            # `broadcast_object_list` below. Their launcher, such as torchrun, notices that a process has failed, and
            # ends the others. With `chooses=False`, the plan contains only the costs.
            plan_of_main_process = plan(
                expected_pairs, chooses=settings.needs_plan, memory=memory, **settings.given_arguments
            )
    # Wait 2: this sends the plan of the main process to the others, and replaces their None. The list that it returns
    # has a single element.
    (common_plan,) = broadcast_object_list([plan_of_main_process])
    return common_plan


def build_run(inputs: RunInputs, checkpoint: Path | None, earlier_facts: RecordFacts, started: float) -> BuiltRun:
    """Make the last checks, add the translations of the teacher if there is a teacher, and build the Trainer of a run.

    The settings in `inputs` are completed in three steps: by the name of the base model, by the repository on the Hub,
    and by the final arguments of the Trainer.

    Args:
        inputs: the pairs, the teacher, and the settings, which must be complete.
        checkpoint: the checkpoint to resume from, or None.
        earlier_facts: facts about the run so far, which were read from the checkpoint.
        started: the value of `time.monotonic()` at the start of the run.
    """
    facts = update_facts(earlier_facts, inputs.settings)
    settings = name_base_model(inputs.settings, facts)
    with input_errors():
        # A new model gets random weights in `set_up_training`, which depend on this seed.
        set_seed(settings.args.seed)

        # Make all checks before the teacher translates, because this may take hours.
        check_has_validation(settings, inputs.pairs)
        if settings.args.push_to_hub:
            # In the main process, the name may now include the user, as in "user/name".
            repository = prepare_push(settings)
            settings = settings.change_training(hub_model_id=repository)

        pairs_to_train_on = inputs.pairs
        # Rows about the distillation for the table in the model card.
        distillation_rows = None
        if inputs.teacher is not None:
            pairs_to_train_on, distillation_rows = inputs.teacher.add_translations(inputs.pairs)
        final_settings, trainer = set_up_training(settings, pairs_to_train_on, checkpoint, facts)

    # The total duration of a run that resumes is unknown, so its description has no start.
    described_start = started if checkpoint is None else None
    description = describe_run(final_settings, distillation_rows, described_start)
    return BuiltRun(final_settings, pairs_to_train_on, trainer, description)


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
    output = settings.output_folder
    is_main_process = trainer.is_world_process_zero()
    if is_main_process:
        save_arguments(settings)
    # This is None if the last checkpoint was written.
    error_of_last_checkpoint = run_updates(trainer, checkpoint)
    # Saving the model takes memory, too, so the memory of the training is read before.
    memory_of_training = peak_memory(trainer.args.device)
    save_model(trainer, output)

    needs_last_checkpoint = settings.output.average_last is not None
    if is_main_process and needs_last_checkpoint and error_of_last_checkpoint is not None:
        raise RunStoppedError(
            f"the last checkpoint could not be written ({error_of_last_checkpoint}), so the model in {output} has the "
            f"weights of the last update, not an average. Make room; then {describe_how_to_resume(output)}."
        )
    return TrainedRun(settings, built.pairs, trainer, built.description, memory_of_training)


def run_updates(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> Exception | None:
    """Make the updates of a run, starting from scratch or from a checkpoint.

    If this function returns, with or without an error as its result, the model has its final weights. There is one
    exception: if the run keeps its best model, and the result is an error, the model still has the weights of the last
    update, because the Trainer loads the best model only after it has written the last checkpoint.

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
        # No updates are left.
        load_finished_state(trainer, checkpoint)
        return None

    checkpoint_name = None if checkpoint is None else str(checkpoint)
    try:
        trainer.train(resume_from_checkpoint=checkpoint_name)
    except KeyboardInterrupt as interrupt:
        if trainer.is_world_process_zero():
            # Set the message of the exception, which then is raised as it is. Its class must stay, because the exit
            # code of the command depends on it.
            output = Path(str(trainer.args.output_dir))
            interrupt.args = (describe_how_to_resume(output),)
        raise
    except Exception as error:
        # Both numbers are 0 if the error occurred before the first update.
        has_made_all_updates = 0 < trainer.state.max_steps <= trainer.state.global_step
        if has_made_all_updates and is_writing_error(error):
            # No updates are left, and only the last checkpoint is missing. The caller decides whether the run needs it.
            logger.info("the last checkpoint could not be written (%s)", error)
            return error
        explanation = explain_training_error(error, trainer, checkpoint)
        if explanation is None:
            # The error is of an unknown type. There is nothing to add to it, so it is raised unchanged.
            raise
        raise RunStoppedError(explanation) from error
    # The Trainer has ended without an error, but perhaps before the last update.
    check_reached_its_end(trainer)
    return None


def explain_training_error(error: Exception, trainer: Seq2SeqTrainer, checkpoint: Path | None) -> str | None:
    """Return a message that tells the user why the training stopped and what to do.

    The result is None if the error is of an unknown type.

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
    # PyTorch raises KeyError or ValueError, with "parameter group" in the message, if the checkpoint contains the state
    # of a different optimizer.
    is_about_optimizer = isinstance(error, (KeyError, ValueError)) and "parameter group" in str(error)
    if checkpoint is not None and is_about_optimizer:
        return f"{checkpoint} was written with another optimizer ({error}); resume with the same one."
    if is_writing_error(error):
        output = Path(str(trainer.args.output_dir))
        return f"a checkpoint could not be written ({error}). Make room; then {describe_how_to_resume(output)}."
    return None


def is_writing_error(error: Exception) -> bool:
    """Return True if an error during training means that a checkpoint could not be written."""
    # KeyError and ValueError come from wrong settings, or from a checkpoint that the run cannot resume from.
    return is_disk_error(error) and not isinstance(error, (KeyError, ValueError))


def load_finished_state(trainer: Seq2SeqTrainer, checkpoint: Path) -> None:
    """Give a Trainer the state that it has at the end of training. The state is read from the last checkpoint.

    This replaces `trainer.train()`, which would make one more update. It changes the Trainer. The model already has
    the checkpoint's weights. If the run keeps its best model, the model gets the weights of the best checkpoint.

    The first and the last step must stay where they are. The Trainer's private method `_load_best_model`, the last
    step, depends on all others except the removal of marks: it reads the two attributes about DeepSpeed and FSDP, and
    the path of the best checkpoint from the state.
    """
    logger.info("%s is the end of the run, so no updates are left", checkpoint)
    output = Path(str(trainer.args.output_dir))
    # 1. Read the state. The steps below read its number of updates, and correct and read the path of its best
    # checkpoint.
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    # 2. Switch DeepSpeed and FSDP off. `trainer.train()` would have started them. Without it, the Trainer must not use
    # them to load the best model below, or to save the weights later.
    trainer.is_deepspeed_enabled = False
    trainer.is_fsdp_enabled = False
    # 3. Remove the marks of later checkpoints, which say that they are complete, as at the start of `trainer.train()`.
    # The folder may have such checkpoints, for example if the run is now shorter.
    if trainer.is_world_process_zero():
        remove_later_marks(output, trainer.state.global_step)
    # 4. Correct the path of the best checkpoint in the state, because the folder may have been moved since the path was
    # stored.
    restore_path_of_best(trainer.state, output)
    # 5. If the run keeps its best model, load the weights of that model. The Trainer reads the corrected path. The path
    # is None if the run has no best checkpoint.
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
    output = Path(str(trainer.args.output_dir))
    raise RunStoppedError(
        f"the training stopped after {state.global_step:,} of {state.max_steps:,} updates; "
        f"{describe_how_to_resume(output)}."
    )
