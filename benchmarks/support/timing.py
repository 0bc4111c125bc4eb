"""Timing on a machine whose speed varies."""

import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.support.training_implementations import matmul_precision


SLOWER = 1.15
# On a GPU a small matmul takes as long as its launch.
PROBE_WIDTHS = {"cpu": 1024, "cuda": 8192}


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Clock:
    """Times work, and repeats measurements that were taken while the machine was slow.

    A fixed matmul is timed before and after each measurement. If either takes more than 1.15 times the best so far, the
    measurement is repeated, at most `repeats` times; the one with the fastest matmul counts.
    """

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self.best = float("inf")
        self.measurements = self.made_again = self.slow = 0
        width = PROBE_WIDTHS[device.type]
        self._matrix = torch.randn(width, width, device=device)
        for _ in range(3):
            self.probe()

    def probe(self) -> float:
        """Seconds of the fixed matmul, the best of three."""
        with matmul_precision("highest"):
            seconds = min(self.time(lambda: self._matrix @ self._matrix) for _ in range(3))
        self.best = min(self.best, seconds)
        return seconds

    def measure(self, timed: Callable[[], Any]) -> Any:
        """What `timed` returns, its seconds, in the attempt with the fastest matmul."""
        attempts = []
        self.measurements += 1
        for attempt in range(self.repeats + 1):
            self.made_again += attempt == 1
            before = self.probe()
            seconds = timed()
            slowest = max(before, self.probe())
            attempts.append((slowest, seconds))
            if slowest <= SLOWER * self.best:
                return seconds
        self.slow += 1
        return min(attempts)[1]

    def noise(self) -> dict[str, int]:
        """Counts of all measurements, of those repeated, and of those whose every attempt was slow."""
        return {"measurements": self.measurements, "made_again": self.made_again, "slow": self.slow}

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds that `work` takes, until the device has finished it."""
        synchronize(self.device)
        start = time.perf_counter()
        work()
        synchronize(self.device)
        return time.perf_counter() - start


def in_turns(runs: dict[str, Callable[[], Any]], rounds: int, clock: Clock) -> dict[str, list[Any]]:
    """Measure each run once per round, in an order that rotates; returns the seconds of each round by run."""
    seconds: dict[str, list[Any]] = {name: [] for name in runs}
    names = list(runs)
    for number in tqdm(range(rounds), desc="rounds", leave=False):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(clock.measure(runs[name]))
    return seconds
