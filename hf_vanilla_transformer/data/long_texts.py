"""Recognize texts that are too long to be sentences, such as whole pages or encoded files in a line."""

# Longer texts neither train a tokenizer nor remain after cleaning. SentencePiece has the same limit for the sentences
# that it learns from, called `max_sentence_length`.
MOST_BYTES = 4192


def is_long(text: str) -> bool:
    """Return True if a text has more than 4,192 bytes in UTF-8."""
    return len(text.encode()) > MOST_BYTES
