"""Evaluate models: metrics of translations, evaluation on test pairs, and curves of training runs."""
