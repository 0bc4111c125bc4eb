"""Batches for inference: sentences of similar length, within a token budget."""

from collections.abc import Iterator


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows in batches of at most `batch_tokens` tokens, longest first, so that running out of memory shows at once."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
