"""Scores of a run's saved model, and of its average compared with its last checkpoint."""

import logging
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..evaluation.evaluate import evaluate
from ..translation.model_loading import load
from .run_arguments import Settings


logger = logging.getLogger(__name__)


def compare_average(settings: Settings, pairs: DatasetDict, updates: int) -> dict[str, Any]:
    """Scores of the saved average and of the last checkpoint on the validation pairs; logs which has more BLEU."""
    last = settings.output / f"{PREFIX_CHECKPOINT_DIR}-{updates}"
    logger.info("comparing the average with %s on %s validation pairs", last.name, f"{len(pairs['validation']):,}")
    folders = {"average": settings.output, "last_checkpoint": last}
    scores: dict[str, Any] = {
        name: evaluate_saved("validation", settings, pairs, folder) for name, folder in folders.items()
    }
    gain = scores["average"]["bleu"] - scores["last_checkpoint"]["bleu"]
    verdict = "the average is better" if gain > 0 else "both are equal"
    if gain < 0:
        verdict = f"the last checkpoint is better; --average_last saves the average, and {last} is the other"
    logger.info("validation BLEU: %s; %s", describe_average(scores), verdict)
    return scores


def describe_average(scores: dict[str, Any]) -> str:
    return f"average {scores['average']['bleu']:.2f}, last checkpoint {scores['last_checkpoint']['bleu']:.2f}"


def evaluate_saved(
    split: str, settings: Settings, pairs: DatasetDict, folder: Path | None = None
) -> dict[str, Any] | None:
    """Scores of the saved model on a split, with the model's own search; None if the data has no such split.

    The model in memory may still use the precision of the training; users load the saved one.

    Args:
        folder: another model of the run.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(folder or settings.output), settings.args.device)
    return evaluate(
        model,
        pairs[split],
        tokenizer,
        data=settings.data.describe(split),
        tokenize=settings.scoring.bleu_tokenize,
        lowercase=settings.scoring.lowercase,
        **settings.decoding.generate_kwargs(),
    ).scores
