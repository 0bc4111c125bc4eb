"""Make it safe for several threads to share one model and its tokenizer."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from .engine import Engine


# A tokenizer changes its own state while it encodes if it truncates or has a separate mode for targets, so only one
# thread may encode at a time. The lock is reentrant, because `encoding_alone()` may surround `encode()`.
_encoding = threading.RLock()


@dataclass
class _SavedMode:
    """The training mode of a module, which is restored when the last `evaluating()` context of the module ends.

    Args:
        was_training (`bool`): whether the module was in training mode before the first context.
        open_contexts (`int`): the number of contexts that are open.
    """

    was_training: bool
    open_contexts: int = 0


# The modules that are in at least one `evaluating()` context. A thread that reads or writes this must hold the lock.
_saved_modes: dict[nn.Module, _SavedMode] = {}
_saved_modes_lock = threading.Lock()


def encoding_alone() -> AbstractContextManager[Any]:
    """Return the lock that a thread must hold while it calls a tokenizer, so that only one thread encodes at a time."""
    return _encoding


def encode(tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> BatchEncoding:
    """Call a tokenizer with the given arguments, but wait until no other thread is encoding.

    The tokenizer does not warn about texts that are longer than `model_max_length`.
    """
    with encoding_alone():
        return tokenizer(*args, verbose=False, **kwargs)


@contextmanager
def evaluating(model: PreTrainedModel | Engine) -> Iterator[None]:
    """Keep a model in evaluation mode, which turns dropout off, for the duration of the block.

    Several threads may enter such a block for the same model. The last one to leave restores the mode of each module.
    """
    # The list is made only once, so that exactly the modules that are saved here are restored at the end.
    modules = list(model.modules())
    # The lock is held only while modes change, so that several threads can be inside their blocks at the same time.
    with _saved_modes_lock:
        # This also counts the open blocks of each module. Only the first block saves the mode of a module.
        _save_modes(modules)
        # This changes the modes, so it must come after they are saved. It needs the lock, because a thread that is just
        # leaving its block would otherwise restore training mode after this call.
        model.eval()
    try:
        yield
    finally:
        with _saved_modes_lock:
            _restore_modes(modules)


def _save_modes(modules: list[nn.Module]) -> None:
    """Open an `evaluating()` context for some modules. The first context of a module saves its training mode.

    The caller must hold `_saved_modes_lock`.
    """
    for module in modules:
        if module not in _saved_modes:
            _saved_modes[module] = _SavedMode(was_training=module.training)
        _saved_modes[module].open_contexts += 1


def _restore_modes(modules: list[nn.Module]) -> None:
    """Close an `evaluating()` context of some modules. The last context of a module restores its training mode.

    `_saved_modes` contains the number of open contexts of each module, and its mode before the first of them. The
    caller must hold `_saved_modes_lock`, and must have called [`_save_modes`] with the same modules.
    """
    for module in modules:
        saved_mode = _saved_modes[module]
        saved_mode.open_contexts -= 1
        is_last_context = saved_mode.open_contexts == 0
        if is_last_context:
            module.training = saved_mode.was_training
            del _saved_modes[module]
