"""Translate with glossaries, which fix the translations of terms."""
