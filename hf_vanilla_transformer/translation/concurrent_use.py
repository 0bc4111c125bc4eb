"""The use of one model and its tokenizer by several threads at once."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


# Tokenizers with a mode for targets, and those that truncate, change themselves while they encode.
_encoding = threading.RLock()
# Of modules that evaluating() has set to evaluation mode: how often, and the mode before.
_evaluated: dict[Any, tuple[int, bool]] = {}
_switching = threading.Lock()


def encoding_alone() -> AbstractContextManager[Any]:
    """A context in which no other thread encodes, so that a tokenizer can be called in it."""
    return _encoding


def encode(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a tokenizer, one thread at a time, without its warning of texts that are longer than those of a training."""
    with encoding_alone():
        return tokenizer(*args, verbose=False, **kwargs)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set evaluation mode, so that dropout is off; the last thread to leave restores the mode of each module."""
    modules = list(model.modules())
    with _switching:
        for module in modules:
            times, was_training = _evaluated.get(module, (0, module.training))
            _evaluated[module] = times + 1, was_training
        model.eval()
    try:
        yield
    finally:
        with _switching:
            for module in modules:
                times, was_training = _evaluated.pop(module)
                if times > 1:
                    _evaluated[module] = times - 1, was_training
                else:
                    module.training = was_training
