"""Plot the curves of training runs: loss, perplexity, token accuracy and BLEU against training time."""

import itertools
import math
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
    for name, curve in curves.items():
        _check_has_times(name, curve)
    metrics = _find_common_metrics(curves)
    if not metrics:
        raise InputError("some points have no BLEU, and some no loss; plot curves that share one of the two.")

    with styled(theme) as colors:
        figure, panels = _new_grid(num_panels=len(metrics))
        for axes, metric in zip(panels, metrics, strict=True):
            validation_lines = _draw_panel(axes, metric, curves, colors.lines)

        # One legend serves all panels, because each run looks the same in all of them. It shows the last panel's lines.
        legend_lines = _choose_legend_lines(curves, validation_lines)
        if legend_lines:
            figure.legend(handles=legend_lines, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _new_grid(num_panels: int) -> tuple["Figure", list["Axes"]]:
    """Return a figure and its panels, which are in a grid with at most two columns. Sizes are in inches."""
    num_columns = min(num_panels, 2)
    num_rows = math.ceil(num_panels / num_columns)
    figure = new_figure(width=5 * num_columns, height=3.5 * num_rows)
    panels = []
    for panel_number in range(1, num_panels + 1):
        panels.append(figure.add_subplot(num_rows, num_columns, panel_number))
    return figure, panels


def _check_has_times(name: str, curve: Mapping[str, Any]) -> None:
    """Raise ValueError if a run's curve has no evaluations, or if the training time of an evaluation is unknown."""
    points = curve["points"]
    if not points or any("training_seconds" not in point for point in points):
        raise InputError(f"the curve of {name} has no points with training_seconds to plot; give another run.")


def _find_common_metrics(curves: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the metrics that every evaluation of every run contains, in the order of their panels."""
    points = []
    for curve in curves.values():
        points.extend(curve["points"])
    return [metric for metric in _LABELS if all(metric in point for point in points)]


def _draw_panel(
    axes: "Axes", metric: str, curves: Mapping[str, Mapping[str, Any]], colors: Sequence[str]
) -> list["Line2D"]:
    """Draw one metric of all runs. Return the validation line of each run."""
    # The runs get all colors with the first marker, then all colors with the second marker, and so on.
    styles = itertools.cycle(itertools.product(_MARKERS, colors))
    validation_lines = []
    for name, curve in curves.items():
        marker, color = next(styles)
        validation_line = _draw_run(axes, metric, name=name, curve=curve, color=color, marker=marker)
        validation_lines.append(validation_line)
    _set_up_axes(axes, metric)
    return validation_lines


def _set_up_axes(axes: "Axes", metric: str) -> None:
    """Set the labels, the scale and the grid of a panel."""
    axes.set_xlabel("training time (minutes, without evaluations)")
    axes.set_ylabel(_LABELS[metric])
    if metric == "perplexity":
        # At the beginning of a training, the perplexity is many times as high as at the end.
        axes.set_yscale("log")
    axes.grid(alpha=0.3)


def _draw_run(axes: "Axes", metric: str, name: str, curve: Mapping[str, Any], color: str, marker: str) -> "Line2D":
    """Draw a metric of a run as two lines, for training and for validation. Return the validation line.

    Args:
        axes: the panel.
        metric: the name of the metric, which is its key in the points of a curve.
        name: the name of the run, which the legend shows.
        curve: the curve of the run; see [`plot_curve`].
        color, marker: the color of both lines, and the marker of the validation line.
    """
    # Runs with the first marker need no marker on the dashed line, because their colors differ.
    training_marker = None
    if marker != _MARKERS[0]:
        training_marker = marker
    minutes, values = _list_coordinates(curve.get("training", []), metric)
    axes.plot(minutes, values, color=color, markersize=3, linestyle="--", linewidth=1, marker=training_marker)

    validation_minutes, validation_values = _list_coordinates(curve["points"], metric)
    # SVG files cannot contain most control characters, so these are replaced by visible ones.
    label = name.translate(VISIBLE)
    # `plot` returns a list of the lines that it has drawn, here of one line.
    (validation_line,) = axes.plot(validation_minutes, validation_values, color=color, marker=marker, label=label)
    return validation_line


def _list_coordinates(points: Sequence[Mapping[str, float]], metric: str) -> tuple[list[float], list[float]]:
    """Return the training times in minutes and the values of a metric, for the points that contain both."""
    minutes = []
    values = []
    for point in points:
        if metric in point and "training_seconds" in point:
            minutes.append(point["training_seconds"] / 60)
            values.append(point[metric])
    return minutes, values


def _choose_legend_lines(
    curves: Mapping[str, Mapping[str, Any]], validation_lines: Sequence["Line2D"]
) -> list["Line2D"]:
    """Return the lines that the legend explains, or an empty list if the figure needs no legend.

    Args:
        curves: the curves of all runs; see [`plot_curve`].
        validation_lines: the validation line of each run, which is labeled with the name of the run.
    """
    legend_lines: list[Line2D] = []
    # A single run needs no name.
    if len(curves) > 1:
        legend_lines += validation_lines
    has_training_lines = any(curve.get("training") for curve in curves.values())
    if has_training_lines:
        legend_lines += _make_line_samples()
    return legend_lines


def _make_line_samples() -> list["Line2D"]:
    """Return two gray lines for the legend: a solid one for validation, and a dashed one for training."""
    from matplotlib.lines import Line2D

    validation = Line2D([], [], color="gray", marker=".", label="validation")
    training_label = "training (with dropout; loss as minimized)"
    training = Line2D([], [], color="gray", linestyle="--", linewidth=1, label=training_label)
    return [validation, training]
