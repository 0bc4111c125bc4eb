"""Time and kernels of single computations, on GPUs and, for rehearsals, on CPUs."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.support.timing import synchronize


# CUDA's functions that wait for the GPU; torch calls them to read a value, or to learn the size of a result.
WAITING_ON_GPUS = ("cudaStreamSynchronize", "cudaEventSynchronize")
# The operations that do so. On CPUs they show what would wait on a GPU, and also where values of CPUs are read.
WAITING_OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")


class Budget:
    """The seconds that a part of a measurement may take.

    Args:
        seconds: counted from now.
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def is_spent(self) -> bool:
        return time.monotonic() >= self.end

    def remaining(self) -> float:
        return self.end - time.monotonic()


def milliseconds_of(work: Callable[[], Any], device: torch.device, calls: int = 1, rounds: int = 3) -> float:
    """Return the median over the rounds of the wall time per call, until the device has finished the calls."""
    measured = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        synchronize(device)
        measured.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(measured)


@dataclass(frozen=True)
class Launches:
    """Kernels of one call on a GPU, their total time, and how often the CPU waited for a value.

    On CPUs there are no kernels, so that `count` and `milliseconds` are None, and `syncs` is an upper bound.
    """

    count: int | None
    milliseconds: float | None
    syncs: int


def launches_of(work: Callable[[], Any], device: torch.device) -> Launches:
    """Profile one call."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    synchronize(device)
    with profile(activities=activities) as profiler:
        work()
        synchronize(device)
    waiting = WAITING_ON_GPUS if device.type == "cuda" else WAITING_OPERATIONS
    syncs = 0
    kernels = 0
    microseconds = 0.0
    for event in profiler.events():
        if event.name in waiting:
            syncs += 1
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            kernels += 1
            microseconds += event.self_device_time_total
    if device.type != "cuda":
        return Launches(None, None, syncs)
    return Launches(kernels, microseconds / 1e3, syncs)


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return rms(actual - exact) / rms(exact), computed in float64 on the device of `exact`."""
    exact = exact.double()
    difference = actual.to(exact.device).double() - exact
    return float(difference.square().mean().sqrt() / exact.square().mean().sqrt())
