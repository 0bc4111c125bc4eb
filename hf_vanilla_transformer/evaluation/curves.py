"""Validation curves of training runs, as JSON and as plots."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from ..files import whole_file, write_text
from . import METRICS


CURVE = "curve.json"
PLOT = "curve.png"
_SECONDS_IN_A_MINUTE = 60

logger = logging.getLogger(__name__)


def write_curve(folder: Path, log_history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Write the validation curve of a run as JSON and, if matplotlib is installed, as a plot.

    Args:
        folder (`Path`): folder for `curve.json` and `curve.png`.
        log_history (`list` of `dict`): `trainer.state.log_history`. With
            [`~hf_vanilla_transformer.training.facts.FactsOfTheRun`] among the callbacks it holds times, those before a
            resume included.

    Returns:
        `dict`: `best`, the evaluation with the highest BLEU, or with the lowest loss if the curve has no BLEU; and
        `points`, one item for each evaluation, in order, with those of these keys that the log holds: `updates`,
        `epoch`, `loss`, `bleu` and `chrf` (percent), `training_seconds` since the start, without evaluations, and
        `evaluation_seconds`, the total of all evaluations so far. None, and no file, if the run has no evaluations.
    """
    names = {"step": "updates", "epoch": "epoch", **{f"eval_{name}": name for name in ("loss", *METRICS)}}
    names |= {name: name for name in ("training_seconds", "evaluation_seconds")}
    evaluations = (entry for entry in log_history if any(name.startswith("eval_") for name in entry))
    points = [{ours: entry[name] for name, ours in names.items() if name in entry} for entry in evaluations]
    if not points:
        return None
    best = max(points, key=lambda point: (point.get("bleu", -inf), -point.get("loss", inf)))
    curve = {"best": best, "points": points}
    write_text(folder / CURVE, json.dumps(curve, indent=2) + "\n")
    try:
        plot_curves({"validation": points}, folder / PLOT)
    except (ImportError, ValueError) as error:
        logger.warning("%s is not written: %s", PLOT, error)
    return curve


def read_curve(path: str | os.PathLike[str]) -> list[dict[str, float]]:
    """Read the points of a curve that `hf-vanilla-transformer train` wrote.

    Args:
        path (`str` or `PathLike`): folder of a run, its `curve.json`, or a file of results.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it holds no curve.
    """
    file = Path(path) / CURVE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; name the folder of a run with evaluations (--eval_strategy steps)."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        points = content.get("curve", content)["points"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} holds no curve; name a {CURVE} or a file of results.") from error
    return list(points)


def plot_curves(curves: Mapping[str, Sequence[Mapping[str, float]]], path: str | os.PathLike[str]) -> Path:
    """Plot validation BLEU, or the loss if not every point has BLEU, against minutes of training.

    Args:
        curves (`dict` of `str` to `list` of `dict`): points of curves, see [`write_curve`], by name.
        path (`str` or `PathLike`): file to write; its suffix determines the format, such as `.svg`; PNG without one.

    Returns:
        `Path`: the file.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if a curve has no points or no times, neither BLEU nor loss is known for all points, or matplotlib
            does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib; install it with: pip install '/path/to/the/repository[plots]'"
        ) from error
    for name, curve in curves.items():
        if not curve or any("training_seconds" not in point for point in curve):
            raise ValueError(
                f"the curve of {name} has no points with training_seconds, so it has no plot; give another run."
            )
    points = [point for curve in curves.values() for point in curve]
    metric = next((name for name in ("bleu", "loss") if all(name in point for point in points)), None)
    if metric is None:
        raise ValueError("some points have no BLEU, and some no loss; plot curves that share one of the two.")
    target = Path(path)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        minutes = [point["training_seconds"] / _SECONDS_IN_A_MINUTE for point in curve]
        axes.plot(minutes, [point[metric] for point in curve], marker=".", label=name)
    axes.set_xlabel("training time (minutes, without evaluations)")
    axes.set_ylabel("validation BLEU" if metric == "bleu" else "validation loss")
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    with whole_file(target, binary=True) as file:
        figure.savefig(file, format=target.suffix.removeprefix(".") or "png", dpi=150)
    return target
