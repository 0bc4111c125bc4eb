"""R-Drop in two processes makes the same updates as in one."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from tests.invariants.killed import run_as_two
from tests.training.test_r_drop import make_trainer


pytestmark = pytest.mark.long

SENTENCES_AN_UPDATE, ACCUMULATION = 8, 2


def updates(folder, tokenizer, weight, processes):
    """Loss and gradient norm of every update on the same sentences, for any number of processes."""
    batch_size = SENTENCES_AN_UPDATE // (ACCUMULATION * processes)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": ACCUMULATION}
    trainer = make_trainer(folder, tokenizer, weight, use_cpu=True, **settings)
    assert trainer.args.world_size == processes
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [[float(entry[name]) for name in ("loss", "grad_norm")] for entry in logs]


def write_updates(path, tokenizer_folder):
    """The first process writes the logs, which cover the batches of both."""
    measured = updates(path.parent, AutoTokenizer.from_pretrained(tokenizer_folder), weight=3.0, processes=2)
    if torch.distributed.get_rank() == 0:
        path.write_text(json.dumps(measured))


def test_two_processes(tmp_path, tokenizer):
    """Without dropout the two predictions are equal, and so is the loss to that of the stock Trainer."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    run_as_two(write_updates, tmp_path / "updates", tmp_path / "tokenizer", folder=tmp_path)
    expected = updates(tmp_path / "one", tokenizer, weight=None, processes=1)
    assert len(expected) == 3
    for measured, of_one_process in zip(json.loads((tmp_path / "updates").read_text()), expected, strict=True):
        assert measured == pytest.approx(of_one_process, rel=1e-6)
