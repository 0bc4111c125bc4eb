"""A run that is killed and resumed ends bit for bit where the uninterrupted run ends; with dropout."""

import re
import shutil
from functools import partial

import pytest
from transformers import TrainerState

from hf_vanilla_transformer import PaperTrainingArguments, last_complete_checkpoint
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.training.checkpoints import is_last_checkpoint
from tests.invariants.checkpoints import assert_same_checkpoint, assert_same_weights
from tests.invariants.killed import MAX_STEPS, PLACES, SAVE_STEPS, TORN, exit_code, start, stock_run


pytestmark = pytest.mark.long

KILLED = -9
LAST = f"checkpoint-{MAX_STEPS}"


def run_to_the_end(run, *arguments, log):
    assert exit_code(start(run, *arguments, log=log)) == 0, log.read_text()


def run_and_die(run, *arguments, log, place):
    assert exit_code(start(run, *arguments, log=log, place=place)) == KILLED, log.read_text()


@pytest.fixture(scope="module")
def whole_stock_run(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("stock")
    tokenizer.save_pretrained(folder / "tokenizer")
    run_to_the_end(stock_run, folder / "run", folder / "tokenizer", log=folder / "log")
    return folder


def killed_stock_run(folder, tokenizer_folder, place):
    """A run that was killed at a place, and can resume from its last checkpoint."""
    run_and_die(stock_run, folder / "run", tokenizer_folder, log=folder / "log", place=place)
    # Although save_total_limit is 1, a complete checkpoint always remains.
    assert last_complete_checkpoint(folder / "run") == str(folder / "run" / f"checkpoint-{PLACES[place][1]}")
    return folder / "run"


@pytest.mark.parametrize(
    "place", ["half of the weights", "before the mark", "while removing the old one", "in the middle of a step"]
)
def test_stock_trainer(tmp_path, whole_stock_run, place):
    run = killed_stock_run(tmp_path, whole_stock_run / "tokenizer", place)
    run_to_the_end(stock_run, run, whole_stock_run / "tokenizer", log=tmp_path / "log")
    assert_same_checkpoint(run / LAST, whole_stock_run / "run" / LAST)
    assert [path.name for path in run.iterdir()] == [LAST]


@pytest.mark.parametrize(
    "place",
    ["before the optimizer", "half of the optimizer", "before the random state", "before the trainer's state"],
)
def test_a_checkpoint_without_some_of_its_files_is_passed_over(tmp_path, whole_stock_run, place):
    """Resuming from the checkpoint before it is the same as with half of the weights."""
    killed_stock_run(tmp_path, whole_stock_run / "tokenizer", place)


@pytest.fixture(scope="module")
def grouped_run(tmp_path_factory, whole_stock_run):
    """A run with the paper's sampling, `group_by_length`, which has 4 updates an epoch, and its folder."""
    folder = tmp_path_factory.mktemp("grouped")
    run = partial(stock_run, train_sampling_strategy="group_by_length", save_steps=2, save_total_limit=None)
    run_to_the_end(run, folder / "run", whole_stock_run / "tokenizer", log=folder / "log")
    return run, folder / "run"


@pytest.mark.parametrize("step", [2, 4, 6])
def test_sentences_of_equal_length_together(tmp_path, whole_stock_run, grouped_run, step):
    """Exact in the first epoch, between two, and in the middle of another."""
    run, whole = grouped_run
    shutil.copytree(whole / f"checkpoint-{step}", tmp_path / "run" / f"checkpoint-{step}")
    run_to_the_end(run, tmp_path / "run", whole_stock_run / "tokenizer", log=tmp_path / "log")
    assert_same_checkpoint(tmp_path / "run" / LAST, whole / LAST)


@pytest.fixture(scope="module")
def whole_script_run(tmp_path_factory, recipe):
    folder = tmp_path_factory.mktemp("script")
    run_to_the_end(train.main, ["--config", recipe, "--output_dir", str(folder / "run")], log=folder / "log")
    return folder / "run"


@pytest.mark.parametrize("place", ["in the middle of a step", "half of the weights", "before the model is saved"])
def test_script(tmp_path, recipe, whole_script_run, place):
    run, log = tmp_path / "run", tmp_path / "log"
    arguments = ["--config", recipe, "--output_dir", str(run)]
    run_and_die(train.main, arguments, log=log, place=place)
    run_to_the_end(train.main, [*arguments, "--resume_from_checkpoint", "last"], log=log)
    passed_over = re.findall(r"(checkpoint-\d): it has no mark \(complete\.json\)", log.read_text())
    assert passed_over == ([TORN] if PLACES[place][1] == SAVE_STEPS else [])
    assert_same_checkpoint(run / LAST, whole_script_run / LAST)
    assert_same_weights(run, whole_script_run)


@pytest.mark.parametrize(
    ("arguments", "finished"),
    [
        ({"max_steps": 10}, True),
        ({"max_steps": 11}, False),
        ({"max_steps": 9, "num_train_epochs": 9}, True),
        ({"num_train_epochs": 2.5}, True),
        ({"num_train_epochs": 3}, False),
    ],
)
def test_the_end_of_a_run(tmp_path, arguments, finished):
    TrainerState(global_step=10, epoch=2.5).save_to_json(str(tmp_path / "trainer_state.json"))
    assert is_last_checkpoint(PaperTrainingArguments(output_dir=str(tmp_path), **arguments), tmp_path) == finished
