"""Evaluate models: compute translation metrics, score a model on test pairs, and plot training curves."""
