"""The push of a run to the Hub: checked before the training, done after it."""

import logging
import shlex
from typing import Any

from ..hub.model_folder import NOT_TO_SHARE
from ..hub.push_to_hub import describe_error, prepare_repository, push_run
from .run_arguments import Settings
from .run_card import about
from .run_saving import RunStoppedError


logger = logging.getLogger(__name__)


def prepare_push(settings: Settings) -> None:
    """Check before the training that its result can be pushed."""
    args = settings.args
    args.hub_model_id = args.hub_model_id or settings.output.absolute().name
    if args.process_index == 0:
        args.hub_model_id = prepare_repository(
            args.hub_model_id,
            about(settings).metadata(),
            token=args.hub_token,
            private=args.hub_private_repo,
            revision=args.hub_revision,
        )


def push(settings: Settings, updates: int, scores: dict[str, Any] | None) -> None:
    """Push the output folder.

    Raises:
        RunStoppedError: if that fails, with the command that pushes it later, because the model is trained.
    """
    args, output = settings.args, str(settings.args.output_dir)
    repository = str(args.hub_model_id)
    message = f"Train for {updates:,} updates"
    if scores is not None:
        message += f": BLEU {scores['bleu']:.2f}"
    try:
        address = push_run(
            settings.output, repository, message=message, token=args.hub_token, revision=args.hub_revision
        )
    except Exception as error:  # The network, the Hub, or the access rights.
        revision = ["--revision", args.hub_revision] if args.hub_revision else []
        excluded = ["--exclude", "checkpoint-*", "--exclude", NOT_TO_SHARE, "--exclude", ".*"]
        command = shlex.join(["hf", "upload", repository, output, ".", *revision, *excluded])
        raise RunStoppedError(
            f"the model could not be pushed to {repository} ({describe_error(error)}). It is complete in "
            f"{output}; push it later with: {command}"
        ) from error
    logger.info("the model is pushed to %s: %s", repository, address)
