"""Stop a running beam search between two decoding steps when no client is waiting for its result anymore."""

from collections.abc import Callable

import torch
from transformers.generation import StoppingCriteria


class SearchStoppedError(RuntimeError):
    """Raised by [`Interruption`] to stop a running beam search."""


class Interruption(StoppingCriteria):
    """A stopping criterion for `generate()` that raises an error to end the search once a function returns True.

    The function is called at each decoding step, or less often by an inference engine. It runs in the thread of the
    search, and may read values that other threads write. The error is SearchStoppedError.

    Args:
        is_over (`Callable`): a function that returns True if the search should stop.
    """

    # This attribute declares that the criterion never finishes a hypothesis. Fast paths and inference engines support
    # only criteria that have it.
    stops_hypotheses = False

    def __init__(self, is_over: Callable[[], bool]):
        self.is_over = is_over

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Raise SearchStoppedError if the search should stop; otherwise return False for each hypothesis.

        `input_ids` has the shape `(hypotheses, length)`, and the result has the shape `(hypotheses,)`.
        """
        if self.is_over():
            raise SearchStoppedError("the search was stopped.")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
