"""Run the parts of a long measurement in child processes, each with a limit, and all within a number of seconds."""

import multiprocessing
import time
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch


OK, RUNNING, FAILED, SKIPPED, NOT_RUN = "ok", "running", "failed", "skipped", "not run: time"
CUT_OFF = "cut off: time"
# Seconds that a process may take to start: it imports torch and transformers.
START = 90
# After an error with these words, no kernel runs in its process any more.
BROKEN = "CUDA error"
Outcome = dict[str, Any]


class Settings(Protocol):
    """What the parts of a command get: where to run, and the seconds for all parts."""

    device: str
    seconds: int


@dataclass(frozen=True)
class Part:
    """A check, or a measurement that returns figures; it is stopped after a number of seconds.

    A measurement may also yield its figures, all that it has so far each time, so that they are not lost with it.
    """

    name: str
    run: Callable[[Any], Outcome | Iterator[Outcome] | None]
    limit: int


def run_part(part: Part, args: Settings) -> Iterator[Outcome]:
    """Run a part in this process, and yield its outcome, before that what it has so far; an error is an outcome."""
    on_gpu = args.device == "cuda"
    start = time.perf_counter()
    outcome: Outcome = {"name": part.name, "result": OK}
    try:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        figures = part.run(args)
        if isinstance(figures, Iterator):
            for figures_so_far in figures:
                outcome |= figures_so_far
                yield {**outcome, "result": RUNNING, "seconds": time.perf_counter() - start}
        elif figures is not None:
            outcome |= figures
        if on_gpu:
            outcome["peak_megabytes"] = torch.cuda.max_memory_allocated() / 1e6
    except unittest.SkipTest as reason:
        outcome["result"] = f"{SKIPPED}: {reason}"
    except Exception:
        outcome |= {"result": FAILED, "error": traceback.format_exc()}
    yield {**outcome, "seconds": time.perf_counter() - start}


def work(sender: Connection, parts: Sequence[Part], args: Settings) -> None:
    """Run parts in a child process, up to one that breaks it."""
    for part in parts:
        for outcome in run_part(part, args):
            sender.send(outcome)
        if BROKEN in outcome.get("error", ""):
            return


def run_parts(parts: Sequence[Part], args: Settings) -> Iterator[Outcome]:
    """Run parts in child processes, because one that hangs or breaks its process must not end the others.

    Yields the outcomes in the order of the parts. After an outcome with the result `running`, others of the same part
    follow, which have its figures too.
    """
    deadline = time.monotonic() + args.seconds
    pending = list(parts)
    while pending and time.monotonic() < deadline:
        process = _ChildProcess(pending, args)
        while pending and process.is_usable:
            yield from process.outcomes_of_next(pending.pop(0), deadline)
        process.end()
    for part in pending:
        yield {"name": part.name, "result": NOT_RUN, "seconds": 0.0}


class _ChildProcess:
    """A process that runs parts one after the other, until one of them breaks it."""

    def __init__(self, parts: Sequence[Part], args: Settings) -> None:
        # A fresh interpreter, because CUDA does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(sender, list(parts), args))
        self.process.start()
        sender.close()
        self.is_usable = True
        self.seconds_to_start = START

    def outcomes_of_next(self, part: Part, deadline: float) -> Iterator[Outcome]:
        """Yield the outcomes of the part that the process runs next; stop it at its limit, and at the deadline."""
        begin = time.monotonic()
        limit = part.limit + self.seconds_to_start
        self.seconds_to_start = 0
        outcome: Outcome = {"name": part.name}
        try:
            while self.receiver.poll(max(min(begin + limit, deadline) - time.monotonic(), 0)):
                outcome = self.receiver.recv()
                yield outcome
                if outcome["result"] != RUNNING:
                    self.is_usable = BROKEN not in outcome.get("error", "")
                    return
            has_ended = False
        except EOFError:
            has_ended = True
        self.is_usable = False
        seconds = time.monotonic() - begin
        if has_ended:
            outcome = {**outcome, "result": FAILED, "error": "its process ended; see its output."}
        elif seconds >= limit:
            outcome = {**outcome, "result": FAILED, "error": f"it was stopped after {limit} seconds."}
        else:
            has_figures = "result" in outcome
            outcome = {**outcome, "result": CUT_OFF if has_figures else NOT_RUN}
        yield {**outcome, "seconds": seconds}

    def end(self) -> None:
        self.process.kill()
        self.process.join()
