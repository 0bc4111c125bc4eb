"""Pictures of a model as `matplotlib.figure.Figure`: attention, masks, positions, probabilities, schedule and curves.

They do not use pyplot, and no setting of matplotlib changes. `figure.savefig(path)` writes a file; [`save_figure`]
writes one whose text stays text in SVG and PDF.
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
