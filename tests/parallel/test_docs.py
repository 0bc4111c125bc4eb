"""The programs of docs/sharding.md for several processes run in two."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from tests.invariants.killed import run_as_two
from tests.parallel.fsdp import let_accelerate_share_on_cpu
from tests.parallel.models import TRAINED
from tests.test_docs import ROOT, blocks


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]


def execute(program: str, folder: Path) -> dict[str, Any]:
    """Run a program in one of two processes, each of which must hold half of a matrix; return its names."""
    os.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(program, "docs/sharding.md", "exec"), names)
    model = names["trainer"].model if "trainer" in names else names["model"]
    weight = model.get_encoder().layers[0].fc1.weight
    assert 2 * weight.to_local().numel() == weight.numel()
    if torch.distributed.is_initialized():
        # Through the first process they all find each other, so it must not end before the second.
        torch.distributed.barrier()
    return names


def execute_on_cpu(program: str, folder: Path, losses: str) -> None:
    """Run a program for GPUs in one of two CPU processes. The first one writes its last losses to a file."""
    let_accelerate_share_on_cpu()
    names = execute(program, folder)
    if torch.distributed.get_rank() == 0:
        (folder / losses).write_text(json.dumps(last_losses(names)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def last_losses(names: dict[str, Any]) -> list[float]:
    """The losses that a program has logged in its second half."""
    log = names["trainer"].state.log_history
    losses = [float(entry["loss"]) for entry in log if "loss" in entry and entry["step"] > 10]
    assert len(losses) == 2
    return losses


def read_block(name: str) -> str:
    """A program of the page, with the absolute path of the model."""
    (block,) = blocks(ROOT / "docs" / "sharding.md", "python", name)
    fixture = TRAINED.relative_to(ROOT).as_posix()
    assert fixture in block
    return block.replace(fixture, TRAINED.as_posix())


@pytest.fixture(scope="module")
def before() -> dict[str, torch.Tensor]:
    return AutoModelForSeq2SeqLM.from_pretrained(TRAINED).state_dict()


def assert_is_trained(folder: Path, before: dict[str, torch.Tensor]) -> None:
    """Check that a folder has a whole model, all of whose matrices differ from those before the training."""
    after = AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()
    assert after.keys() == before.keys()
    assert not any(torch.equal(weight, before[name]) for name, weight in after.items() if weight.ndim == 2)


def test_fsdp2(tmp_path, before):
    program = read_block("fsdp2")
    assert "trainer.train()" in program
    resumed = program.replace("trainer.train()", "trainer.train(resume_from_checkpoint='runs/fsdp2/checkpoint-10')")
    run_as_two(execute_on_cpu, program, tmp_path, "losses.json", folder=tmp_path)
    run_as_two(execute_on_cpu, resumed, tmp_path, "resumed.json", folder=tmp_path)
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert json.loads((tmp_path / "resumed.json").read_text()) == pytest.approx(losses)
    assert_is_trained(tmp_path / "runs" / "fsdp2", before)


def test_fsdp2_loading(tmp_path, before):
    program = read_block("fsdp2")
    start_of_model = program.index("model = ")
    start_of_trainer = program.index("trainer = ")
    changed_part = read_block("fsdp2_loading").replace('save_strategy="no"', 'save_strategy="no", use_cpu=True')
    changed_program = program[:start_of_model] + changed_part + program[start_of_trainer:]
    lines = [line for line in changed_program.splitlines() if "set_state_dict_type" not in line]
    run_as_two(execute, "\n".join(lines), tmp_path, folder=tmp_path)
    assert_is_trained(tmp_path / "runs" / "fsdp2", before)


def test_tensor_parallelism(tmp_path, before):
    run_as_two(execute, read_block("tensor_parallelism"), tmp_path, folder=tmp_path)
    assert "['zweiundvierzig', 'einhunderteins']" in (tmp_path / "log0").read_text()
    after = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "runs" / "tp").state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())
