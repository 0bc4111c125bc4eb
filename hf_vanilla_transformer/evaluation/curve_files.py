"""Curves of training runs as files: what training and validation measured."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from ..support.atomic_files import write_text
from ..support.figure_style import save_figure
from ..support.user_errors import InputError
from .plot_curve import plot_curve


logger = logging.getLogger(__name__)

CURVE = "curve.json"
PLOT = "curve.png"
# Metrics of target tokens under teacher forcing: nats per token, and percent. They need no translation.
_TOKEN_METRICS = ("loss", "perplexity", "token_accuracy")
_TIMES = ("training_seconds", "evaluation_seconds")


def write_curve(folder: Path, log_history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Write the curve of a run as JSON and, if matplotlib is installed, as a plot.

    Args:
        folder (`Path`): folder for `curve.json` and `curve.png`.
        log_history (`list` of `dict`): `trainer.state.log_history`. The callback
            [`~hf_vanilla_transformer.training.trainer_callbacks.RecordFacts`] adds times, also those before a resume;
            [`~hf_vanilla_transformer.TokenMetricsTrainer`] adds perplexity and token accuracy.

    Returns:
        `dict`: `best`, the evaluation with the highest BLEU, or with the lowest loss if the curve has no BLEU;
        `points`, one item for each evaluation, in order, with those of these keys that the log holds: `updates`,
        `epoch`, `loss`, `perplexity`, `token_accuracy`, `bleu` and `chrf` (percent), `training_seconds` since the
        start, without evaluations, and `evaluation_seconds`, the total of all evaluations so far; and `training`, the
        same of the training batches between two entries of the log. None, and no file, if the run has no evaluations.
    """
    # Not at the top, because readers of curves need no metrics.
    from .metrics import METRICS

    points = _points(log_history, "eval_", (*_TOKEN_METRICS, *METRICS))
    if not points:
        return None
    best = max(points, key=lambda point: (point.get("bleu", -inf), -point.get("loss", inf)))
    curve = {"best": best, "points": points, "training": _points(log_history, "", _TOKEN_METRICS)}
    write_text(folder / CURVE, json.dumps(curve, indent=2) + "\n")
    try:
        save_figure(plot_curve({"validation": curve}), folder / PLOT)
    except (ImportError, ValueError) as error:
        logger.warning("%s is not written: %s", PLOT, error)
    return curve


def _points(log_history: Sequence[Mapping[str, Any]], prefix: str, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """The entries of a log that hold one of the metrics, with our names."""
    measured = {f"{prefix}{name}": name for name in metrics}
    names = {"step": "updates", "epoch": "epoch", **measured, **{name: name for name in _TIMES}}
    entries = [entry for entry in log_history if measured.keys() & entry.keys()]
    return [{ours: entry[name] for name, ours in names.items() if name in entry} for entry in entries]


def read_curve(path: str | os.PathLike[str]) -> dict[str, list[dict[str, float]]]:
    """Read a curve that `hf-vanilla-transformer train` wrote.

    Args:
        path (`str` or `PathLike`): folder of a run, its `curve.json`, or a file of results.

    Returns:
        `dict`: `points` and `training`, see [`write_curve`]; `training` is empty if the file has none.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it holds no curve.
    """
    file = Path(path) / CURVE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; name a run with evaluations (--eval_strategy steps).")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        curve = content.get("curve", content)
        found = {"points": list(curve["points"]), "training": list(curve.get("training", []))}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} holds no curve; name a {CURVE} or a file of results.") from error
    for point in chain(*found.values()):
        if not isinstance(point, dict) or not all(isinstance(value, (int, float)) for value in point.values()):
            raise InputError(f"{file} has the point {repr(point)[:100]}, not an object of numbers; name a {CURVE}.")
    return found
