"""Train a model with the functions `train` and `distill`, which take all steps from its arguments to its evaluation.

A run checks its settings, loads the sentence pairs, chooses what was not given (the plan), builds a Trainer, trains,
and finally evaluates and publishes the model.
"""

import copy
import logging
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
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
from .plan import plan
from .pushing import prepare_push
from .recipe_overrides import override_recipe
from .results_file import RunDescription, describe_run
from .run_arguments import RunArguments, Settings
from .run_checks import check_choices, check_start, is_in_folder
from .run_saving import RunStoppedError, describe_how_to_resume, save_arguments, save_model
from .run_setup import build_trainer
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
    """What a run starts from: its settings, the sentence pairs and, for distillation, the teacher.

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

    While this function runs, other runs cannot write into the output folder. See [`train`] for the errors.
    """
    started = time.monotonic()
    set_up_process(settings.args)

    # Find out where the run starts. A run that resumes keeps the settings of its earlier part, so it needs no plan.
    checkpoint = find_common_checkpoint(settings)
    earlier_facts = RecordFacts() if checkpoint is None else RecordFacts.read_checkpoint(checkpoint)
    needs_plan = settings.needs_plan and checkpoint is None
    requested = settings.for_target_language()._replace(needs_plan=needs_plan)

    # Check everything that can be checked before the pairs are loaded, which may take long.
    check_start(requested, checkpoint)
    check_same_optimizer(requested, checkpoint, earlier_facts)

    with reserved_output_folder(requested):
        # Load the pairs, and choose the settings that are not given.
        loaded = load_inputs(requested)
        planned = plan_inputs(loaded)
        if requested.preview.dry_run:
            return requested.output_folder

        # Build, train and finish.
        built = build_run(planned, checkpoint, earlier_facts, started)
        is_main_process = requested.args.process_index == 0
        if is_main_process and not is_in_folder(checkpoint, requested.output_folder):
            # The checkpoints in the folder belong to an earlier run, which this one replaces.
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
    (checkpoint_of_main_process,) = broadcast_object_list([checkpoint])
    if checkpoint != checkpoint_of_main_process:
        raise InputError(
            f"the first process resumes from {checkpoint_of_main_process or 'no checkpoint'}, but this one from "
            f"{checkpoint or 'no checkpoint'}; give all machines one folder, or copy the checkpoint to each."
        )
    return checkpoint


def check_same_optimizer(settings: Settings, checkpoint: Path | None, earlier_facts: RecordFacts) -> None:
    """Raise InputError if a checkpoint was written with a different optimizer or learning rate schedule.

    Without this check, the Trainer would silently continue with the checkpoint's optimizer and schedule.
    """
    optimizer = settings.args.describe_optimizer()
    if earlier_facts.optimizer not in (None, optimizer):
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
    new_folders = [folder for folder in (output, *output.parents) if not folder.exists()]
    output.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=output):
            pass  # This raises an error if the folder is read-only.
        with locked(output):
            yield
    finally:
        for folder in new_folders:
            with suppress(OSError):
                folder.rmdir()


def load_inputs(settings: Settings) -> RunInputs:
    """Load the sentence pairs and, for distillation, prepare the teacher.

    With a teacher, the returned settings use its tokenizer if that is suitable, unless the user has chosen a tokenizer.
    """
    with input_errors():
        pairs = load_training_pairs(settings.args, settings.data)
        if not settings.distillation.teacher:
            return RunInputs(settings, pairs, None)
        teacher = Teacher(settings)
        return RunInputs(teacher.with_tokenizer(settings), pairs, teacher)


