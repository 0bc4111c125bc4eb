"""Files that a run leaves in its output folder: its arguments, and the average of its last checkpoints."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from hf_vanilla_transformer.training import run_saving
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_saving import RunStoppedError, save_arguments, save_average


def save_weights(folder: Path, weight: float) -> Path:
    """Save a model with a single weight."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "vanilla_transformer"}))
    save_file({"weight": torch.tensor([weight])}, folder / "model.safetensors")
    return folder


def save_run(folder: Path, *steps: int) -> Path:
    """Save a model with the weight 9, and checkpoints whose weights are their numbers of updates."""
    save_weights(folder, 9.0)
    for step in steps:
        checkpoint = save_weights(folder / f"checkpoint-{step}", float(step))
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        mark_complete(checkpoint)
    return folder


def read_weight(folder: Path) -> float:
    return load_file(folder / "model.safetensors")["weight"].item()


def test_save_average_of_the_last_checkpoints(tmp_path, caplog):
    run = save_run(tmp_path / "run", 1, 2, 4)
    assert save_average(run, 2) == ["checkpoint-2", "checkpoint-4"]
    assert read_weight(run) == 3
    assert not caplog.records


def test_save_average_of_fewer_checkpoints(tmp_path, caplog):
    run = save_run(tmp_path / "run", 2, 4)
    assert save_average(run, 3) == ["checkpoint-2", "checkpoint-4"]
    assert read_weight(run) == 3
    assert caplog.messages == ["average_last is 3, but the run left 2 checkpoints; these are averaged."]


def test_save_average_without_checkpoints(tmp_path, caplog):
    run = save_run(tmp_path / "run")
    assert save_average(run, 3) == []
    assert read_weight(run) == 9
    assert caplog.messages == [
        "average_last is 3, but the run left 0 checkpoints; so the model has the weights of the last update."
    ]


@pytest.mark.parametrize("error", [OSError("no space left"), ValueError("the checkpoints differ")])
def test_save_average_that_fails_keeps_the_model(tmp_path, monkeypatch, error):
    def fail(checkpoints, folder):
        raise error

    monkeypatch.setattr(run_saving, "write_average", fail)
    run = save_run(tmp_path / "run", 1, 2)
    with pytest.raises(RunStoppedError, match=f"{error} .*weights of the last update, not an average"):
        save_average(run, 2)
    assert read_weight(run) == 9
    (run / "model.safetensors").unlink()
    with pytest.raises(RunStoppedError, match=f"^{error}$"):
        save_average(run, 2)


def test_save_average_raises_errors_of_the_program_as_they_are(tmp_path, monkeypatch):
    def fail(checkpoints, folder):
        raise KeyError("weight")

    monkeypatch.setattr(run_saving, "write_average", fail)
    with pytest.raises(KeyError, match="weight"):
        save_average(save_run(tmp_path / "run", 1, 2), 2)


@pytest.mark.parametrize(
    ("hub_strategy", "name_during_training"),
    [("end", "arguments.yaml"), ("every_save", "_arguments.yaml"), ("checkpoint", "_arguments.yaml")],
)
def test_save_arguments_leaves_one_file(tmp_path, hub_strategy, name_during_training):
    settings = Settings.from_arguments(
        output_dir=str(tmp_path), seed=3, push_to_hub=True, hub_strategy=hub_strategy, hub_model_id="user/model"
    )
    for is_trained, name in [(False, name_during_training), (True, "arguments.yaml"), (False, name_during_training)]:
        save_arguments(settings, is_trained=is_trained)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert yaml.safe_load((tmp_path / name).read_text())["seed"] == 3


@pytest.mark.parametrize("is_trained", [False, True])
def test_save_arguments_keeps_the_earlier_arguments_if_writing_fails(tmp_path, monkeypatch, is_trained):
    arguments = {"output_dir": str(tmp_path), "push_to_hub": True, "hub_strategy": "every_save"}
    # Each call gives the file a different name than the call before it.
    save_arguments(Settings.from_arguments(**arguments, seed=3), is_trained=not is_trained)

    def fail(path, text):
        raise OSError("No space left on device")

    monkeypatch.setattr(run_saving, "write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        save_arguments(Settings.from_arguments(**arguments, seed=4), is_trained=is_trained)
    (path,) = tmp_path.glob("*arguments.yaml")
    assert yaml.safe_load(path.read_text())["seed"] == 3
