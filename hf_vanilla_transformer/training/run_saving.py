"""Write the arguments of a run and the model that it trained: the last weights, or an average of checkpoints."""

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
    """Raised if training stops early or outputs cannot be written; the message gives the reason and the next step."""


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Write the trained model and its tokenizer into the output folder, in place of an earlier run's.

    Raises RunStoppedError if they cannot be written. The weights are then in a temporary folder that the message names,
    unless they are spread over several processes.
    """
    if not trainer.is_world_process_zero():
        # This writes nothing, but the main process may need the weights that are on this one.
        trainer.save_model(_internal_call=True)
        return
    try:
        with staged(output, replace_run=True) as folder:
            save_without_pickle(trainer, folder)
    except Exception as error:  # Whatever the error is, the weights must not be lost.
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            # Saving again would need all processes.
            raise RunStoppedError(
                f"the model could not be written to {output} ({error}). Make room; {describe_how_to_resume(output)}."
            ) from error
        refuge = Path(tempfile.mkdtemp(prefix=f"{output.name}-"))
        save_without_pickle(trainer, refuge)
        raise RunStoppedError(
            f"the model could not be written to {output} ({error}); it is in {refuge}, move it from there."
        ) from error


def save_without_pickle(trainer: Seq2SeqTrainer, folder: Path) -> None:
    """Save the model and the tokenizer, without the Trainer's pickled arguments."""
    # Without _internal_call the Trainer would push, with a card of its own.
    trainer.save_model(str(folder), _internal_call=True)
    (folder / TRAINING_ARGUMENTS).unlink(missing_ok=True)


def save_arguments(settings: Settings, *, is_trained: bool = False) -> None:
    """Write the arguments that were given or planned to `arguments.yaml`, with which a run is resumed or repeated.

    While the Trainer pushes checkpoints, the file has a name that the push skips.
    """
    pushes_during_training = settings.args.push_to_hub and settings.args.hub_strategy != HubStrategy.END
    name = ARGUMENTS
    outdated_name = ARGUMENTS_WHILE_PUSHED
    if pushes_during_training and not is_trained:
        name = ARGUMENTS_WHILE_PUSHED
        outdated_name = ARGUMENTS
    (settings.output_folder / outdated_name).unlink(missing_ok=True)
    write_text(settings.output_folder / name, format_recipe(settings.to_repeat()))


def describe_how_to_resume(output: Path) -> str:
    """Describe for an error message how to continue a run that was stopped."""
    checkpoint = newest_complete(output)
    if checkpoint is None:
        return "the same command starts again, because there is no complete checkpoint"
    return f"the same command with --resume_from_checkpoint last resumes from {checkpoint.name}"


def save_average(output: Path, count: int) -> list[str]:
    """Replace the saved model by the average of the last checkpoints.

    Logs a warning if the run left fewer than `count` checkpoints, and averages those. Returns the names of the averaged
    checkpoints, or an empty list if there are none; the saved model then stays as it is.
    """
    checkpoints = last_checkpoints(output, count)
    if len(checkpoints) < count:
        consequence = "these are averaged" if checkpoints else "so the model has the weights of the last update"
        logger.warning("average_last is %d, but the run left %d checkpoints; %s.", count, len(checkpoints), consequence)
    if not checkpoints:
        return []
    try:
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except Exception as error:
        if not isinstance(error, (OSError, ValueError)) and not is_disk_error(error):
            raise
        message = str(error)
        if any(output.glob("*.safetensors")):
            message += f" The model in {output} has the weights of the last update, not an average."
        raise RunStoppedError(message) from error
    return [checkpoint.name for checkpoint in checkpoints]
