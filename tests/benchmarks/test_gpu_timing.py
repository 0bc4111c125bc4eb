"""benchmarks/support/gpu_timing.py measures times, waits for the device, and errors."""

import time

import pytest
import torch

from benchmarks.support.gpu_timing import launches_of, milliseconds_of, relative_error


pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_milliseconds_per_call():
    assert 100 <= milliseconds_of(lambda: time.sleep(0.1), CPU, calls=2) < 190


def test_values_that_the_cpu_reads_are_counted():
    x = torch.arange(4.0)
    launches = launches_of(lambda: (x.sum().item(), x.nonzero()), CPU)
    assert (launches.count, launches.syncs) == (None, 2)


def test_relative_error():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact * 1.1, exact) == pytest.approx(0.1, rel=1e-4)
