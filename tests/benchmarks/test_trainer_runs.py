"""benchmarks/support/trainer_runs.py times updates of the Trainer, within limits of updates and seconds."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu_check import SMALLEST
from benchmarks.support import trainer_runs
from benchmarks.support.gpu_timing import Budget
from benchmarks.support.random_corpus import random_corpus
from benchmarks.support.trainer_runs import RunLimits, TimedUpdates, TrainerRuns, Way, compare_ways, ways_for
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.data import arrow_batches


pytestmark = pytest.mark.slow

TOKENS = 512


@pytest.fixture(scope="module")
def runs():
    config = VanillaTransformerConfig.from_paper("base", **SMALLEST)
    corpus = random_corpus(300, config.vocab_size)
    return TrainerRuns(config, corpus, RunLimits(1, 2, 30), torch.device("cpu"))


def test_random_corpus():
    corpus = random_corpus(2000, 100)
    assert corpus.column_names == ["input_ids", "labels"]
    lengths = [len(tokens) for tokens in corpus["input_ids"]]
    assert 26 < sum(lengths) / len(lengths) < 31
    tokens = [token for sentence in corpus["labels"] for token in sentence]
    assert (min(tokens), max(tokens)) == (3, 99)
    assert corpus[:5] == random_corpus(2000, 100)[:5]


@contextmanager
def recorded_batches(model):
    """A list of the batches that a model gets, from a hook, because the Trainer reads the signature of `forward`."""
    batches = []
    hook = model.register_forward_pre_hook(lambda _, args, batch: batches.append(batch), with_kwargs=True)
    yield batches
    hook.remove()


def test_a_run_times_its_updates_and_counts_their_target_tokens(runs):
    with recorded_batches(runs.model) as batches:
        figures = runs.run(Way(TOKENS, 2, "Arrow"), seed=3)
    assert figures["updates"] == 2
    # One warm-up update of two batches, then two updates.
    assert len(batches) == 6
    target_tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches[2:])
    assert figures["target_tokens_per_second"] == pytest.approx(target_tokens / figures["seconds"])
    assert figures["name"] == "2 x 512 tokens, Arrow collator"


def test_both_collators_train_on_the_same_batches(runs, monkeypatch):
    padded = []
    pad = arrow_batches.TokenColumn.pad
    monkeypatch.setattr(arrow_batches.TokenColumn, "pad", lambda *args: padded.append(args) or pad(*args))
    with recorded_batches(runs.model) as batches:
        runs.run(Way(TOKENS, 1, "stock"), seed=1)
        assert not padded
        runs.run(Way(TOKENS, 1, "Arrow"), seed=1)
        assert padded
    assert len(batches) == 6
    # Otherwise the runs would not compute the loss that `train` computes.
    assert all(batch["skip_logits"] for batch in batches)
    for expected, actual in zip(batches[:3], batches[3:], strict=True):
        for name in ("input_ids", "attention_mask", "labels", "decoder_input_ids"):
            assert torch.equal(actual[name], expected[name])


def test_every_run_trains_under_autocast(runs, monkeypatch):
    dtypes = []
    hook = runs.model.model.decoder.register_forward_hook(
        lambda *args: dtypes.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
    )
    runs.run(Way(TOKENS, 1, "stock"), seed=1)
    runs.run(Way(TOKENS, 1, "Arrow"), seed=1)
    hook.remove()
    assert dtypes == [torch.bfloat16] * 6


def test_the_batches_of_the_collators_are_compared(runs, monkeypatch):
    assert runs.collators_agree(TOKENS)
    pad = arrow_batches.TokenColumn.pad
    monkeypatch.setattr(arrow_batches.TokenColumn, "pad", lambda column, rows, value: pad(column, rows[::-1], value))
    assert not runs.collators_agree(TOKENS)


def test_ways_that_do_not_fit_are_named(runs):
    ways = ways_for(TOKENS, 2)
    *_, figures = compare_ways(runs, ways, Budget(0))
    assert [run["name"] for run in figures["runs"]] == ["bare loop, 1 x 512 tokens, batches on the device"]
    assert figures["not_measured"] == [way.name for way in ways]
    assert len(set(figures["not_measured"])) == len(ways)


@pytest.mark.parametrize(
    ("seconds_per_update", "warm_up", "updates"),
    [(1, 2, 5), (4, 2, 3), (11, 1, 1)],
    ids=["all updates fit", "the updates do not fit", "not even the warm-up fits"],
)
def test_limits_of_a_run(seconds_per_update, warm_up, updates, monkeypatch):
    now = 100.0
    monkeypatch.setattr(trainer_runs, "time", SimpleNamespace(perf_counter=lambda: now))
    timed = TimedUpdates(RunLimits(warm_up=2, updates=5, seconds=10), torch.device("cpu"))
    control = SimpleNamespace(should_training_stop=False)
    timed.on_train_begin(None, None, control)
    step = 0
    while not control.should_training_stop:
        now += seconds_per_update
        step += 1
        timed.on_step_end(None, SimpleNamespace(global_step=step), control)
    assert (timed.warm_up, timed.updates) == (warm_up, updates)
    assert timed.seconds == updates * seconds_per_update
