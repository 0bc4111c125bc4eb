"""How batches are split, padded and computed changes no update: in most models of transformers it does.

In float32 and without dropout, loss and gradient norm of each of 20 updates stay the same.
"""

import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from tests.invariants.killed import run_as_two
from tests.invariants.trajectories import SENTENCES_AN_UPDATE, UPDATES, trajectory, write_trajectory
from tests.models import small_model


pytestmark = pytest.mark.long

LARGEST_DIFFERENCE = 1e-5
# Rounding errors of 20 updates point either way; an error of the formula, however small, does not.
LARGEST_DRIFT = 1e-6


def assert_same_trajectory(actual, expected):
    assert actual.shape == expected.shape == (UPDATES, 2)
    difference = (actual - expected) / expected
    assert difference.abs().max() <= LARGEST_DIFFERENCE
    assert difference.mean(dim=0).abs().max() <= LARGEST_DRIFT


@pytest.fixture(scope="module")
def model_of(tokenizer):
    def make(**changes):
        return small_model(vocab_size=len(tokenizer), dropout=0.0, **changes)

    return make


@pytest.fixture(scope="module")
def whole_batches(tmp_path_factory, tokenizer):
    return trajectory(tmp_path_factory.mktemp("whole"), tokenizer)


def test_the_run_learns(whole_batches):
    assert whole_batches[-1, 0] < 0.95 * whole_batches[0, 0]


@pytest.mark.parametrize(("batch_size", "accumulation"), [(4, 4), (1, 16)])
def test_splits_of_a_batch(tmp_path, tokenizer, whole_batches, batch_size, accumulation):
    split = trajectory(tmp_path, tokenizer, batch_size, gradient_accumulation_steps=accumulation)
    assert_same_trajectory(split, whole_batches)


def test_two_processes(tmp_path, tokenizer, whole_batches):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = {"batch_size": SENTENCES_AN_UPDATE // 8, "gradient_accumulation_steps": 4}
    run_as_two(write_trajectory, tmp_path / "trajectory", tmp_path / "tokenizer", arguments, folder=tmp_path)
    assert_same_trajectory(torch.load(tmp_path / "trajectory"), whole_batches)


@pytest.mark.parametrize("processes", [1, 2])
def test_token_batches(tmp_path, tokenizer, processes):
    """All sentences in each update, whose order and grouping must not matter."""
    expected = trajectory(tmp_path / "whole", tokenizer, pairs=SENTENCES_AN_UPDATE)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    arguments = {"pairs": SENTENCES_AN_UPDATE, "tokens_per_batch": 100, "gradient_accumulation_steps": 1000}
    if processes == 1:
        assert_same_trajectory(trajectory(tmp_path / "batches", tokenizer, **arguments), expected)
        return
    run_as_two(write_trajectory, tmp_path / "trajectory", tmp_path / "tokenizer", arguments, folder=tmp_path)
    assert_same_trajectory(torch.load(tmp_path / "trajectory"), expected)


class MorePadding(DataCollatorForSeq2Seq):
    """Three more columns of padding on the right of everything."""

    def __call__(self, features, return_tensors=None):
        batch = super().__call__(features, return_tensors)
        fill = {"input_ids": 0, "attention_mask": 0, "labels": -100, "decoder_input_ids": 0}
        return {name: torch.nn.functional.pad(ids, (0, 3), value=fill[name]) for name, ids in batch.items()}


class LeftPaddedSources(DataCollatorForSeq2Seq):
    """Sources padded on the left; labels, as they must be, on the right."""

    def __call__(self, features, return_tensors=None):
        batch = super().__call__(features, return_tensors)
        order = batch["attention_mask"].sort(stable=True).indices
        for name in ("input_ids", "attention_mask"):
            batch[name] = batch[name].gather(1, order)
        assert not batch["attention_mask"].all()
        return batch


@pytest.mark.parametrize(
    ("collator", "options"),
    [(MorePadding, {}), (LeftPaddedSources, {}), (DataCollatorForSeq2Seq, {"pad_to_multiple_of": 32})],
    ids=["more", "left", "multiple of 32"],
)
def test_padding(tmp_path, tokenizer, model_of, whole_batches, collator, options):
    model = model_of()
    padded = trajectory(tmp_path, tokenizer, collate=collator(tokenizer, model=model, **options), model=model)
    assert_same_trajectory(padded, whole_batches)


def test_eager_attention(tmp_path, tokenizer, model_of, whole_batches):
    assert model_of().config._attn_implementation == "vanilla_transformer"
    eager = trajectory(tmp_path, tokenizer, model=model_of(attn_implementation="eager"))
    assert_same_trajectory(eager, whole_batches)


# Every supported version of transformers knows this name; the newest ones have another.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(tmp_path, tokenizer, whole_batches, reentrant):
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    assert_same_trajectory(trajectory(tmp_path, tokenizer, **options), whole_batches)


def test_torch_compile(tmp_path, tokenizer, model_of):
    """Traced, but run by PyTorch; tests/ecosystem/test_compile.py also differentiates ahead of time."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1}
    expected = trajectory(tmp_path, tokenizer, model=model_of(**sizes))
    options = {"torch_compile": True, "torch_compile_backend": "eager"}
    torch._dynamo.utils.counters.clear()
    # With symbols for lengths at once, as torch would have them after the second batch.
    with torch._dynamo.config.patch(assume_static_by_default=False):
        compiled = trajectory(tmp_path, tokenizer, model=model_of(**sizes), **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    assert_same_trajectory(compiled, expected)
