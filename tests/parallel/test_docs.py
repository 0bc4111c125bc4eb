"""The programs of docs/sharding.md for several processes run in two."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from tests.invariants.killed import run_as_two
from tests.parallel.models import TRAINED
from tests.test_docs import ROOT, blocks


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]


def run_program(block: str, folder: Path) -> None:
    """Run it in one of two processes, each of which must hold half of a matrix."""
    os.chdir(folder)
    names: dict = {}
    exec(compile(block, "docs/sharding.md", "exec"), names)
    weight = names["model"].get_encoder().layers[0].fc1.weight
    assert 2 * weight.to_local().numel() == weight.numel()


def run(setting: str, folder: Path) -> None:
    """The program with this setting."""
    (block,) = [block for block in blocks(ROOT / "docs" / "sharding.md", "python") if setting in block]
    fixture = TRAINED.relative_to(ROOT).as_posix()
    assert fixture in block
    run_as_two(run_program, block.replace(fixture, TRAINED.as_posix()), folder, folder=folder)


@pytest.fixture(scope="module")
def before() -> dict[str, torch.Tensor]:
    return AutoModelForSeq2SeqLM.from_pretrained(TRAINED).state_dict()


def test_fsdp2(tmp_path, before):
    run("DistributedConfig(fsdp_size=2)", tmp_path)
    after = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "runs" / "fsdp2").state_dict()
    assert after.keys() == before.keys()
    assert not any(torch.equal(weight, before[name]) for name, weight in after.items() if weight.ndim == 2)


def test_tensor_parallelism(tmp_path, before):
    run("DistributedConfig(tp_size=2)", tmp_path)
    assert "['zweiundvierzig', 'einhunderteins']" in (tmp_path / "log0").read_text()
    after = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "runs" / "tp").state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())
