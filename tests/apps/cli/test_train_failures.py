"""Training that is interrupted, that another process disturbs, or whose disk is full."""

import errno
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import Seq2SeqTrainer
from transformers.trainer_callback import CallbackHandler

from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.support.atomic_files import is_disk_error
from hf_vanilla_transformer.training import run
from hf_vanilla_transformer.training.run_checks import check_space
from tests.apps.cli.tiny_run import TINY_RUN, assert_is_mean, weights_of, write_recipe


pytestmark = pytest.mark.long

recipe = partial(write_recipe, {**TINY_RUN, "max_steps": 4, "save_steps": 2})


def fail_at(monkeypatch, owner, name, when, error):
    """Make a method raise an error if `when` is true of its arguments."""
    method = getattr(owner, name)

    def failing(*args, **kwargs):
        if when(*args):
            raise error
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, SafetensorError("I/O error: No space left on device (os error 28)")])
def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch, trained, error):
    def is_fourth(trainer, *args):
        return trainer.state.global_step == 4

    with monkeypatch.context() as patch:
        fail_at(patch, Seq2SeqTrainer, "_save_optimizer_and_scheduler", is_fourth, error)
        with pytest.raises(SystemExit) as stop:
            train.main(recipe(tmp_path, max_steps=6))
    assert re.fullmatch(
        r"error: a checkpoint could not be written \(.*No space left on device.*\)\. Make room; then the same command "
        r"with --resume_from_checkpoint last resumes from checkpoint-2\.",
        str(stop.value),
    )
    whole = tmp_path / "whole"
    whole.mkdir()
    train.main(recipe(whole, max_steps=6))
    train.main([*recipe(tmp_path, max_steps=6), "--resume_from_checkpoint", "last"])
    assert_is_mean(weights_of(tmp_path / "run"), [whole / "run"])


def test_a_finished_model_is_not_lost_with_its_last_checkpoint(tmp_path, monkeypatch, capsys, trained):
    fail_at(monkeypatch, Seq2SeqTrainer, "_save_rng_state", lambda trainer, *_: trainer.state.global_step == 4, FULL)
    train.main(recipe(tmp_path))
    assert "the last checkpoint could not be written ([Errno 28] No space left on device)" in capsys.readouterr().out
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_an_error_before_the_first_update_does_not_save_an_untrained_model(tmp_path, monkeypatch):
    fail_at(monkeypatch, Seq2SeqTrainer, "get_train_dataloader", lambda *_: True, OSError(errno.EIO, "I/O error"))
    with pytest.raises(SystemExit, match="I/O error"):
        train.main(recipe(tmp_path))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_sharded_model_is_saved_again_by_a_resume(tmp_path, monkeypatch):
    # Its processes would have to save it together once more.
    def is_in_the_run(trainer, folder, **kwargs):
        trainer.is_deepspeed_enabled = not Path(folder).name.startswith("checkpoint")
        return trainer.is_deepspeed_enabled

    fail_at(monkeypatch, Seq2SeqTrainer, "save_model", is_in_the_run, FULL)
    with pytest.raises(SystemExit, match=r"could not be written to .*; the same command with --resume_from_checkpoint"):
        train.main(recipe(tmp_path))


@pytest.mark.parametrize("engine", ["is_deepspeed_enabled", "is_fsdp_enabled"])
def test_a_sharded_run_that_resumes_at_its_end(tmp_path, monkeypatch, engine):
    """It starts no engine, so the Trainer cannot save by one."""
    folder = train.main(recipe(tmp_path))
    expected = weights_of(folder)
    (folder / "model.safetensors").unlink()
    build = run.set_up_training

    def with_engine(*args):
        settings, trainer = build(*args)
        setattr(trainer, engine, True)
        return settings, trainer

    monkeypatch.setattr(run, "set_up_training", with_engine)
    train.main([*recipe(tmp_path), "--resume_from_checkpoint", "last"])
    assert all((weight == expected[name]).all() for name, weight in weights_of(folder).items())


def test_a_disk_without_space_is_known_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=1000))
    with pytest.raises(
        SystemExit, match=r"error: the run writes at least .* GB, but the disk of .*run has 1e-06 GB free"
    ):
        train.main(recipe(tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("strategy", "megabytes"), [("no", 4), ("steps", 16)])
def test_the_space_that_a_run_needs(tmp_path, monkeypatch, strategy, megabytes):
    args, model = SimpleNamespace(save_strategy=strategy), torch.nn.Linear(1000, 1000, bias=False)
    trainer: Any = SimpleNamespace(args=args, model=model)
    disk = SimpleNamespace(total=10**9, free=megabytes * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    check_space(trainer, tmp_path)
    disk.free -= 1
    with pytest.raises(OSError, match=rf"the run writes at least 0\.0*{megabytes} GB"):
        check_space(trainer, tmp_path)
    disk.total = disk.free = 0  # As some network file systems.
    check_space(trainer, tmp_path)


def test_a_finished_model_goes_elsewhere_if_its_folder_is_full(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))

    def is_in_the_run(trainer, folder, **kwargs):
        return Path(folder).parent.name == "run" and not Path(folder).name.startswith("checkpoint")

    fail_at(monkeypatch, Seq2SeqTrainer, "save_model", is_in_the_run, FULL)
    with pytest.raises(SystemExit, match=r"error: the model could not be written to .*run \(.*\); it is in") as stop:
        train.main(recipe(tmp_path))
    refuge = Path(re.search(r"it is in (\S+), move it from there", str(stop.value))[1])
    assert refuge.parent == elsewhere
    assert (refuge / "model.safetensors").is_file()
    assert (refuge / "tokenizer.json").is_file()


def interrupt_before(monkeypatch, step):
    fail_at(
        monkeypatch,
        CallbackHandler,
        "on_step_begin",
        lambda handler, args, state, *_: state.global_step == step,
        KeyboardInterrupt(),
    )


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (1, "the same command starts again, because there is no complete checkpoint"),
        (3, "the same command with --resume_from_checkpoint last resumes from checkpoint-2"),
    ],
)
def test_an_interrupt_is_one_line(tmp_path, monkeypatch, capsys, step, advice):
    interrupt_before(monkeypatch, step)
    with pytest.raises(SystemExit) as stop:
        main(["train", *recipe(tmp_path)])
    assert stop.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"interrupted: {advice}"


