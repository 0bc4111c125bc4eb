"""Save a run's arguments and the trained model, whose weights may be an average of the last checkpoints."""

import logging
import tempfile
from pathlib import Path

from transformers import Seq2SeqTrainer
from transformers.trainer_utils import HubStrategy

from ..hub.model_folder import ARGUMENTS, ARGUMENTS_WHILE_PUSHED, TRAINING_ARGUMENTS, staged
from ..support.atomic_files import is_disk_error, write_text
from ..support.checkpoint_marks import newest_complete
from ..support.recipes import format_recipe
from ..support.user_errors import UserError
from .checkpoint_averaging import last_checkpoints, write_average
from .run_arguments import Settings


logger = logging.getLogger(__name__)


class RunStoppedError(UserError, RuntimeError):
    """Raised if training stops early or outputs cannot be written. The message says why, and what to do next."""


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Save the trained model and its tokenizer in the output folder. They replace the files of an earlier run.

    Every process must call this function.

    Raises RunStoppedError if the output folder cannot be written. The model is then saved in a temporary folder that
    the message names, unless its weights are distributed over several processes.
    """
    if not trainer.is_world_process_zero():
        # If the weights are distributed, the main process waits for this process's part. The call writes no files.
        trainer.save_model(_internal_call=True)
        return
    try:
        with staged(output, replace_run=True) as folder:
            save_without_pickle(trainer, folder)
    except Exception as error:  # Whatever the error is, the weights must not be lost.
        problem = f"the model could not be written to {output} ({error})"
        if _has_distributed_weights(trainer):
            # Saving again would need all processes, but the others do not call this again.
            raise RunStoppedError(f"{problem}. Make room; {describe_how_to_resume(output)}.") from error
        temporary_folder = _save_in_temporary_folder(trainer, output.name)
        raise RunStoppedError(f"{problem}; it is in {temporary_folder}, move it from there.") from error


def _has_distributed_weights(trainer: Seq2SeqTrainer) -> bool:
    """Return True if the weights may be distributed over several processes."""
    return trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled


def _save_in_temporary_folder(trainer: Seq2SeqTrainer, name: str) -> Path:
    """Save the model in a new temporary folder, whose name begins with `name`. Return the folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    save_without_pickle(trainer, folder)
    return folder


def save_without_pickle(trainer: Seq2SeqTrainer, folder: Path) -> None:
    """Save the model and the tokenizer in a folder, but not the Trainer's pickled arguments."""
    # Without _internal_call, the Trainer would push the model with its own model card.
    trainer.save_model(str(folder), _internal_call=True)
    (folder / TRAINING_ARGUMENTS).unlink(missing_ok=True)


def save_arguments(settings: Settings, *, is_trained: bool = False) -> None:
    """Save the run's arguments in `arguments.yaml`, so that the run can be resumed or repeated.

    The file contains the arguments that the user has given, and those that the plan has chosen.

    Args:
        settings: the run's settings.
        is_trained: True after the training. Before it, if the Trainer will push checkpoints, the file gets a name that
            pushes skip.
    """
    text = format_recipe(settings.repeatable_arguments())
    pushes_during_training = settings.args.push_to_hub and settings.args.hub_strategy != HubStrategy.END
    if pushes_during_training and not is_trained:
        path = settings.output_folder / ARGUMENTS_WHILE_PUSHED
        outdated_path = settings.output_folder / ARGUMENTS
    else:
        path = settings.output_folder / ARGUMENTS
        outdated_path = settings.output_folder / ARGUMENTS_WHILE_PUSHED
    # Only one of the two files may exist. The outdated file is renamed and not removed, so that its arguments are not
    # lost if the run is killed here.
    if outdated_path.exists():
        outdated_path.replace(path)
    write_text(path, text)


def describe_how_to_resume(output: Path) -> str:
    """Return the last part of an error message. It tells the user how to resume a stopped run."""
    checkpoint = newest_complete(output)
    if checkpoint is None:
        return "the same command starts again, because there is no complete checkpoint"
    return f"the same command with --resume_from_checkpoint last resumes from {checkpoint.name}"


def save_average(output: Path, count: int) -> list[str]:
    """Replace the saved model with an average of the last `count` checkpoints. Return the names of the checkpoints.

    If the run left fewer checkpoints, a warning is logged, and all of them are averaged. If the run left none, the
    saved model is not changed, and the result is an empty list.
    """
    checkpoints = last_checkpoints(output, count)
    if len(checkpoints) < count:
        _warn_of_missing_checkpoints(len(checkpoints), count)
    if not checkpoints:
        return []
    try:
        # The average replaces the saved model only when the block ends without an error.
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except Exception as error:
        if not _is_error_of_average(error):
            raise
        raise RunStoppedError(_describe_failed_average(error, output)) from error
    return [checkpoint.name for checkpoint in checkpoints]


def _warn_of_missing_checkpoints(left: int, count: int) -> None:
    """Log a warning that the run left fewer checkpoints than the `count` that are to be averaged."""
    if left == 0:
        logger.warning(
            "average_last is %d, but the run left 0 checkpoints; so the model has the weights of the last update.",
            count,
        )
        return
    logger.warning("average_last is %d, but the run left %d checkpoints; these are averaged.", count, left)


def _is_error_of_average(error: Exception) -> bool:
    """Return True if an error means that the average could not be computed or written. Other errors are bugs."""
    # safetensors and torch report a full disk with exceptions of their own.
    return isinstance(error, (OSError, ValueError)) or is_disk_error(error)


def _describe_failed_average(error: Exception, output: Path) -> str:
    """Describe why no average was saved in the folder `output`, and which weights the folder contains instead."""
    # The saved model is still there, unless the error occurred while the finished average was moved into the folder.
    has_model = any(output.glob("*.safetensors"))
    if has_model:
        return f"{error} The model in {output} has the weights of the last update, not an average."
    return str(error)
