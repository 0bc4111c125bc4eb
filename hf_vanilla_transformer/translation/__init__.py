"""Text in, text out: translate, score and align sentences; split texts, load models."""
