"""Translate HTML and XML documents: extract their texts, and insert the translations with the inline tags in place."""
