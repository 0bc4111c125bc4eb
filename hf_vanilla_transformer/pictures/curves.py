"""Curves of training runs: what training and validation measured, as JSON and as plots."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from ..evaluation import METRICS, TOKEN_METRICS
from ..support.atomic_files import write_text
from .figure_style import new_figure, save_figure, styled
from .token_labels import VISIBLE


CURVE = "curve.json"
PLOT = "curve.png"
_TIMES = ("training_seconds", "evaluation_seconds")
# Of the runs of one colour, in order.
_MARKERS = (".", "x", "s", "^")
# The axes of the plot, in order: metric and label.
_PANELS = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy (percent)",
    "bleu": "BLEU",
}

logger = logging.getLogger(__name__)


def write_curve(folder: Path, log_history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Write the curve of a run as JSON and, if matplotlib is installed, as a plot.

    Args:
        folder (`Path`): folder for `curve.json` and `curve.png`.
        log_history (`list` of `dict`): `trainer.state.log_history`. The callback
            [`~hf_vanilla_transformer.training.run_facts.FactsOfTheRun`] adds times to it, also those before a resume;
            [`~hf_vanilla_transformer.training.token_metrics.TokenMetricsTrainer`] adds perplexity and token accuracy.

    Returns:
        `dict`: `best`, the evaluation with the highest BLEU, or with the lowest loss if the curve has no BLEU;
        `points`, one item for each evaluation, in order, with those of these keys that the log holds: `updates`,
        `epoch`, `loss`, `perplexity`, `token_accuracy`, `bleu` and `chrf` (percent), `training_seconds` since the
        start, without evaluations, and `evaluation_seconds`, the total of all evaluations so far; and `training`, the
        same of the training batches between two entries of the log. None, and no file, if the run has no evaluations.
    """
    points = _points(log_history, "eval_", (*TOKEN_METRICS, *METRICS))
    if not points:
        return None
    best = max(points, key=lambda point: (point.get("bleu", -inf), -point.get("loss", inf)))
    curve = {"best": best, "points": points, "training": _points(log_history, "", TOKEN_METRICS)}
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
        raise FileNotFoundError(
            f"{file} does not exist; name the folder of a run with evaluations (--eval_strategy steps)."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        curve = content.get("curve", content)
        found = {"points": list(curve["points"]), "training": list(curve.get("training", []))}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} holds no curve; name a {CURVE} or a file of results.") from error
    for point in chain(*found.values()):
        if not isinstance(point, dict) or not all(isinstance(value, (int, float)) for value in point.values()):
            raise ValueError(f"{file} has the point {repr(point)[:100]}, not an object of numbers; name a {CURVE}.")
    return found


def plot_curve(curves: Mapping[str, Any], *, theme: str = "light") -> Any:
    """Draw loss, perplexity, token accuracy and BLEU of runs, as far as all have them, by minutes of training.

    Validation is solid, training dashed, and each run has a colour; from the seventh on another marker, too.

    Args:
        curves (`dict`): what [`read_curve`] returns, by name.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, a curve has no points or no times, or no metric is known for all points.
    """
    panels = _panels_of(curves)
    with styled(theme) as colours:
        rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
        figure = new_figure(5 * columns, 3.5 * rows)
        for number, metric in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, number)
            for index, curve in enumerate(curves.values()):
                colour, marker = _style(index, colours.lines)
                training = {"linestyle": "--", "linewidth": 1, "marker": None if marker == "." else marker}
                axes.plot(*_series(curve.get("training", []), metric), color=colour, markersize=3, **training)
                axes.plot(*_series(curve["points"], metric), color=colour, marker=marker)
            axes.set_xlabel("training time (minutes, without evaluations)")
            axes.set_ylabel(_PANELS[metric])
            if metric == "perplexity":
                axes.set_yscale("log")
            axes.grid(alpha=0.3)
        _add_legend(figure, curves, colours.lines)
    return figure


def _style(index: int, colours: Sequence[str]) -> tuple[str, str]:
    """Colour and marker of a run."""
    return colours[index % len(colours)], _MARKERS[index // len(colours) % len(_MARKERS)]


def _panels_of(curves: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The metrics that a plot of curves shows: those of all evaluations.

    Raises:
        ValueError: see [`plot_curve`].
    """
    for name, curve in curves.items():
        if not curve["points"] or any("training_seconds" not in point for point in curve["points"]):
            raise ValueError(
                f"the curve of {name} has no points with training_seconds, so it has no plot; give another run."
            )
    points = [point for curve in curves.values() for point in curve["points"]]
    panels = [metric for metric in _PANELS if all(metric in point for point in points)]
    if not panels:
        raise ValueError("some points have no BLEU, and some no loss; plot curves that share one of the two.")
    return panels


def _series(points: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Minutes of training and values of a metric, of the points that have both."""
    known = [point for point in points if metric in point and "training_seconds" in point]
    return [point["training_seconds"] / 60 for point in known], [point[metric] for point in known]


def _add_legend(figure: Any, curves: Mapping[str, Mapping[str, Any]], colors: Sequence[str]) -> None:
    """Name the runs by color, if there are several, and the two kinds of line."""
    from matplotlib.lines import Line2D

    handles = []
    if len(curves) > 1:
        styles = [_style(index, colors) for index in range(len(curves))]
        handles = [
            Line2D([], [], color=color, marker=marker, label=name.translate(VISIBLE))
            for name, (color, marker) in zip(curves, styles, strict=True)
        ]
    if any(curve.get("training") for curve in curves.values()):
        handles.append(Line2D([], [], color="gray", marker=".", label="validation"))
        training = "training (with dropout; loss as minimized)"
        handles.append(Line2D([], [], color="gray", linestyle="--", linewidth=1, label=training))
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
