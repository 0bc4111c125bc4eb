"""Draw a model's attention weights, masks, positional encodings and token probabilities, and its training curves.

Each function returns a `matplotlib.figure.Figure`, does not use pyplot, and changes no matplotlib settings.
`figure.savefig(path)` writes the figure to a file. [`save_figure`] does the same, and keeps text as text in SVG and
PDF files.
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
