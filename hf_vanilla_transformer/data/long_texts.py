"""Recognize texts that are too long to be sentences, such as whole pages or encoded files in a line."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


# Longer texts neither train a tokenizer nor remain after cleaning. SentencePiece has the same limit for the sentences
# that it learns from, called `max_sentence_length`.
MOST_BYTES = 4192


def is_long(text: str) -> bool:
    """Return True if a text has more than 4,192 bytes in UTF-8."""
    return len(text.encode()) > MOST_BYTES


def find_long_texts(texts: pa.Array) -> NDArray[np.bool_]:
    """Return True for each text of an Arrow array that has more than 4,192 bytes in UTF-8, as a mask `(texts,)`.

    Missing texts are not long.
    """
    byte_counts = pc.fill_null(pc.binary_length(texts), 0).to_numpy()
    return byte_counts > MOST_BYTES
