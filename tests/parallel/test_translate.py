"""`translate` in two processes, with one output."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import psutil
import pytest
import torch

from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.apps.cli import translate
from hf_vanilla_transformer.translation.model_loading import load
from tests.invariants.killed import run_as_two
from tests.models import decisive_model
from tests.parallel.test_recipes import FOLDER


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]

DDP = FOLDER / "ddp.yaml"
SENTENCES = ["one", "two houses", "", "a small house", "one small house", "two", "a house"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("decisive")
    decisive_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def command(folder, tmp_path):
    paths = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    return ["--model_name_or_path", str(folder), *paths]


def run(arguments):
    translate.CHUNK_SIZE_OF_SEVERAL = 2
    translate.main(arguments)


def test_the_order_is_that_of_the_input(folder, command, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    run_as_two(run, command, folder=tmp_path)
    tokenizer, model = load(str(folder))
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == translate_sentences(
        model, tokenizer, SENTENCES
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "log0", "log1", "out.txt"]
    assert "7 sentences in" in (tmp_path / "log0").read_text()
    assert "sentences in" not in (tmp_path / "log1").read_text()


def run_with_impatient_defaults(arguments):
    """Processes of torch wait one second for each other, and the second process is four seconds late."""
    torch.distributed.distributed_c10d.default_pg_timeout = timedelta(seconds=1)
    translate.CHUNK_SIZE_OF_SEVERAL = 1
    if os.environ["RANK"] == "1":
        translate.release_freed_memory = lambda: time.sleep(4)
    translate.main(arguments)


def test_the_fastest_process_waits_for_the_slowest(command, tmp_path):
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    run_as_two(run_with_impatient_defaults, command, folder=tmp_path)
    assert len((tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()) == 2


def test_a_killed_process_ends_the_command_without_an_output(command, tmp_path):
    (tmp_path / "in.txt").write_text("a small house\n" * 20_000)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(DDP), "--num_processes", "2"]
    with subprocess.Popen(
        [*launcher, "-m", "hf_vanilla_transformer", "translate", *command], stderr=subprocess.DEVNULL
    ) as process:
        parts = [tmp_path / f".out.txt.part-{index}-of-2" for index in range(2)]
        while not all(part.exists() for part in parts):
            assert process.poll() is None
            time.sleep(0.1)
        workers = [
            child for child in psutil.Process(process.pid).children(recursive=True) if "translate" in child.cmdline()
        ]
        max(workers, key=lambda child: child.create_time()).kill()
        assert process.wait() != 0
    assert not (tmp_path / "out.txt").exists()
    assert all(part.exists() for part in parts)


def test_streams_are_not_shared(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="error: 2 processes cannot share a stream; give both --input and --output"):
        translate.main(["one", "--model_name_or_path", str(folder)])
