"""What stands in the place of a model."""

from typing import Any


def is_engine(model: Any) -> bool:
    """Whether a model runs in another runtime; see `serving.engine`."""
    return hasattr(model, "log_probs")
