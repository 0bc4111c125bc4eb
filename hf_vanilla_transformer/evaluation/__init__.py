"""Weights in, metrics and plots out."""
