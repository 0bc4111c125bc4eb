"""What `translate(glossary=...)` asks of a glossary: phrases that translations must have, and the search for them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformers import GenerationConfig


# This many cells (see `PhraseSizes`) count as one more token: the search computes them in 0.03 ms on one thread, and
# even a small model takes longer for a token.
CELLS_PER_TOKEN = 1_000
# Alternatives, each a list of token ids, of which one must occur.
Phrase = Sequence[Sequence[int]]


class PhraseSizes(NamedTuple):
    """Upper bounds for the sizes of the tables that the search keeps for the phrases of a sentence.

    Args:
        positions (`int`): tokens of all alternatives of all phrases.
        tokens (`int`): distinct tokens of each phrase, summed over the phrases.
        phrases (`int`): number of distinct phrases.
    """

    positions: int = 0
    tokens: int = 0
    phrases: int = 0

    @property
    def cells(self) -> int:
        """The numbers that the search computes in each step for each hypothesis; its time and memory grow with them."""
        return self.positions + self.tokens * self.phrases

    def pad(self, other: "PhraseSizes") -> "PhraseSizes":
        """The sizes that two sentences have in one batch, where each is as large as the larger one."""
        return PhraseSizes(*map(max, self, other))


@runtime_checkable
class RequiredPhrases(Protocol):
    """A glossary, or another object that says which phrases the translation of a sentence must have."""

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError if translations cannot be made to have phrases with the settings of a call."""

    def phrases(self, sentence: str) -> list[Phrase]:
        """Return the phrases that the translation of a sentence must have; none where the model is free."""

    def sizes(self, sentence: str) -> PhraseSizes:
        """Return the sizes of a sentence's phrases, by which batches are split."""

    def search(self, model: Any, phrases: list[list[Phrase]]) -> Callable[..., Any]:
        """Return what `generate(custom_generate=...)` takes to find translations with the phrases of each sentence."""


def split_by_phrases(rows: list[int], sizes: Sequence[PhraseSizes], most_cells: int) -> list[list[int]]:
    """Split a batch so that no part computes more than `most_cells`, and little of that for padding.

    A row that has more cells than that is a part of its own. Padding may double the cells of a part. It may also take
    as long as the model takes for one token of each row, so that batches with short phrases stay whole.

    Args:
        rows (`list[int]`): the rows of the batch.
        sizes (`Sequence[PhraseSizes]`): of each row, by its number.
        most_cells (`int`): see above.
    """
    parts: list[list[int]] = []
    # Of the last part: the sizes to which its rows are padded, and its cells without padding.
    padded = PhraseSizes()
    cells = 0
    # Rows with phrases of similar sizes are next to each other; the others keep their order.
    for row in sorted(rows, key=lambda row: -sizes[row].cells):
        num_rows = len(parts[-1]) + 1 if parts else 1
        padded_with_row = padded.pad(sizes[row])
        cells_with_row = cells + sizes[row].cells
        most_with_padding = 2 * cells_with_row + num_rows * CELLS_PER_TOKEN
        fits = num_rows * padded_with_row.cells <= min(most_cells, most_with_padding)
        if parts and fits:
            parts[-1].append(row)
            padded = padded_with_row
            cells = cells_with_row
        else:
            parts.append([row])
            padded = sizes[row]
            cells = sizes[row].cells
    return parts
