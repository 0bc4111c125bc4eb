"""`train --resume_from_checkpoint`."""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file

from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from tests.apps.cli.tiny_run import evaluated, recipe


pytestmark = pytest.mark.long


def test_resuming_elsewhere_does_not_overwrite(trained, tmp_path, finished):
    arguments = recipe(tmp_path, output_dir=str(trained), resume_from_checkpoint=str(finished / "checkpoint-3"))
    with pytest.raises(SystemExit, match="already holds a model or checkpoints"):
        train.main(arguments)


def test_resuming_ends_where_the_whole_run_does(tmp_path):
    arguments = recipe(tmp_path, train_sampling_strategy="random")
    whole = load_file(train.main(arguments) / "model.safetensors")
    resumed = train.main([*arguments, "--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-3")])
    for name, weight in load_file(resumed / "model.safetensors").items():
        assert (weight == whole[name]).all()


def test_resuming_from_nothing(tmp_path):
    with pytest.raises(SystemExit, match="holds no complete checkpoint; leave out --resume_from_checkpoint"):
        train.main([*recipe(tmp_path), "--resume_from_checkpoint", "last"])


def test_resuming_from_a_checkpoint_that_is_cut_off(tmp_path, finished):
    checkpoint = finished / "checkpoint-3"
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SystemExit, match=r"checkpoint-3 cannot be resumed .*: model\.safetensors: missing or trunc"):
        train.main([*recipe(tmp_path), "--resume_from_checkpoint", str(checkpoint)])


def test_resuming_with_another_optimizer(tmp_path, finished):
    changes = {"learning_rate": 0.1, "max_steps": 9, "resume_from_checkpoint": "last"}
    with pytest.raises(SystemExit, match=r"was written with another optimizer .*; resume with the same learning_rate"):
        train.main(recipe(tmp_path, **changes))


def test_resuming_with_another_learning_rate(tmp_path):
    """The Trainer would continue with that of the checkpoint."""
    folder = train.main(recipe(tmp_path, learning_rate=0.01))
    changes = {"learning_rate": 0.5, "max_steps": 9, "resume_from_checkpoint": "last"}
    with pytest.raises(SystemExit, match=r"another optimizer \(.*learning rate 0\.01, .*, not .*learning rate 0\.5, "):
        train.main(recipe(tmp_path, **changes))
    train.main(recipe(tmp_path, **{**changes, "learning_rate": 0.01}))
    assert re.search(r"\| optimizer \| .*learning rate 0\.01,", (folder / "README.md").read_text())


def test_resuming_with_an_optimizer_of_another_kind(tmp_path, finished):
    changes = {"optim": "sgd", "max_steps": 9, "resume_from_checkpoint": "last"}
    with pytest.raises(SystemExit, match=r"checkpoint-6 was written with another optimizer .*; resume with the same"):
        train.main(recipe(tmp_path, **changes))


def test_resuming_with_another_number_of_processes(tmp_path, capsys):
    folder = train.main(recipe(tmp_path))
    train.main(recipe(tmp_path, max_steps=7, resume_from_checkpoint="last"))
    assert "was written by" not in capsys.readouterr().err
    checkpoint = folder / "checkpoint-7"
    for rank in range(2):
        (checkpoint / f"rng_state_{rank}.pth").touch()
    train.main(recipe(tmp_path, max_steps=8, resume_from_checkpoint="last"))
    assert f"{checkpoint} was written by 2 processes, and this run has 1, so the batches" in capsys.readouterr().err


def test_resuming_with_other_pairs(tmp_path, capsys):
    files = {"dataset_name": None, "train_file": str(tmp_path / "a.csv"), "train_sampling_strategy": "random"}
    rows = [f"{word},{word} {word}" for word in ("one", "two", "three", "four")]
    (tmp_path / "a.csv").write_text("\n".join(["en,fr", *rows]))
    train.main(recipe(tmp_path, **files, max_steps=3))
    shutil.copy(tmp_path / "a.csv", tmp_path / "b.csv")
    files["train_file"] = str(tmp_path / "b.csv")
    train.main(recipe(tmp_path, **files, max_steps=4, resume_from_checkpoint="last"))
    assert "training pairs are not those" not in capsys.readouterr().err
    (tmp_path / "b.csv").write_text("\n".join(["en,fr", *rows[::-1]]))
    train.main(recipe(tmp_path, **files, max_steps=5, resume_from_checkpoint="last"))
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert f"the training pairs are not those of {checkpoint}, so the run does not" in capsys.readouterr().err


def test_the_card_shows_adam_as_the_checkpoint_has_it(tmp_path):
    folder = train.main(recipe(tmp_path))
    checkpoint = folder / "checkpoint-6"
    forget_facts(checkpoint)
    train.main(recipe(tmp_path, max_steps=7, adam_beta2=0.5, resume_from_checkpoint="last"))
    assert "| beta_1, beta_2, epsilon | 0.9, 0.98, 1e-09 |" in (folder / "README.md").read_text()


def forget_facts(checkpoint):
    """Make a checkpoint look like one of a stock Trainer."""
    path = checkpoint / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["RecordFacts"]
    path.write_text(json.dumps(state))
    mark_complete(checkpoint)


def test_times_of_a_run_whose_callbacks_are_restored(tmp_path, finished):
    results_file = tmp_path / "results.json"
    changes = {"max_steps": 9, "resume_from_checkpoint": "last", "restore_callback_states_from_checkpoint": True}
    train.main(recipe(tmp_path, results=str(results_file), **changes))
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "trainer_state.json").read_text())
    before = state["stateful_callbacks"]["RecordFacts"]["args"]["seconds"]
    assert json.loads(results_file.read_text())["training_seconds"] > before


def test_resuming_with_callbacks_that_the_checkpoint_does_not_know(tmp_path):
    changes = {**evaluated(tmp_path), "max_steps": 4, "learning_rate": 0.0}
    folder = train.main(recipe(tmp_path, **changes))
    forget_facts(folder / "checkpoint-4")
    # The first evaluation from here on is the best.
    changes |= {"max_steps": 20, "early_stopping_patience": 2}
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    callbacks = json.loads((folder / "checkpoint-10" / "trainer_state.json").read_text())["stateful_callbacks"]
    assert not (folder / "checkpoint-12").exists()
    assert callbacks["RecordFacts"]["args"]["seconds"] > 0
    assert callbacks["EarlyStopping"]["attributes"]["early_stopping_patience_counter"] == 2
