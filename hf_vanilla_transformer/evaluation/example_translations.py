"""Example translations as text, evenly spread over a data set."""

from collections.abc import Sequence

from ..data.text_lines import one_line


def spread(count: int, wanted: int) -> list[int]:
    """At most `wanted` of `count` rows, evenly spread, always the same."""
    return [index * count // wanted for index in range(wanted)] if wanted < count else list(range(count))


def format_examples(sources: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> str:
    """Sentences, their translations and their references, three lines each, with an empty line before each three."""
    lines = []
    for texts in zip(sources, predictions, references, strict=True):
        source, prediction, reference = map(one_line, texts)
        lines += ["", f"source:     {source}", f"prediction: {prediction}", f"reference:  {reference}"]
    return "\n".join(lines)
