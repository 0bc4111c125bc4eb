"""End a search between two steps, when nobody waits for its result any more."""

from collections.abc import Callable

import torch
from transformers.generation import StoppingCriteria


class SearchStoppedError(RuntimeError):
    """Raised by [`Interruption`]."""


class Interruption(StoppingCriteria):
    """Ends a search by SearchStoppedError at the first step at which a function returns True.

    The function may depend on what other threads do.
    """

    # It only watches the search, so finished sentences are pruned from the batch, and engines accept it.
    stops_hypotheses = False

    def __init__(self, is_over: Callable[[], bool]):
        self.is_over = is_over

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Raise SearchStoppedError, or return False for each of the `(rows, length)` hypotheses."""
        if self.is_over():
            raise SearchStoppedError("the search was stopped.")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
