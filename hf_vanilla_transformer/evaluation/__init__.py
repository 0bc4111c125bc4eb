"""Weights in, figures out."""

from .curves import plot_curves, read_curve, summarize_curve, validation_curve, write_curve
from .environment import describe_environment
from .metrics import Bleu, ChrF, make_compute_metrics, score_translations
from .results import changed_arguments, table_of_results


__all__ = [
    "Bleu",
    "ChrF",
    "changed_arguments",
    "describe_environment",
    "make_compute_metrics",
    "plot_curves",
    "read_curve",
    "score_translations",
    "summarize_curve",
    "table_of_results",
    "validation_curve",
    "write_curve",
]
