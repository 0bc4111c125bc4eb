"""`train` in two processes that train together."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import PaperTrainingArguments, last_complete_checkpoint
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.training import model_and_tokenizer
from tests.invariants.checkpoints import assert_same_checkpoint, assert_same_weights
from tests.invariants.killed import MAX_STEPS, exit_code, run_as_two, start, two_ranks


pytestmark = [pytest.mark.long, pytest.mark.several_processes]

LAST = f"checkpoint-{MAX_STEPS}"
DDP = Path(train.__file__).parents[2] / "recipes" / "accelerate" / "ddp.yaml"


def run_of_two(arguments, logs, place_of_the_second=None):
    """Exit codes of two processes, the second of which may die; each has arguments of its own."""
    places = (None, place_of_the_second)
    processes = [
        start(train_as_one_of_two, arguments[rank], log=logs[rank], place=places[rank], environment=environment)
        for rank, environment in enumerate(two_ranks())
    ]
    return [exit_code(process) for process in processes]


def train_as_one_of_two(arguments):
    """Only the main process may learn a tokenizer."""
    if os.environ["RANK"] == "1":
        model_and_tokenizer.train_tokenizer = None
    train.main(arguments)


@pytest.fixture(scope="module")
def launched(tmp_path_factory, recipe):
    """The folder of a run that accelerate launched, and the finished command."""
    folder = tmp_path_factory.mktemp("two") / "run"
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(DDP), "--num_processes", "2"]
    launch += ["-m", "hf_vanilla_transformer"]
    result = subprocess.run(
        [sys.executable, *launch, "train", "--config", recipe, "--output_dir", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return folder, result


def test_only_the_main_process_prints(launched):
    folder, result = launched
    printed = result.stdout + result.stderr
    assert "[rank" not in printed
    for line in ("exact match: ", "BLEU: ", f"the model is in {folder}"):
        assert printed.count(line) == 1


def test_both_processes_train(launched):
    folder, _ = launched
    assert (folder / LAST / "rng_state_0.pth").is_file()
    assert (folder / LAST / "rng_state_1.pth").is_file()
    assert "| sentences per update | 16 |" in (folder / "README.md").read_text()


def test_the_model_loads(launched):
    folder, _ = launched
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder))


def test_the_second_process_writes_its_random_state_and_nothing_else(tmp_path, recipe, launched):
    folders, logs = [tmp_path / "first", tmp_path / "second"], [tmp_path / "log0", tmp_path / "log1"]
    # To replace an earlier run's files, too, is left to the main process.
    folders[1].mkdir()
    (folders[1] / "scores.json").touch()
    codes = run_of_two([["--config", recipe, "--output_dir", str(folder), "--overwrite"] for folder in folders], logs)
    assert codes == [0, 0], logs[0].read_text() + logs[1].read_text()
    written = {str(path.relative_to(folders[1])) for path in folders[1].rglob("*") if path.is_file()}
    assert written == {"scores.json", *(f"checkpoint-{step}/rng_state_1.pth" for step in (3, 6, 9))}
    assert "number" not in logs[1].read_text()
    assert_same_weights(folders[0], launched[0])


def test_a_process_that_dies_leaves_no_checkpoint_that_looks_complete(tmp_path, recipe, launched):
    run, logs = tmp_path / "run", [tmp_path / "log0", tmp_path / "log1"]
    arguments = ["--config", recipe, "--output_dir", str(run)]
    first, second = run_of_two([arguments] * 2, logs, place_of_the_second="before the random state")
    assert second == -9
    assert first != 0
    assert last_complete_checkpoint(run) == str(run / "checkpoint-3")
    arguments += ["--resume_from_checkpoint", "last"]
    assert run_of_two([arguments] * 2, logs) == [0, 0], logs[0].read_text() + logs[1].read_text()
    assert "checkpoint-6: it has no mark" in logs[0].read_text()
    assert "it has no mark" not in logs[1].read_text()
    assert_same_checkpoint(run / LAST, launched[0] / LAST)
    assert_same_weights(run, launched[0])


def check_timeout(folder, expected, arguments):
    """Raise AssertionError if the processes do not wait for each other as long as the arguments say."""
    PaperTrainingArguments(output_dir=str(folder), use_cpu=True, **arguments)
    group = torch.distributed.group.WORLD
    assert group._get_backend(torch.device("cpu")).options._timeout == expected
    # The first process holds the store through which the other one joins the group, so it must not end before that.
    torch.distributed.barrier()


@pytest.mark.parametrize(
    ("arguments", "expected"), [({}, timedelta(hours=24)), ({"ddp_timeout": 77}, timedelta(seconds=77))]
)
def test_processes_wait_a_day_for_the_first_one_unless_told_otherwise(tmp_path, arguments, expected):
    """The first process may tokenize, plan, or translate with a teacher for hours."""
    run_as_two(check_timeout, tmp_path / "run", expected, arguments, folder=tmp_path)
