"""Checkpoints of other libraries: written and loaded as their documentation says, with tied weights in them once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, load_model, save_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from tests.ecosystem.documentation import FIXTURE, ROOT
from tests.models import small_model


KINDS = [{}, {"tie_word_embeddings": False}, {"source_vocab_size": 45}]
LOOP = Path(__file__).with_name("accelerate_loop.py")


def is_equal(first, second):
    weights = second.state_dict()
    return all(torch.equal(weight, weights[name]) for name, weight in first.state_dict().items())


@pytest.fixture(params=KINDS, ids=str)
def models(request):
    """Two models with different weights."""
    saved, loaded = small_model(0, **request.param), small_model(1, **request.param)
    assert not is_equal(saved, loaded)
    return saved, loaded


def test_safetensors(models, tmp_path):
    saved, loaded = models
    saved.save_pretrained(tmp_path)
    assert load_model(loaded, tmp_path / "model.safetensors", strict=True) == (set(), [])
    assert is_equal(saved, loaded)
    save_model(saved, str(tmp_path / "loaded.safetensors"))
    load_model(loaded, tmp_path / "loaded.safetensors", strict=True)
    part = {name: weight for name, weight in saved.state_dict().items() if "fc1" not in name}
    with pytest.raises(RuntimeError, match=r"Missing key.*fc1"):
        loaded.load_state_dict(part)


def test_lightning(models, tmp_path):
    """Lightning saves the weights of a module that has the model as an attribute, and loads them strictly."""
    saved, loaded = (torch.nn.ModuleDict({"model": model}) for model in models)
    torch.save({"state_dict": saved.state_dict()}, tmp_path / "last.ckpt")
    loaded.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"], strict=True)
    assert is_equal(saved, loaded)


@pytest.mark.parametrize("options", [None, StateDictOptions(full_state_dict=True, strict=True)], ids=["plain", "full"])
def test_distributed_checkpoints_of_torch(models, tmp_path, options):
    saved, loaded = models
    dcp.save({"model": get_model_state_dict(saved, options=options)}, checkpoint_id=tmp_path, no_dist=True)
    state = {"model": get_model_state_dict(loaded, options=options)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert set_model_state_dict(loaded, state["model"], options=options).missing_keys == []
    assert is_equal(saved, loaded)


@pytest.mark.slow
def test_a_killed_loop_of_accelerate_resumes_exactly(tmp_path):
    """Killed in the second epoch."""

    def train(name, *arguments, succeeds=True):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, LOOP, "--model_name_or_path", FIXTURE, "--output_dir", tmp_path / name, *arguments]
        result = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
        assert (result.returncode == 0) == succeeds, result.stderr
        return json.loads(result.stdout.splitlines()[-1]) if succeeds else result.returncode

    losses = train("whole")
    assert len(losses) == 12
    assert train("parts", "--die_after", "9", succeeds=False) == -9
    assert train("parts", "--resume_from_checkpoint", str(tmp_path / "parts" / "epoch_0")) == losses[6:]
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())
