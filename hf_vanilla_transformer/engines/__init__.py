"""Engines, which stand in the place of a model: CTranslate2 and its process, and which engine is faster here."""
