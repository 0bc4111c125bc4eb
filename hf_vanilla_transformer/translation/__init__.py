"""Translate sentences, score and word-align given translations, split texts into sentences, and load models."""
