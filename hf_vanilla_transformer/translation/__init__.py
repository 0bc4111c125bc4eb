"""Text in, text out: translate, score and align sentences; split texts, place markup, force terms, load models."""
