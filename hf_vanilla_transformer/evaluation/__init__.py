"""Weights in, figures out."""

from .metrics import Bleu, ChrF, make_compute_metrics, score_translations


__all__ = ["Bleu", "ChrF", "make_compute_metrics", "score_translations"]
