"""Let several threads use one model and its tokenizer concurrently."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from .engine import Engine


# Tokenizers change themselves while they encode if they have a mode for targets, or truncate. So only one thread
# encodes at a time. The lock is reentrant, because `encoding_alone()` may surround `encode()`.
_encoding = threading.RLock()
# For each module in evaluation mode: the number of `evaluating()` contexts that are open, and the mode before the first
# of them.
_evaluated: dict[nn.Module, tuple[int, bool]] = {}
_switching = threading.Lock()


def encoding_alone() -> AbstractContextManager[Any]:
    """Return a context in which no other thread encodes, so that a tokenizer can be called in it."""
    return _encoding


def encode(tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> BatchEncoding:
    """Call a tokenizer, one thread at a time.

    The tokenizer does not warn of texts that are longer than `model_max_length`.
    """
    with encoding_alone():
        return tokenizer(*args, verbose=False, **kwargs)


@contextmanager
def evaluating(model: PreTrainedModel | Engine) -> Iterator[None]:
    """Set a model to evaluation mode inside a context, so that dropout is off.

    Several threads may be inside such contexts of one model. The last one to leave restores the mode of each module.
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
