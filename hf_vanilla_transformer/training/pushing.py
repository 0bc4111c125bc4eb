"""Push a run to the Hub: create the repository before the training, and upload the output folder after it."""

import logging
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformers import Seq2SeqTrainer

from ..evaluation.metrics import Scores
from ..hub.model_folder import NOT_TO_SHARE
from ..hub.push_to_hub import describe_error, prepare_repository, push_run
from .checkpoints import remove_path_of_best
from .run_arguments import Settings
from .run_saving import RunStoppedError
from .trained_model_card import describe_run_for_card


logger = logging.getLogger(__name__)


def prepare_push(settings: Settings) -> str:
    """Create the Hub repository before training starts, check that files can be pushed to it, and return its name.

    Only the main process contacts the Hub. The Hub may add the user's name to the returned name, as in `user/name`.
    """
    args = settings.args
    name = args.hub_model_id or settings.output_folder.absolute().name
    if args.process_index != 0:
        # Other processes never push, so they do not need the user's name.
        return name
    return prepare_repository(
        name,
        # The Hub checks the metadata of the future model card.
        describe_run_for_card(settings).metadata(),
        token=args.hub_token,
        private=args.hub_private_repo,
        revision=args.hub_revision,
    )


def leave_paths_out_of_pushes(trainer: Seq2SeqTrainer) -> None:
    """Make the Trainer remove local paths from the checkpoints that it pushes during training."""
    # The Trainer calls this method of its own after it has saved a checkpoint. The replacement calls the original,
    # which is read here, before it is replaced.
    trainer._push_from_checkpoint = partial(  # type: ignore[method-assign]
        _push_without_paths, trainer, trainer._push_from_checkpoint
    )


def _push_without_paths(trainer: Seq2SeqTrainer, push_checkpoint: Callable[[str], None], folder: str) -> None:
    # All processes call this, but only the main process may change files. `push_checkpoint` is the Trainer's method,
    # and uploads the files as they are then.
    if trainer.is_world_process_zero():
        remove_path_of_best(Path(folder))
    push_checkpoint(folder)


def push(settings: Settings, updates: int, scores: Scores | None) -> None:
    """Push the output folder to the Hub repository that the settings name.

    Args:
        settings: the run's settings, which contain the name of the repository.
        updates: the number of updates, for the commit message.
        scores: the scores on the test pairs, for the commit message, or None without test pairs.

    Raises RunStoppedError if the push fails. Its message contains a command that pushes the folder later.
    """
    args = settings.args
    repository = str(args.hub_model_id)
    message = _write_commit_message(updates, scores)
    try:
        url = push_run(
            settings.output_folder, repository, message=message, token=args.hub_token, revision=args.hub_revision
        )
    except Exception as error:  # The reason may be the network, the Hub, or the access rights.
        raise RunStoppedError(
            f"the model could not be pushed to {repository} ({describe_error(error)}). It is complete in "
            f"{args.output_dir}; push it later with: {_upload_command(settings)}"
        ) from error
    logger.info("the model is pushed to %s: %s", repository, url)


def _write_commit_message(updates: int, scores: Scores | None) -> str:
    """Return the message of the commit that pushes a model: the number of updates and, if it is known, the BLEU."""
    message = f"Train for {updates:,} updates"
    if scores is None:
        return message
    return f"{message}: BLEU {scores['bleu']:.2f}"


def _upload_command(settings: Settings) -> str:
    """Return a shell command that uploads the output folder, except for checkpoints and private files."""
    args = settings.args
    # The result is, for example, "hf upload user/name runs/mine . --exclude 'checkpoint-*' ...".
    words = ["hf", "upload", str(args.hub_model_id), str(args.output_dir), "."]
    if args.hub_revision:
        words.extend(["--revision", args.hub_revision])
    for pattern in ("checkpoint-*", *NOT_TO_SHARE, ".*"):
        words.extend(["--exclude", pattern])
    return shlex.join(words)
