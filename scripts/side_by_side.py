"""Work in several processes at once, each on one core, with one count of how far they have come."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm

from hf_vanilla_transformer.memory import keep_freed_memory


# In a process that `side_by_side` has started: what `count_one` counts.
_count: Any = None


@contextmanager
def side_by_side(processes: int) -> Iterator[tuple[Executor, Any]]:
    """Processes that end with this block, or with this process, whatever they are at.

    Yields:
        An executor, and the count of `count_one` in all of them: its `.value`.
    """
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0)
    with ProcessPoolExecutor(processes, context, _begin, (count,)) as executor:
        try:
            yield executor, count
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def as_they_end(futures: Iterable[Future], count: Any, total: int, unit: str) -> Iterator[Future]:
    """Each future when it has ended; meanwhile a bar shows the count, of a total."""
    waiting = list(futures)
    with tqdm(total=total, unit=unit) as bar:
        while waiting:
            wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
            bar.update(count.value - bar.n)
            ended = [future for future in waiting if future.done()]
            waiting = [future for future in waiting if future not in ended]
            yield from ended


def count_one() -> None:
    """Say that one piece of work more is done, in a process of [`side_by_side`]."""
    if _count is not None:
        with _count.get_lock():
            _count.value += 1


def _begin(count: Any) -> None:
    global _count
    _count = count
    # Ctrl+C reaches every process; the first ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()


def _end_with_the_first() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def makespan(seconds: list[float], processes: int) -> float:
    """How long all takes if each process, as soon as it is free, takes the next piece of work."""
    free_at = [0.0] * processes
    for each in seconds:
        free_at[free_at.index(min(free_at))] += each
    return max(free_at)
