"""Make it safe for several threads to share one model and its tokenizer."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from .engine import Engine


# A tokenizer changes its own state while it encodes if it truncates or has a separate mode for targets, so only one
# thread may encode at a time. The lock is reentrant, because `encoding_alone()` may surround `encode()`.
_encoding = threading.RLock()
# For each module in an `evaluating()` context: the number of its open contexts, and the mode that it had before the
# first of them. A thread that reads or writes these must hold the lock.
_open_contexts: dict[nn.Module, int] = {}
_previous_modes: dict[nn.Module, bool] = {}
_modes_lock = threading.Lock()


def encoding_alone() -> AbstractContextManager[Any]:
    """Return a lock that makes it safe to call a tokenizer, because no other thread can encode inside its context."""
    return _encoding


def encode(tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> BatchEncoding:
    """Call a tokenizer with the given arguments while no other thread is calling one.

    The tokenizer does not warn about texts that are longer than `model_max_length`.
    """
    with encoding_alone():
        return tokenizer(*args, verbose=False, **kwargs)


@contextmanager
def evaluating(model: PreTrainedModel | Engine) -> Iterator[None]:
    """Keep a model in evaluation mode, which turns dropout off, for the duration of the block.

    Several threads may enter such a block for the same model. The last one to leave restores the mode of each module.
    """
    modules = list(model.modules())
    with _modes_lock:
        for module in modules:
            is_first_context = module not in _open_contexts
            if is_first_context:
                _open_contexts[module] = 0
                _previous_modes[module] = module.training
            _open_contexts[module] += 1
        model.eval()
    try:
        yield
    finally:
        with _modes_lock:
            for module in modules:
                _open_contexts[module] -= 1
                was_last_context = _open_contexts[module] == 0
                if was_last_context:
                    _open_contexts.pop(module)
                    module.training = _previous_modes.pop(module)
