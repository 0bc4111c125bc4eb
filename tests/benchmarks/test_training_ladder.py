"""A ladder of training steps chooses the fastest change that passes its check, and names what it leaves out."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks.gpu_check import SMALLEST
from benchmarks.support import candidates_in_model, training_ladder
from benchmarks.support.candidates_in_model import Change
from benchmarks.support.gpu_timing import Budget
from benchmarks.support.random_batches import padded_batch, target_tokens
from benchmarks.support.training_ladder import Ladder
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.acceleration.fused_loss import fused_smoothed_cross_entropy, replace_logits_by_gradient
from hf_vanilla_transformer.model.operations import smoothed_cross_entropy_of_states


pytestmark = pytest.mark.slow

modeling = candidates_in_model.modeling
LOSS = "smoothed_cross_entropy_of_states"


@pytest.fixture(scope="module")
def ladder():
    config = VanillaTransformerConfig.from_paper("base", **SMALLEST)
    rounds = [[padded_batch(16, 64, config.vocab_size, seed)] for seed in range(3)]
    return Ladder(config, rounds, torch.device("cpu"), peak_flops=1e12)


def climb(ladder, changes, seconds=60):
    *_, figures = ladder.climb(changes, Budget(seconds))
    return figures


def rungs_by_name(figures):
    return {rung["name"]: rung for rung in figures["rungs"]}


class Steps:
    """A clock that only training steps move, by a number of seconds for each."""

    def __init__(self):
        self.now = 0.0
        self.seconds = 1.0

    def take(self, *args, **kwargs):
        self.now += self.seconds
        return smoothed_cross_entropy_of_states(*args, **kwargs)

    def lasting(self, seconds):
        """A change after which a step takes a different number of seconds."""
        return partial(mock.patch.object, self, "seconds", seconds)


@pytest.fixture
def steps(monkeypatch):
    steps = Steps()
    monkeypatch.setattr(training_ladder, "time", SimpleNamespace(perf_counter=lambda: steps.now))
    monkeypatch.setattr(modeling, LOSS, steps.take)
    return steps


def wrong_loss_in_half_a_second(steps):
    def wrong_gradient(logits, labels, label_probability):
        steps.now += 0.5
        terms = replace_logits_by_gradient(logits, labels, label_probability)
        logits.mul_(1.1)
        return terms

    def loss(states, lm_head, labels, label_smoothing):
        return fused_smoothed_cross_entropy(
            states,
            lm_head.weight,
            labels,
            label_smoothing,
            lm_head.bias,
            replace_logits=wrong_gradient,
            chunk_bytes=2**20,
        )

    return loss


def test_the_fastest_alternative_is_chosen(ladder, steps):
    changes = [
        Change("fast", "step", steps.lasting(0.5)),
        Change("fastest", "step", steps.lasting(0.25)),
        Change("as slow", "step", steps.lasting(1.0)),
    ]
    figures = climb(ladder, changes)
    rungs = rungs_by_name(figures)
    speedups = {name: rung["speedup"] for name, rung in rungs.items()}
    assert speedups == {"today": 1, "fast": 2, "fastest": 4, "as slow": 1, "all chosen, over today": 4}
    assert figures["chosen"] == ["fastest"]
    assert [name for name, rung in rungs.items() if rung["saves_enough"]] == [
        "fast",
        "fastest",
        "all chosen, over today",
    ]
    assert rungs["fast"]["milliseconds"] == 500
    assert all(rung["passes"] for rung in rungs.values())


def test_the_next_subject_is_measured_on_top_of_what_is_chosen(ladder, steps):
    changes = [
        Change("first", "one", steps.lasting(0.5)),
        Change("second", "other", steps.lasting(0.25)),
        Change("too slow", "third", steps.lasting(3.0)),
    ]
    figures = climb(ladder, changes)
    rungs = rungs_by_name(figures)
    assert rungs["second"]["over"] == ["first"]
    assert rungs["second"]["speedup"] == 2
    assert rungs["too slow"]["over"] == ["first", "second"]
    assert figures["chosen"] == ["first", "second"]
    assert rungs["all chosen, over today"]["speedup"] == 4


def test_a_change_with_wrong_gradients_is_not_chosen(ladder, steps):
    change = Change(
        "wrong", "loss", partial(candidates_in_model.use_operation, LOSS, wrong_loss_in_half_a_second(steps))
    )
    figures = climb(ladder, [change])
    rung = rungs_by_name(figures)["wrong"]
    assert rung["speedup"] == 2
    assert not rung["passes"]
    assert rung["gradient_error"] > rung["allowed_gradient_error"]
    assert figures["chosen"] == []


def test_an_error_of_a_change_is_a_figure(ladder):
    def fail(*args, **kwargs):
        raise RuntimeError("no kernel")

    figures = climb(ladder, [Change("broken", "loss", partial(candidates_in_model.use_operation, LOSS, fail))])
    rung = rungs_by_name(figures)["broken"]
    assert not rung["passes"]
    assert rung["error"] == "RuntimeError: no kernel"


def test_what_is_missing_and_what_does_not_fit_is_named(ladder):
    changes = [
        Change("needs a GPU", "loss", candidates_in_model.using_nothing, missing="there is no GPU."),
        Change("late", "loss", candidates_in_model.using_nothing),
    ]
    figures = climb(ladder, changes, seconds=0)
    assert [rung["name"] for rung in figures["rungs"]] == ["today"]
    assert figures["not_measured"] == [
        {"name": "needs a GPU", "reason": "there is no GPU."},
        {"name": "late", "reason": "time"},
    ]


def test_a_change_that_is_only_measured_is_not_chosen(ladder, steps):
    figures = climb(ladder, [Change("measured", "step", steps.lasting(0.5), is_candidate=False)])
    assert rungs_by_name(figures)["measured"]["speedup"] == 2
    assert figures["chosen"] == []


def test_an_interrupted_run_has_what_it_chose(ladder, steps):
    changes = [Change("first", "one", steps.lasting(0.5)), Change("second", "other", steps.lasting(0.25))]
    for figures in ladder.climb(changes, Budget(60)):
        if figures["chosen"]:
            break
    assert [rung["name"] for rung in figures["rungs"]] == ["today", "first"]
    assert figures["chosen"] == ["first"]


def test_throughput_counts_target_tokens(ladder):
    figures = climb(ladder, [])
    (rung,) = figures["rungs"]
    tokens = sum(target_tokens(batch) for batches in ladder.rounds for batch in batches)
    steps = len(rung["seconds"])
    assert steps == training_ladder.REPEATS * len(ladder.rounds)
    assert rung["tokens_per_second"] == pytest.approx(training_ladder.REPEATS * tokens / sum(rung["seconds"]))
    assert rung["milliseconds"] == pytest.approx(sum(rung["seconds"]) / steps * 1e3)
    assert 0 < rung["utilization"] < 1
    marian = ladder.measure_marian()
    assert marian["tokens_per_second"] == pytest.approx(tokens / sum(marian["seconds"]))
