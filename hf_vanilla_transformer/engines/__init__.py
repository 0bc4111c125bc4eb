"""Engines, which stand in the place of a model: CTranslate2 and its process; what this machine can compute."""
