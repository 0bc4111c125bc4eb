"""Define what `translate(glossary=...)` accepts: objects that decide which phrases a translation must contain.

The module also splits batches according to the cost of searching for their phrases.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformers import GenerationConfig, PreTrainedModel

from .engine import Engine


# This number of cells (see `PhraseSizes.cells`) costs less than one generated token: the search computes the cells in
# 0.03 ms on one thread, and even a small model takes longer for a token.
CELLS_PER_TOKEN = 1_000
# A phrase is a sequence of alternatives, each a list of token ids. One of them must occur.
Phrase = Sequence[Sequence[int]]


class PhraseSizes(NamedTuple):
    """Upper bounds on the size of a sentence's required phrases, which are used to estimate the cost of the search.

    Args:
        positions (`int`): the total number of tokens in all alternatives of all phrases.
        tokens (`int`): the number of distinct tokens in each phrase, summed over the phrases.
        phrases (`int`): the number of distinct phrases.
    """

    positions: int = 0
    tokens: int = 0
    phrases: int = 0

    @property
    def cells(self) -> int:
        """The number of values that the search computes per step and hypothesis, a measure of its cost."""
        # The search computes a value for each position, and a table with a row per token and a column per phrase.
        return self.positions + self.tokens * self.phrases

    def pad(self, other: "PhraseSizes") -> "PhraseSizes":
        """Return the sizes to which the phrases of two sentences in one batch are padded: the maximum of each field."""
        return PhraseSizes(
            positions=max(self.positions, other.positions),
            tokens=max(self.tokens, other.tokens),
            phrases=max(self.phrases, other.phrases),
        )


@runtime_checkable
class RequiredPhrases(Protocol):
    """The interface of a glossary, or of any other object that decides which phrases a translation must contain."""

    def check(self, settings: GenerationConfig) -> None:
        """Raise ValueError if a search with these settings does not support required phrases."""

    def phrases(self, sentence: str) -> list[Phrase]:
        """Return the phrases that the translation of a sentence must contain. The list may be empty."""

    def sizes(self, sentence: str) -> PhraseSizes:
        """Return the sizes of a sentence's phrases, which [`split_by_phrases`] uses to split batches."""

    def search(self, model: PreTrainedModel | Engine, phrases: list[list[Phrase]]) -> Callable[..., Any]:
        """Return a search for `generate(custom_generate=...)` that finds translations with the given phrases.

        `phrases` has one list of phrases for each sentence of the batch.
        """


def split_by_phrases(rows: list[int], sizes: Sequence[PhraseSizes], most_cells: int) -> list[list[int]]:
    """Split a batch into parts whose phrases fit in memory and need little padding.

    The cost of a sentence is measured in cells, the values that the search computes per step and hypothesis. Within a
    part, the phrases of all sentences are padded to the largest sizes. A sentence starts a new part if the part's
    cells, including this sentence and padding, would exceed one of two limits:

    - `most_cells`. A single sentence with more cells is a part of its own.
    - Twice the cells that the sentences need without padding, plus `CELLS_PER_TOKEN` for each sentence. Because of the
      second term, batches with short phrases stay whole.

    Args:
        rows: the indices of the batch's sentences.
        sizes: the phrase sizes of all sentences, indexed by row.
        most_cells: maximum number of cells per part, padding included.

    Returns:
        The rows of each part.
    """
    parts: list[list[int]] = []
    load_of_last_part = _PartLoad()
    # After sorting, rows with phrases of similar size are next to each other, so parts need little padding.
    sorted_rows = sorted(rows, key=lambda row: sizes[row].cells, reverse=True)
    for row in sorted_rows:
        load_with_row = load_of_last_part.add(sizes[row])
        # The first row always starts a part, even if it exceeds `most_cells`.
        is_first_row = not parts
        if is_first_row or not load_with_row.fits(most_cells):
            parts.append([row])
            load_of_last_part = _PartLoad().add(sizes[row])
        else:
            parts[-1].append(row)
            load_of_last_part = load_with_row
    return parts


class _PartLoad(NamedTuple):
    """The cells that the search computes for a part of a batch. They determine whether the part is too large.

    Args:
        num_sentences (`int`): the number of sentences in the part.
        padded_sizes (`PhraseSizes`): the sizes to which the phrases of each sentence are padded.
        needed_cells (`int`): the cells that the sentences need without padding.
    """

    num_sentences: int = 0
    padded_sizes: PhraseSizes = PhraseSizes()
    needed_cells: int = 0

    def add(self, sizes: PhraseSizes) -> "_PartLoad":
        """Return the load of the part with one more sentence, whose phrases have the given sizes."""
        return _PartLoad(
            num_sentences=self.num_sentences + 1,
            padded_sizes=self.padded_sizes.pad(sizes),
            needed_cells=self.needed_cells + sizes.cells,
        )

    def fits(self, most_cells: int) -> bool:
        """Return True if the part exceeds neither of the two limits that [`split_by_phrases`] explains."""
        # With padding, each sentence costs as much as a sentence with the largest sizes.
        computed_cells = self.num_sentences * self.padded_sizes.cells
        most_cells_with_padding = 2 * self.needed_cells + self.num_sentences * CELLS_PER_TOKEN
        return computed_cells <= most_cells and computed_cells <= most_cells_with_padding
