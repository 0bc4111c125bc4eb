"""Translate HTML and XML documents: extract their texts, and insert the translations together with the inline tags."""