def at_step(monkeypatch, event, step, action):
    """Call a function with the Trainer's control when a number of updates is done."""
    method = getattr(CallbackHandler, event)

    def acting(handler, args, state, control, *other_args, **kwargs):
        control_of_handler = method(handler, args, state, control, *other_args, **kwargs)
        if state.global_step == step:
            action(control)
        return control_of_handler

    monkeypatch.setattr(CallbackHandler, event, acting)


def sigterm(control):
    signal.raise_signal(signal.SIGTERM)


def test_sigterm_is_one_line_and_143(tmp_path, monkeypatch, capsys):
    at_step(monkeypatch, "on_step_begin", 3, sigterm)
    with pytest.raises(SystemExit) as stop:
        main(["train", *recipe(tmp_path)])
    assert stop.value.code == 143
    message = "interrupted: the same command with --resume_from_checkpoint last resumes from checkpoint-2"
    assert capsys.readouterr().err.splitlines()[-1] == message


@pytest.mark.parametrize("step", [0, 3])
def test_a_preempted_run_saves_a_checkpoint_and_fails(tmp_path, monkeypatch, capsys, step):
    """Also at its last update: the platform will kill it before the scores."""
    changes = {"save_steps": 4, "train_sampling_strategy": "random", "dropout": 0.3}
    arguments = recipe(tmp_path, enable_jit_checkpoint=True, **changes)
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        at_step(patch, "on_step_begin", step, sigterm)
        with pytest.raises(SystemExit) as stop:
            main(["train", *arguments])
    assert stop.value.code == 143
    message = f"interrupted: the same command with --resume_from_checkpoint last resumes from checkpoint-{step + 1}"
    assert capsys.readouterr().err.splitlines()[-1] == message
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"arguments.yaml", f"checkpoint-{step + 1}"}
    assert signal.getsignal(signal.SIGTERM) is before
    train.main([*arguments, "--resume_from_checkpoint", "last"])
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = weights_of(train.main(recipe(whole, **changes)))
    assert all((weight == expected[name]).all() for name, weight in weights_of(tmp_path / "run").items())


def test_a_training_that_something_stops_before_its_end(tmp_path, monkeypatch):
    at_step(monkeypatch, "on_step_end", 3, lambda control: setattr(control, "should_training_stop", True))
    message = "the training stopped after 3 of 4 updates; the same command with --resume_from_checkpoint last resumes"
    with pytest.raises(SystemExit, match=f"error: {message} from checkpoint-2"):
        train.main(recipe(tmp_path))
    assert not (tmp_path / "run" / "model.safetensors").exists()


HOLD = """
import sys, time
from pathlib import Path
from hf_vanilla_transformer.support.atomic_files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_one_run_at_a_time_in_a_folder(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, run], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(SystemExit, match=f"error: process {holder.pid} on .* is writing {run}; wait until it ends"):
            train.main(recipe(tmp_path))
        holder.kill()
    train.main(recipe(tmp_path))
    assert not (tmp_path / ".run.lock").exists()


def test_a_killed_first_checkpoint_does_not_stop_a_job_that_restarts(tmp_path, trained):
    """All files are there, but not the mark, which `train` always writes."""
    first = tmp_path / "run" / "checkpoint-4"
    shutil.copytree(max(trained.glob("checkpoint-*")), first)
    (first / "complete.json").unlink()
    train.main([*recipe(tmp_path), "--resume_from_checkpoint", "auto"])
    assert (first / "complete.json").is_file()


def test_a_run_that_fails_early_leaves_no_folder(tmp_path):
    with pytest.raises(SystemExit, match="does not exist"):
        train.main(recipe(tmp_path, dataset_name=None, train_file=["nowhere.csv"]))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(SystemExit, match=r"error: .*/file"):
            train.main(recipe(tmp_path, output_dir=str(output)))
    (tmp_path / "run").mkdir()
    fail_at(monkeypatch, tempfile, "mkdtemp", lambda *args: True, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(SystemExit, match=r"error: .*Permission denied"):
        train.main(recipe(tmp_path))


def test_a_card_that_cannot_take_its_place(tmp_path, monkeypatch, trained):
    fail_at(monkeypatch, Path, "replace", lambda path, target: path.name == "README.md", FULL)
    with pytest.raises(SystemExit) as stop:
        train.main(recipe(tmp_path))
    assert re.fullmatch(
        r"error: .*run could not be replaced \(.*No space left on device.*\); its new files are in .*; the model in "
        r".*run is trained, but its scores and card are not complete\. Make room; then the same command with .*\.",
        str(stop.value),
    )
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_which_errors_are_the_disk_s():
    assert is_disk_error(FULL)
    assert is_disk_error(OSError(errno.EIO, "Input/output error"))
    assert is_disk_error(Exception("Input/output error (os error 5)"))
    assert not is_disk_error(Exception("No such file or directory (os error 2)"))
    assert not is_disk_error(FileNotFoundError(errno.ENOENT, "no"))
    assert not is_disk_error(RuntimeError("shapes differ"))
