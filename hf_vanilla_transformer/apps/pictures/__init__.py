"""Pictures as `matplotlib.figure.Figure`: attention, positions, masks, the schedule, probabilities, curves.

Without pyplot and without settings that outlive a call. `figure.savefig(path)` writes a file, and [`save_figure`] one
whose text stays text in SVG and PDF.
"""

from ...evaluation.plot_curve import plot_curve
from ...support.figure_style import save_figure
from .attention import plot_attention
from .masks import plot_masks
from .paper_formulas import plot_positions, plot_schedule
from .token_probabilities import plot_token_probabilities


__all__ = [
    "plot_attention",
    "plot_curve",
    "plot_masks",
    "plot_positions",
    "plot_schedule",
    "plot_token_probabilities",
    "save_figure",
]
