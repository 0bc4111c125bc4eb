"""Pictures of Equation 3, the learning rate of section 5.3."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..support.argument_checks import check_number
from ..support.paper_schedule import paper_learning_rate
from .figure_style import new_figure, styled


_LINE_STYLES = ("-", "--", ":", "-.")
# Points of a curve of the schedule.
_POINTS = 400


def plot_schedule(
    d_model: Sequence[int] = (256, 512, 1024),
    warmup_steps: Sequence[int] = (4000, 8000),
    *,
    updates: int = 20_000,
    theme: str = "light",
) -> Any:
    """Draw Equation 3, the learning rate of section 5.3, for each d_model with each number of warm-up updates.

    Args:
        d_model, warmup_steps (`Sequence[int]`): one curve for each pair; a colour for each d_model, a line style for
            each number of warm-up updates.
        updates (`int`): length of the axis.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, a number is below 1, or there are more values than colours or line styles.
    """
    check_number("updates", updates, 1)
    with styled(theme) as colours:
        for name, values, most in (("d_model", d_model, colours.lines), ("warmup_steps", warmup_steps, _LINE_STYLES)):
            check_number(f"the number of values of {name}", len(values), 1, len(most))
            for value in values:
                check_number(name, value, 1)
        figure = new_figure(7.5, 4.2)
        axes = figure.add_subplot()
        for colour, width in zip(colours.lines, d_model, strict=False):
            for line, warmup in zip(_LINE_STYLES, warmup_steps, strict=False):
                points = np.linspace(1, updates, min(updates, _POINTS)).astype(int).tolist()
                at = sorted({*points, min(warmup, updates)})  # The peak is between two points otherwise.
                rates = [paper_learning_rate(update, width, warmup) for update in at]
                axes.plot(at, rates, line, color=colour, label=f"d_model {width}, warm-up {warmup:,}")
        axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None), xlim=(0, updates))
        axes.ticklabel_format(axis="y", style="plain")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid()
        axes.legend(frameon=False)
    return figure
