"""Arguments of a run that depend on the device."""

import json

import pytest
import torch
from transformers.trainer_pt_utils import AcceleratorConfig

from hf_vanilla_transformer.training.run_arguments import RunArguments, Settings


def pretend_to_have(device, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: device != "cpu")
    monkeypatch.setattr(RunArguments, "device", property(lambda self: torch.device(device)))


def arguments_on(device, monkeypatch, **arguments):
    pretend_to_have(device, monkeypatch)
    return RunArguments("unused", bf16=False, **arguments)


@pytest.mark.parametrize(
    ("device", "arguments", "expected"),
    [
        ("cuda", {}, True),
        ("xpu", {}, True),
        ("cuda", {"accelerator_config": {"non_blocking": False}}, False),
        ("cuda", {"accelerator_config": '{"non_blocking": false}'}, False),
        ("cuda", {"accelerator_config": AcceleratorConfig()}, False),
        ("cuda", {"dataloader_pin_memory": False}, False),
        ("mps", {}, False),
        ("cpu", {}, False),
        ("cpu", {"accelerator_config": {"non_blocking": True}}, True),
    ],
)
def test_copies_to_a_gpu_do_not_block(device, arguments, expected, monkeypatch):
    args = arguments_on(device, monkeypatch, **arguments)
    assert args.accelerator_config.non_blocking is expected


@pytest.mark.parametrize("config", [{"use_seedable_sampler": False}, '{"use_seedable_sampler": false}'])
def test_other_settings_of_accelerate_stay(config, monkeypatch):
    accelerator_config = arguments_on("cuda", monkeypatch, accelerator_config=config).accelerator_config
    assert accelerator_config.non_blocking
    assert not accelerator_config.use_seedable_sampler


@pytest.mark.parametrize("non_blocking", [True, False])
def test_a_file_decides_whether_copies_block(non_blocking, tmp_path, monkeypatch):
    path = tmp_path / "accelerator.json"
    path.write_text(json.dumps({"non_blocking": non_blocking}))
    args = arguments_on("cuda", monkeypatch, accelerator_config=str(path))
    assert args.accelerator_config.non_blocking is non_blocking


def test_the_choice_of_copies_is_not_an_argument_that_was_given(monkeypatch):
    pretend_to_have("cuda", monkeypatch)
    settings = Settings.from_arguments(output_dir="unused", bf16=False)
    assert settings.args.accelerator_config.non_blocking
    assert "accelerator_config" not in settings.repeatable_arguments()
