"""Weights in, figures out: metrics, evaluation of test pairs, curves of training runs."""
