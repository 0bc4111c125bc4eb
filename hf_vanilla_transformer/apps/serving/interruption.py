"""Stop a search between two of its steps, when no client waits for its result any more."""

from collections.abc import Callable

import torch
from transformers.generation import StoppingCriteria


class SearchStoppedError(RuntimeError):
    """Raised by [`Interruption`] to end a search."""


class Interruption(StoppingCriteria):
    """Raises SearchStoppedError at the first step of a search at which a function returns True.

    The step calls the function in the thread of the search. The function may read what other threads write.

    Args:
        is_over (`Callable`): returns True if the search should end.
    """

    # The criterion never finishes a hypothesis. Fast paths and engines, which do not support other criteria, accept it
    # because of this attribute.
    stops_hypotheses = False

    def __init__(self, is_over: Callable[[], bool]):
        self.is_over = is_over

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Raise SearchStoppedError, or return False for each of the `(hypotheses, length)` token ids."""
        if self.is_over():
            raise SearchStoppedError("the search was stopped.")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
