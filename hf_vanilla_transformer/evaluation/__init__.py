"""Weights in, metrics and plots out."""

# Metrics of translations, in percent, by the name that `score_translations`, logs and files of results give them.
METRICS = ("bleu", "chrf")