def plan_inputs(inputs: RunInputs) -> RunInputs:
    """Choose the settings that the user has not given, and log them with the estimated costs of the run.

    If there are no validation pairs, some training pairs are held out for validation. The main process plans for all
    processes, and takes a teacher's future translations into account. If the run needs no plan, the inputs are returned
    unchanged, but with `dry_run`, the costs are still logged.
    """
    settings = inputs.settings
    if not settings.needs_plan and not settings.preview.dry_run:
        return inputs
    arguments = dict(settings.given_arguments)
    pairs = inputs.pairs
    teacher = inputs.teacher
    is_main_process = settings.args.process_index == 0

    plan_of_this_process = None
    with input_errors():
        if settings.needs_plan and "validation" not in pairs and len(pairs["train"]) > 1:
            arguments["validation_size"] = held_out_size(len(pairs["train"]))
            pairs = prepare_pairs(pairs, TrainingDataArguments(validation_size=arguments["validation_size"]))
        expected_pairs = pairs if teacher is None else teacher.make_expected_pairs(pairs)
        # All processes must call this, because it compares their devices.
        memory = read_smallest_device_memory(settings.args.device)
        if is_main_process:
            plan_of_this_process = plan(expected_pairs, chooses=settings.needs_plan, memory=memory, **arguments)
    (common_plan,) = broadcast_object_list([plan_of_this_process])

    for line in common_plan.lines():
        logger.info(line)
    if is_main_process and not settings.preview.dry_run:
        check_free_space(settings.output_folder, common_plan.costs.disk, "make room, or name another --output_dir")
    if is_main_process and teacher is not None:
        logger.info(teacher.describe_work(pairs))

    # The given arguments take precedence over the plan's arguments.
    planned = Settings.from_arguments(**{**common_plan.arguments, **arguments}).for_target_language()
    check_choices(planned)
    return RunInputs(planned, pairs, teacher)


def build_run(inputs: RunInputs, checkpoint: Path | None, earlier_facts: RecordFacts, started: float) -> BuiltRun:
    """Make the last checks, let the teacher translate if there is one, and build the Trainer of a run.

    Args:
        inputs: the pairs, the teacher, and the settings, which must be complete.
        checkpoint: the checkpoint to resume from, or None.
        earlier_facts: facts about the run so far, which were read from the checkpoint.
        started: the value of `time.monotonic()` at the start of the run.
    """
    settings = name_base_model(inputs.settings, earlier_facts)
    facts = update_facts(earlier_facts, inputs.settings)
    pairs = inputs.pairs
    distillation = None
    with input_errors():
        set_seed(settings.args.seed)
        check_has_validation(settings, pairs)
        repository = settings.args.hub_model_id
        if settings.args.push_to_hub:
            repository = prepare_push(settings)
        if inputs.teacher is not None:
            # The teacher may translate for hours, so all checks are made before.
            pairs, distillation = inputs.teacher.add_translations(pairs)
        named_settings = settings.change_training(hub_model_id=repository)
        final_settings, trainer = build_trainer(named_settings, pairs, checkpoint, facts)
    # The total duration of a run that resumes is unknown.
    description = describe_run(final_settings, distillation, None if checkpoint else started)
    return BuiltRun(final_settings, pairs, trainer, description)


def name_base_model(settings: Settings, earlier_facts: RecordFacts) -> Settings:
    """Return settings that name the base model, i.e. the model that is fine-tuned.

    If the settings do not name a base model, it is taken from the facts in the checkpoint.
    """
    if settings.model.model_name_or_path is not None or earlier_facts.base_model is None:
        return settings
    # `dataclasses.replace` would check the arguments again, and would reject this combination of arguments.
    model_args = copy.copy(settings.model)
    model_args.model_name_or_path = earlier_facts.base_model
    return settings._replace(model=model_args)


def update_facts(earlier_facts: RecordFacts, settings: Settings) -> RecordFacts:
    """Return a checkpoint's facts, updated with the base model and the optimizer of this run."""
    base_model = settings.model.model_name_or_path
    if base_model is None:
        base_model = earlier_facts.base_model
    elif Path(base_model).is_dir():
        # Checkpoints may be pushed, and the full path would disclose folder names of this machine. The dot is needed,
        # because a name without it could be a name on the Hub.
        base_model = f"./{Path(base_model).resolve().name}"
    return replace(earlier_facts, base_model=base_model, optimizer=settings.args.describe_optimizer())


