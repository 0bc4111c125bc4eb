"""Translate, score and align sentences, split texts into sentences, and load models for it."""
