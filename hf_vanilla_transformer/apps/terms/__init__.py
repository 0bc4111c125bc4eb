"""Glossaries: terms whose translation is fixed."""