def train_and_finish(built: BuiltRun, checkpoint: Path | None) -> None:
    """Train and save a run's model. The main process then takes all later steps, such as evaluating and pushing it."""
    trainer = built.trainer
    settings = built.settings
    output = settings.output_folder
    if trainer.is_world_process_zero():
        save_arguments(settings)
    lost_checkpoint = run_updates(trainer, checkpoint)
    trained = TrainedRun(settings, built.pairs, trainer, built.description, peak_memory(trainer.args.device))
    save_model(trainer, output)
    if not trainer.is_world_process_zero():
        return
    if settings.output.average_last is not None and lost_checkpoint is not None:
        raise RunStoppedError(
            f"the last checkpoint could not be written ({lost_checkpoint}), so the model in {output} has the weights "
            f"of the last update, not an average. Make room; then {describe_how_to_resume(output)}."
        )
    try:
        finish_run(trained)
    except Exception as error:
        if isinstance(error, RunStoppedError) or not is_disk_error(error):
            raise
        raise RunStoppedError(
            f"{error}; the model in {output} is trained, but its scores and card are not complete. Make room; "
            f"then {describe_how_to_resume(output)}."
        ) from error


def run_updates(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> Exception | None:
    """Make the updates of a run, from scratch or from a checkpoint on.

    Returns:
        The disk error if all updates were made but the last checkpoint could not be written, and otherwise None.

    Raises:
        KeyboardInterrupt: at Ctrl-C or SIGTERM. In the main process, its message says how to resume.
        RunStoppedError: if the loss diverges, if the checkpoint is unsuitable, or if the disk is full.
    """
    if checkpoint is not None and is_last_checkpoint(trainer.args, checkpoint):
        load_finished_state(trainer, checkpoint)
        return None
    output = Path(str(trainer.args.output_dir))
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        check_reached_its_end(trainer)
    except DivergedError as error:
        raise RunStoppedError(str(error)) from error
    except KeyboardInterrupt as interrupt:
        if trainer.is_world_process_zero():
            interrupt.args = (describe_how_to_resume(output),)
        raise
    except pickle.UnpicklingError as error:
        raise RunStoppedError(
            f"{checkpoint} holds a pickle that torch does not load, because it may run code; resume from a "
            "checkpoint of your own."
        ) from error
    except (KeyError, ValueError) as error:
        # PyTorch raises these errors if the checkpoint contains the state of a different optimizer.
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
                f"a checkpoint could not be written ({error}). Make room; then {describe_how_to_resume(output)}."
            ) from error
        logger.info("the last checkpoint could not be written (%s)", error)
        return error
    return None


def load_finished_state(trainer: Seq2SeqTrainer, checkpoint: Path) -> None:
    """Load the Trainer's state from a checkpoint that is the end of a run, and make no further updates.

    `trainer.train()` would make one more update from there. The model already has the checkpoint's weights.
    """
    logger.info("%s is the end of the run, so no updates are left", checkpoint)
    output = Path(str(trainer.args.output_dir))
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    # DeepSpeed and FSDP were not started, so the Trainer must not use them to save the weights.
    trainer.is_deepspeed_enabled = False
    trainer.is_fsdp_enabled = False
    if trainer.is_world_process_zero():
        remove_later_marks(output, trainer.state.global_step)
    restore_path_of_best(trainer.state, output)
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        trainer._load_best_model()


def check_reached_its_end(trainer: Seq2SeqTrainer) -> None:
    """Raise RunStoppedError if training stopped before its last update for a reason other than early stopping."""
    state = trainer.state
    if state.global_step >= state.max_steps:
        return
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStopping) and callback.has_stopped:
            return
    output = Path(str(trainer.args.output_dir))
    raise RunStoppedError(
        f"the training stopped after {state.global_step:,} of {state.max_steps:,} updates; "
        f"{describe_how_to_resume(output)}."
    )
