"""Plot the curves of training runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..support.figure_style import VISIBLE, new_figure, styled
from ..support.user_errors import InputError


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# Markers of runs that have the same colour, in order.
_MARKERS = (".", "x", "s", "^")
# Labels of the metrics that have a panel, in the order of the panels.
_LABELS = {
    "loss": "loss (nats per token)",
    "perplexity": "perplexity",
    "token_accuracy": "token accuracy (percent)",
    "bleu": "BLEU",
}


def plot_curve(curves: Mapping[str, Mapping[str, Any]], *, theme: str = "light") -> "Figure":
    """Plot loss, perplexity, token accuracy and BLEU of runs against the training time in minutes.

    A metric has a panel if all evaluations of all runs have it. Validation has a solid line and training a dashed one.
    Each run has its own colour; from the seventh run on, the colours repeat with a different marker.

    Args:
        curves (`dict`): results of [`read_curve`], by the name of the run.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, a curve has no points or no times, or no metric is known for all points.
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

        # The legend names the runs once for all panels, because each run looks the same in all of them.
        legend_lines = []
        if len(curves) > 1:
            legend_lines += run_lines
        if any(curve.get("training") for curve in curves.values()):
            legend_lines += _make_line_samples()
        if legend_lines:
            figure.legend(handles=legend_lines, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_run(axes: "Axes", metric: str, name: str, curve: Mapping[str, Any], colour: str, marker: str) -> "Line2D":
    """Draw a metric of a run, for training and validation, and return the line of validation."""
    minutes, values = _list_coordinates(curve.get("training", []), metric)
    # The runs of the first marker need none on the dashed line, because their colours differ.
    training_marker = None if marker == "." else marker
    axes.plot(minutes, values, color=colour, markersize=3, linestyle="--", linewidth=1, marker=training_marker)

    minutes, values = _list_coordinates(curve["points"], metric)
    (line,) = axes.plot(minutes, values, color=colour, marker=marker, label=name.translate(VISIBLE))
    return line


def _list_coordinates(points: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Return the minutes of training and the values of a metric, for the points that have both."""
    minutes = []
    values = []
    for point in points:
        if metric in point and "training_seconds" in point:
            minutes.append(point["training_seconds"] / 60)
            values.append(point[metric])
    return minutes, values


def _make_line_samples() -> list["Line2D"]:
    """Return two gray lines for the legend, which explain how validation and training are drawn."""
    from matplotlib.lines import Line2D

    validation = Line2D([], [], color="gray", marker=".", label="validation")
    training_label = "training (with dropout; loss as minimized)"
    training = Line2D([], [], color="gray", linestyle="--", linewidth=1, label=training_label)
    return [validation, training]
