"""The results file of a run: its settings and its machine, recorded before it, and its outcome."""

import json
import logging
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainer

from ..support.atomic_files import write_text
from ..support.machine_and_versions import describe_environment
from .paper_arguments import describe_precision
from .run_arguments import Settings, changed_arguments
from .run_facts import FactsOfTheRun


logger = logging.getLogger(__name__)


def describe_run(settings: Settings) -> dict[str, Any]:
    """What the results file records of a run in addition to its outcome."""
    model_args, data_args, decoding, scoring, args = settings
    return {
        "base_model": public_name(model_args.model_name_or_path),
        "settings": changed_arguments(model_args, data_args, decoding, scoring, args),
        **(describe_environment(args.device) if args.results else {}),
    }


def public_name(model: str | None) -> str | None:
    """A model's name on the Hub, or the name of its folder without the path."""
    return Path(model).name if model is not None and Path(model).is_absolute() else model


def save_results(
    path: str, trainer: Seq2SeqTrainer, facts: FactsOfTheRun, curve: dict[str, Any] | None, record: dict[str, Any]
) -> None:
    """Write the outcome of a run and its record into one JSON file."""
    model: Any = trainer.model
    results = {
        "seed": trainer.args.seed,
        **record,
        "parameters": model.num_parameters(),
        "optimizer": facts.optimizer,
        "precision": describe_precision(trainer.args),
        "updates": trainer.state.global_step,
        **describe_best(trainer),
        "training_seconds": facts.seconds - facts.evaluation_seconds,
        "evaluation_seconds": facts.evaluation_seconds,
        "curve": curve,
    }
    write_text(path, json.dumps(results, indent=2) + "\n")
    logger.info("the results are in %s", path)


def describe_best(trainer: Seq2SeqTrainer) -> dict[str, str]:
    """The update that the weights come from, if it is not the last one."""
    args, best = trainer.args, trainer.state.best_global_step
    if not args.load_best_model_at_end or best is None:
        return {}
    return {"weights": f"of update {best:,}, the best by {args.metric_for_best_model}"}
