"""The interface of `translate(glossary=...)`: phrases that translations must contain, and batches for their search."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformers import GenerationConfig, PreTrainedModel

from .engine import Engine


# This number of cells (see `PhraseSizes`) costs less than one token: the search computes them in 0.03 ms on one thread,
# and even a small model takes longer for a token.
CELLS_PER_TOKEN = 1_000
# The alternatives of a phrase, each a list of token ids. One of them must occur.
Phrase = Sequence[Sequence[int]]


class PhraseSizes(NamedTuple):
    """Upper bounds for the sizes of a sentence's phrases, which determine the time and memory of their search.

    Args:
        positions (`int`): number of tokens of all alternatives of all phrases.
        tokens (`int`): number of distinct tokens of each phrase, summed over the phrases.
        phrases (`int`): number of distinct phrases.
    """

    positions: int = 0
    tokens: int = 0
    phrases: int = 0

    @property
    def cells(self) -> int:
        """How many numbers the search computes per step and hypothesis. Its time and memory grow with them."""
        return self.positions + self.tokens * self.phrases

    def pad(self, other: "PhraseSizes") -> "PhraseSizes":
        """Return the sizes that two sentences have in one batch, in which each size is the larger one of the two."""
        return PhraseSizes(
            positions=max(self.positions, other.positions),
            tokens=max(self.tokens, other.tokens),
            phrases=max(self.phrases, other.phrases),
        )


@runtime_checkable
class RequiredPhrases(Protocol):
    """A glossary, or a different object that decides which phrases the translation of a sentence must contain."""

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError if a search with these settings cannot be forced to find phrases."""

    def phrases(self, sentence: str) -> list[Phrase]:
        """Return the phrases that the translation of a sentence must contain; possibly none."""

    def sizes(self, sentence: str) -> PhraseSizes:
        """Return the sizes of a sentence's phrases. [`split_by_phrases`] splits batches by them."""

    def search(self, model: PreTrainedModel | Engine, phrases: list[list[Phrase]]) -> Callable[..., Any]:
        """Return a search for `generate(custom_generate=...)`, given the phrases of each sentence of a batch."""


def split_by_phrases(rows: list[int], sizes: Sequence[PhraseSizes], most_cells: int) -> list[list[int]]:
    """Split a batch so that its parts fit in memory, and little is computed for padding.

    The phrases of all rows of a part are padded to the largest sizes. A row starts a new part if the cells of the part,
    including this row and padding, would exceed one of two limits:

    - `most_cells`. A single row with more cells is a part of its own.
    - Twice the cells that the rows need without padding, plus `CELLS_PER_TOKEN` for each row. Because of the second
      term, batches with short phrases stay whole.

    Args:
        rows (`list[int]`): the rows of the batch.
        sizes (`Sequence[PhraseSizes]`): sizes of the phrases of all rows, indexed by row.
        most_cells (`int`): maximum number of cells per part, padding included.
    """
    parts: list[list[int]] = []
    # The sizes to which the rows of the last part are padded, and the cells that they need without padding.
    padded_sizes = PhraseSizes()
    needed_cells = 0
    # Rows with phrases of similar sizes are next to each other. The sort is stable, so other rows keep their order.
    for row in sorted(rows, key=lambda row: -sizes[row].cells):
        num_rows = len(parts[-1]) + 1 if parts else 1
        padded_with_row = padded_sizes.pad(sizes[row])
        needed_with_row = needed_cells + sizes[row].cells
        computed_cells = num_rows * padded_with_row.cells
        most_with_padding = 2 * needed_with_row + num_rows * CELLS_PER_TOKEN
        if parts and computed_cells <= min(most_cells, most_with_padding):
            parts[-1].append(row)
            padded_sizes = padded_with_row
            needed_cells = needed_with_row
        else:
            parts.append([row])
            padded_sizes = sizes[row]
            needed_cells = sizes[row].cells
    return parts
