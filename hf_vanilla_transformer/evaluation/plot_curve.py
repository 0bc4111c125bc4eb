"""Curves of training runs as pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..support.figure_style import VISIBLE, new_figure, styled
from ..support.user_errors import InputError


# Of the runs of one colour, in order.
_MARKERS = (".", "x", "s", "^")
# Of the metrics, one for each panel, in order.
_LABELS = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy (percent)",
    "bleu": "BLEU",
}


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
    for name, curve in curves.items():
        if not curve["points"] or any("training_seconds" not in point for point in curve["points"]):
            raise InputError(f"the curve of {name} has no points with training_seconds to plot; give another run.")
    points = [point for curve in curves.values() for point in curve["points"]]
    panels = [metric for metric in _LABELS if all(metric in point for point in points)]
    if not panels:
        raise InputError("some points have no BLEU, and some no loss; plot curves that share one of the two.")
    with styled(theme) as colours:
        from matplotlib.lines import Line2D

        rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
        figure = new_figure(5 * columns, 3.5 * rows)
        for number, metric in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, number)
            runs = [_draw_run(axes, metric, index, *run, colours.lines) for index, run in enumerate(curves.items())]
            axes.set_xlabel("training time (minutes, without evaluations)")
            axes.set_ylabel(_LABELS[metric])
            if metric == "perplexity":
                axes.set_yscale("log")
            axes.grid(alpha=0.3)
        has_training = any(curve.get("training") for curve in curves.values())
        handles = runs if len(curves) > 1 else []
        if has_training:
            training = "training (with dropout; loss as minimized)"
            handles.append(Line2D([], [], color="gray", marker=".", label="validation"))
            handles.append(Line2D([], [], color="gray", linestyle="--", linewidth=1, label=training))
        if handles:
            figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_run(axes: Any, metric: str, index: int, name: str, curve: Mapping[str, Any], colours: Sequence[str]) -> Any:
    """Draw a metric of a run; returns the line of validation."""
    color, marker = colours[index % len(colours)], _MARKERS[index // len(colours) % len(_MARKERS)]
    training = {"linestyle": "--", "linewidth": 1, "marker": None if marker == "." else marker}
    axes.plot(*_series(curve.get("training", []), metric), color=color, markersize=3, **training)
    return axes.plot(*_series(curve["points"], metric), color=color, marker=marker, label=name.translate(VISIBLE))[0]


def _series(points: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Minutes of training and values of a metric, of the points that have both."""
    known = [point for point in points if metric in point and "training_seconds" in point]
    return [point["training_seconds"] / 60 for point in known], [point[metric] for point in known]
