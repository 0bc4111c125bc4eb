"""benchmarks/support/attention_plans.py measures what a new shape costs, and names kernels that do not run here."""

import time

import pytest
import torch

from benchmarks.support import attention_plans
from benchmarks.support.gpu_timing import Budget


pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_the_first_call_of_a_shape_is_told_from_later_ones(monkeypatch):
    planned = set()

    def plan(attention):
        shape = attention.mask.shape
        if shape not in planned:
            planned.add(shape)
            time.sleep(0.05)

    monkeypatch.setattr(attention_plans.PaddedAttention, "run", plan)
    shapes = attention_plans.padded_shapes(64, 4)
    assert len(set(shapes)) == 4
    *_, figures = attention_plans.measure_plans(["default"], shapes, 2, CPU, Budget(60))
    entry = figures["backends"]["default"]
    assert figures["shapes"] == [list(shape) for shape in shapes[1:]]
    assert len(entry["first_call_milliseconds"]) == 3
    assert 40 < entry["milliseconds_per_new_shape"] < 200


def test_kernels_that_do_not_run_here_are_named():
    *_, figures = attention_plans.measure_plans(["cuDNN", "unfused"], [(2, 5), (1, 9)], 2, CPU, Budget(60))
    assert "error" in figures["backends"]["cuDNN"]
    assert "milliseconds_per_new_shape" in figures["backends"]["unfused"]
