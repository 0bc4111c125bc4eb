"""Translate documents of HTML and XML: read the texts out of them, and put the translations with their tags back."""
