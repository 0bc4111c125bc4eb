"""The start of a run: the checkpoint that it resumes from, and the checks of its settings."""

import logging
from pathlib import Path
from typing import NamedTuple

from accelerate.utils import broadcast_object_list
from datasets import disable_progress_bars
from transformers import set_seed

from .checkpoints import find_checkpoint
from .run_arguments import TRAINED, Settings, changed_arguments
from .run_checks import check_settings
from .run_facts import FactsOfTheRun


logger = logging.getLogger(__name__)

# Arguments that a resumed run takes from its checkpoint, whatever the caller gives.
KEPT_FROM_CHECKPOINT = {"learning_rate", "rate_factor", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}
KEPT_FROM_CHECKPOINT |= {"preset", "config_overrides", *TRAINED}


class Start(NamedTuple):
    """Where a run starts: the checkpoint, whether it is this run's own, and the facts recorded so far."""

    checkpoint: Path | None
    resumes: bool
    facts: FactsOfTheRun


def begin(settings: Settings) -> Start:
    """Find the checkpoint to resume from, and check the settings before any work.

    Raises:
        OSError, ValueError: see `find_checkpoint` and `check_settings`.
    """
    model_args, args = settings.model, settings.args
    if args.process_index > 0:
        leave_output_to_main_process()
    set_seed(args.seed)
    wanted = args.resume_from_checkpoint
    checkpoint = find_checkpoint(wanted, settings.output) if wanted else None
    if wanted:
        check_same_checkpoint(checkpoint)
    resumes = checkpoint is not None and checkpoint.resolve().parent == settings.output.resolve()
    check_settings(settings, checkpoint, resumes)
    facts = FactsOfTheRun.of_checkpoint(checkpoint) if checkpoint else FactsOfTheRun()
    facts.base_model = model_args.model_name_or_path = located(model_args.model_name_or_path) or facts.base_model
    facts.optimizer = facts.optimizer or args.describe_optimizer()
    changes = facts.replace_settings(
        {**changed_arguments(model_args, settings.data, args), "processes": args.world_size}
    )
    if args.process_index == 0:
        log_changes(checkpoint, changes)
        log_unused(settings)
    return Start(checkpoint, resumes, facts)


def leave_output_to_main_process() -> None:
    disable_progress_bars()
    logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)


def check_same_checkpoint(checkpoint: Path | None) -> None:
    """Check that all processes resume from one checkpoint. Only the first writes them, perhaps to a disk of its own.

    Raises:
        ValueError: if this process found another checkpoint than the first one.
    """
    (of_the_first,) = broadcast_object_list([checkpoint])
    if checkpoint != of_the_first:
        raise ValueError(
            f"the first process resumes from {of_the_first or 'no checkpoint'}, but this one from "
            f"{checkpoint or 'no checkpoint'}; give all machines one folder, or copy the checkpoint to each."
        )


def located(model: str | None) -> str | None:
    """A model's name on the Hub, or the absolute path of its folder, which cannot be taken for a name."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def log_changes(checkpoint: Path | None, changes: dict[str, str]) -> None:
    """Log which settings differ from a checkpoint's: those that are new, and those that the checkpoint overrides."""
    kept = [name for name in changes if name in KEPT_FROM_CHECKPOINT]
    new = [words for name, words in changes.items() if name not in kept]
    if new:
        logger.info("%s was written with other settings; now: %s", checkpoint, "; ".join(new))
    if kept:
        logger.info("%s: without effect, because %s has its own", ", ".join(kept), checkpoint)


def log_unused(settings: Settings) -> None:
    """Log which arguments have no effect in combination with the others."""
    model_args, args = settings.model, settings.args
    of_tokenizer = [name for name in TRAINED if name in changed_arguments(model_args)]
    if model_args.model_name_or_path is not None and of_tokenizer:
        has_one = f"{model_args.model_name_or_path} has a tokenizer"
        logger.info("%s: without effect, because %s", ", ".join(of_tokenizer), has_one)
    if args.eval_strategy != "no":
        return
    given = {name: getattr(args, name) for name in ("eval_steps", "metric_for_best_model", "predict_with_generate")}
    given |= {"validation_file": settings.data.validation_file}
    # The Trainer sets the metric, too.
    unused = [name for name, value in given.items() if value and (name, value) != ("metric_for_best_model", "loss")]
    if unused:
        advice = "--eval_strategy steps or epoch adds evaluations"
        logger.info("without effect during training: %s; %s", ", ".join(unused), advice)
