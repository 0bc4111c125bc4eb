"""Saving of the trained weights, or of their average, at the end of a run."""

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
    """Replace an earlier run's model and tokenizer; if that fails, RunStoppedError says where the weights are."""
    if not trainer.is_world_process_zero():
        trainer.save_model(_internal_call=True)  # Writes nothing; the main process may need its shards of the weights.
        return
    try:
        with staged(output, replace_run=True) as folder:
            save_without_pickle(trainer, folder)
    except Exception as error:  # Whatever it is, the weights must not be lost.
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:  # To save again, all processes are needed.
            raise RunStoppedError(
                f"the model could not be written to {output} ({error}). Make room; {how_to_resume(output)}."
            ) from error
        refuge = Path(tempfile.mkdtemp(prefix=f"{output.name}-"))
        save_without_pickle(trainer, refuge)
        raise RunStoppedError(
            f"the model could not be written to {output} ({error}); it is in {refuge}, move it from there."
        ) from error


def save_arguments(settings: Settings, *, is_trained: bool = False) -> None:
    """Write what the run was given or planned, with which it is resumed or repeated."""
    given = format_recipe(settings.to_repeat())
    pushes_meanwhile = settings.args.push_to_hub and settings.args.hub_strategy != HubStrategy.END
    name = ARGUMENTS_WHILE_PUSHED if pushes_meanwhile and not is_trained else ARGUMENTS
    for other in {ARGUMENTS, ARGUMENTS_WHILE_PUSHED} - {name}:
        (settings.output / other).unlink(missing_ok=True)
    write_text(settings.output / name, given)


def save_without_pickle(trainer: Seq2SeqTrainer, folder: Path) -> None:
    # Without _internal_call the Trainer would push, with a card of its own.
    trainer.save_model(str(folder), _internal_call=True)
    (folder / TRAINING_ARGUMENTS).unlink(missing_ok=True)


def how_to_resume(output: Path) -> str:
    """What a user can do after a run that was stopped."""
    checkpoint = newest_complete(output)
    if checkpoint is None:
        return "the same command starts again, because there is no complete checkpoint"
    return f"the same command with --resume_from_checkpoint last resumes from {checkpoint.name}"


def save_average(output: Path, count: int) -> list[str]:
    """Replace the saved model by the average of the last checkpoints, if there are any; returns their names."""
    checkpoints = last_checkpoints(output, count)
    if len(checkpoints) < count:
        rest = "these are averaged" if checkpoints else "so the model has the weights of the last update"
        logger.warning("average_last is %d, but the run left %d checkpoints; %s.", count, len(checkpoints), rest)
    if not checkpoints:
        return []
    try:
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except Exception as error:
        if not isinstance(error, (OSError, ValueError)) and not is_disk_error(error):
            raise
        rest = f" The model in {output} has the weights of the last update, not an average."
        raise RunStoppedError(f"{error}{rest if any(output.glob('*.safetensors')) else ''}") from error
    return [checkpoint.name for checkpoint in checkpoints]
