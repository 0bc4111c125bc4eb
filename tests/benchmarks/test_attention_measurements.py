"""Attention alone: costs of new shapes, and errors against float64, as benchmarks/support measures them."""

import time

import pytest
import torch

from benchmarks.candidates.packed_attention import packed_by_formula
from benchmarks.support import attention_plans
from benchmarks.support.attention_candidates import KINDS, Problem, Sizes, packed_run, padded_run
from benchmarks.support.gpu_timing import Budget, launches_of, milliseconds_of, relative_error


CPU = torch.device("cpu")
SIZES = Sizes(tokens=120, heads=2, head_dim=16)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_and_packed_attention_agree(kind):
    problem = Problem(kind, 12, SIZES, CPU)
    _, padded = padded_run(problem, "default")
    _, packed = packed_run(problem, packed_by_formula, problem.sentences)
    for one, other in zip(padded(), packed(), strict=True):
        assert one.shape == other.shape
        assert relative_error(one, other.float()) < 0.01
    assert problem.error(padded()) < 0.01
    assert problem.error(packed()) < 0.01


@pytest.mark.parametrize("number", range(4))
def test_an_error_in_any_result_is_seen(number):
    problem = Problem("cross", 12, SIZES, CPU)
    _, packed = packed_run(problem, packed_by_formula, problem.sentences)
    results = packed()
    results[number] = results[number] * 1.1
    assert problem.error(results) > 0.09


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


def test_milliseconds_per_call():
    assert 100 <= milliseconds_of(lambda: time.sleep(0.1), CPU, calls=2) < 190


def test_values_that_the_cpu_reads_are_counted():
    x = torch.arange(4.0)
    launches = launches_of(lambda: (x.sum().item(), x.nonzero()), CPU)
    assert (launches.count, launches.syncs) == (None, 2)


def test_relative_error():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact * 1.1, exact) == pytest.approx(0.1, rel=1e-4)
