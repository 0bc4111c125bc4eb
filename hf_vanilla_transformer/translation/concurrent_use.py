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
# For each module in evaluation mode: the number of open `evaluating()` contexts, and the mode that the module had
# before the first of them.
_evaluated: dict[nn.Module, tuple[int, bool]] = {}
_switching = threading.Lock()


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
    with _switching:
        for module in modules:
            open_contexts, was_training = _evaluated.get(module, (0, module.training))
            _evaluated[module] = (open_contexts + 1, was_training)
        model.eval()
    try:
        yield
    finally:
        with _switching:
            for module in modules:
                open_contexts, was_training = _evaluated.pop(module)
                if open_contexts > 1:
                    _evaluated[module] = (open_contexts - 1, was_training)
                else:
                    module.training = was_training
