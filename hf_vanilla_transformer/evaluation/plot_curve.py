"""Plot the curves of training runs: loss, perplexity, token accuracy and BLEU against training time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..support.figure_style import VISIBLE, new_figure, styled
from ..support.user_errors import InputError


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# Markers that distinguish runs with the same color, in order.
_MARKERS = (".", "x", "s", "^")
# Labels of the plotted metrics, in the order of their panels.
_LABELS = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy (percent)",
    "bleu": "BLEU",
}


def plot_curve(curves: Mapping[str, Mapping[str, Any]], *, theme: str = "light") -> "Figure":
    """Plot the loss, perplexity, token accuracy and BLEU of training runs against the training time in minutes.

    A metric gets a panel if every evaluation of every run contains it. Validation is drawn as a solid line, and
    training as a dashed line. Each run has its own color. From the seventh run on, colors repeat with a different
    marker.

    Args:
        curves (`dict`): curves that [`read_curve`] returned, with the name of each run as key.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, if a curve has no points or no times, or if no metric is in all points.
    """
    points = []
    for name, curve in curves.items():
        if not curve["points"] or any("training_seconds" not in point for point in curve["points"]):
            raise InputError(f"the curve of {name} has no points with training_seconds to plot; give another run.")
        points += curve["points"]
    metrics = [metric for metric in _LABELS if all(metric in point for point in points)]
    if not metrics:
        raise InputError("some points have no BLEU, and some no loss; plot curves that share one of the two.")

    with styled(theme) as colours:
        columns = min(len(metrics), 2)
        rows = (len(metrics) + 1) // 2
        figure = new_figure(5 * columns, 3.5 * rows)
        for panel, metric in enumerate(metrics, start=1):
            axes = figure.add_subplot(rows, columns, panel)
            run_lines = []
            for index, (name, curve) in enumerate(curves.items()):
                colour = colours.lines[index % len(colours.lines)]
                marker = _MARKERS[index // len(colours.lines) % len(_MARKERS)]
                run_lines.append(_draw_run(axes, metric, name, curve, colour, marker))
            axes.set_xlabel("training time (minutes, without evaluations)")
            axes.set_ylabel(_LABELS[metric])
            if metric == "perplexity":
                axes.set_yscale("log")
            axes.grid(alpha=0.3)

        # One legend serves all panels, because each run looks the same in all of them.
        legend_lines = []
        if len(curves) > 1:
            legend_lines += run_lines
        if any(curve.get("training") for curve in curves.values()):
            legend_lines += _make_line_samples()
        if legend_lines:
            figure.legend(handles=legend_lines, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_run(axes: "Axes", metric: str, name: str, curve: Mapping[str, Any], colour: str, marker: str) -> "Line2D":
    """Draw a metric of a run as two lines, for training and for validation. Return the validation line."""
    minutes, values = _list_coordinates(curve.get("training", []), metric)
    # Runs with the first marker need no marker on the dashed line, because their colors differ.
    training_marker = None if marker == "." else marker
    axes.plot(minutes, values, color=colour, markersize=3, linestyle="--", linewidth=1, marker=training_marker)

    minutes, values = _list_coordinates(curve["points"], metric)
    (line,) = axes.plot(minutes, values, color=colour, marker=marker, label=name.translate(VISIBLE))
    return line


def _list_coordinates(points: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Return the training times in minutes and the values of a metric, for the points that contain both."""
    minutes = []
    values = []
    for point in points:
        if metric in point and "training_seconds" in point:
            minutes.append(point["training_seconds"] / 60)
            values.append(point[metric])
    return minutes, values


def _make_line_samples() -> list["Line2D"]:
    """Return two gray lines for the legend: a solid one for validation, and a dashed one for training."""
    from matplotlib.lines import Line2D

    validation = Line2D([], [], color="gray", marker=".", label="validation")
    training_label = "training (with dropout; loss as minimized)"
    training = Line2D([], [], color="gray", linestyle="--", linewidth=1, label=training_label)
    return [validation, training]
