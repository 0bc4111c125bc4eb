"""The script for the stock Trainer, in two processes: it trains, evaluates, averages and resumes."""

import json
import os
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    VanillaTransformerConfig,
    load_pairs,
    paper_learning_rate,
    translate,
)
from scripts import train_with_trainer
from tests.invariants.killed import run_as_two


pytestmark = pytest.mark.long

UPDATES, SAVE_STEPS, WARMUP, D_MODEL = 6, 2, 3, 32
SIZES = {"d_model": D_MODEL, "d_ff": 48, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}


def train_small(arguments):
    """Run the script as one of two processes, with a preset of small sizes."""
    train_with_trainer.VanillaTransformerConfig.from_paper = partial(VanillaTransformerConfig.from_paper, **SIZES)
    os.environ.pop("TORCH_CUDNN_SDPA_DEPRIORITIZED", None)
    train_with_trainer.main(arguments)
    assert os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert not torch.distributed.is_initialized()


def arguments_for(folder, output, *more):
    """The command line, with few pairs and updates."""
    settings = {
        "output_dir": output,
        "vocab_size": 300,
        "tokens_per_batch": 64,
        "max_steps": UPDATES,
        "warmup_steps": WARMUP,
        "save_steps": SAVE_STEPS,
        "eval_steps": SAVE_STEPS,
        "logging_steps": 1,
        "average_last": 2,
    }
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    for split in ("train", "validation"):
        arguments += [f"--{split}_file", str(folder / f"{split}.en"), str(folder / f"{split}.de")]
    return [*arguments, "--use_cpu", "--disable_tqdm=true", *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of pairs, and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("script")
    pairs = load_pairs("numbers", train_size=120)["train"]
    for split, rows in (("train", range(100)), ("validation", range(100, 113))):
        selected = pairs.select(rows)
        (folder / f"{split}.en").write_text("\n".join(selected["source"]) + "\n")
        (folder / f"{split}.de").write_text("\n".join(selected["target"]) + "\n")
    run_as_two(train_small, arguments_for(folder, folder / "run"), folder=folder)
    return folder


def log_of(output):
    state = json.loads((output / f"checkpoint-{UPDATES}" / "trainer_state.json").read_text())
    return state["log_history"]


def test_two_processes_train_with_equation_3(folder):
    rates = {entry["step"]: entry["learning_rate"] for entry in log_of(folder / "run") if "loss" in entry}
    expected = {update: paper_learning_rate(update, D_MODEL, WARMUP) for update in range(1, UPDATES + 1)}
    assert rates == pytest.approx(expected)


def test_evaluates_by_bleu_during_the_training(folder):
    evaluated = {entry["step"]: entry["eval_bleu"] for entry in log_of(folder / "run") if "eval_bleu" in entry}
    assert list(evaluated) == [2, 4, 6]
    assert all(0 <= bleu <= 100 for bleu in evaluated.values())


def test_averages_the_last_checkpoints_into_a_model_that_translates(folder):
    average = folder / "run" / "average"
    weights = load_file(average / "model.safetensors")
    last = [load_file(folder / "run" / f"checkpoint-{step}" / "model.safetensors") for step in (4, 6)]
    for name, weight in weights.items():
        torch.testing.assert_close(weight, (last[0][name] + last[1][name]) / 2)
    assert not torch.equal(weights["model.shared.weight"], last[1]["model.shared.weight"])
    tokenizer = AutoTokenizer.from_pretrained(average)
    assert len(translate(AutoModelForSeq2SeqLM.from_pretrained(average), tokenizer, ["forty-two"])) == 1
    # The folder of the run has the weights of the last update.
    saved = load_file(folder / "run" / "model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in last[1].items())


def test_resumes_exactly(folder):
    resumed = folder / "resumed"
    shutil.copytree(folder / "run" / "checkpoint-2", resumed / "checkpoint-2")
    run_as_two(train_small, arguments_for(folder, resumed, "--resume"), folder=folder)
    expected = load_file(folder / "run" / "model.safetensors")
    weights = load_file(resumed / "model.safetensors")
    assert all(torch.equal(weight, weights[name]) for name, weight in expected.items())
    losses = [[entry["loss"] for entry in log_of(output) if "loss" in entry] for output in (folder / "run", resumed)]
    assert losses[0] == losses[1]
    printed = (folder / "log0").read_text()
    assert printed.count("'loss'") == UPDATES - SAVE_STEPS


def find_checkpoint(output, resume, max_steps=UPDATES + 1):
    args = PaperTrainingArguments(str(output), max_steps=max_steps, use_cpu=True)
    return train_with_trainer.find_checkpoint(args, resume)


def test_does_not_train_over_checkpoints(folder):
    with pytest.raises(SystemExit, match=r"holds checkpoint-6; give --resume, or another --output_dir"):
        find_checkpoint(folder / "run", resume=False)
    assert find_checkpoint(folder / "run", resume=True).endswith("checkpoint-6")
    assert find_checkpoint(folder / "new", resume=False) is None


def test_resumes_only_what_is_not_finished(folder):
    with pytest.raises(SystemExit, match=r"new holds no complete checkpoint; leave out --resume"):
        find_checkpoint(folder / "new", resume=True)
    with pytest.raises(SystemExit, match=r"run is finished after 6 updates; give a larger --max_steps"):
        find_checkpoint(folder / "run", resume=True, max_steps=UPDATES)


@pytest.mark.parametrize(
    ("arguments", "gpus", "message"),
    [
        (["--average_last", "-1"], 0, "--average_last is -1; give 0 or a number of checkpoints"),
        (["--average_last", "5", "--save_total_limit", "2"], 0, "--average_last is 5, but --save_total_limit keeps 2"),
        ([], 2, "there are 2 GPUs for one process; start one process per GPU with torchrun"),
    ],
)
def test_refuses_before_any_work(tmp_path, monkeypatch, arguments, gpus, message):
    monkeypatch.setattr(PaperTrainingArguments, "n_gpu", gpus)
    files = ["--train_file", "no.en", "no.de", "--validation_file", "no.en", "no.de"]
    with pytest.raises(SystemExit, match=message):
        train_with_trainer.main([*files, "--output_dir", str(tmp_path), *arguments])


def test_pushes_the_average_from_one_process(folder, tmp_path, monkeypatch):
    small = partial(VanillaTransformerConfig.from_paper, **SIZES)
    monkeypatch.setattr(train_with_trainer.VanillaTransformerConfig, "from_paper", small)
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda trainer: setattr(trainer, "hub_model_id", "user/model"))
    pushed = []
    monkeypatch.setattr(train_with_trainer, "push_run", lambda *arguments, **options: pushed.append(arguments))
    more = ["--push_to_hub", "--max_steps=2", "--eval_strategy=no", "--tokenizer_name", str(folder / "run" / "average")]
    train_with_trainer.main(arguments_for(folder, tmp_path / "run", *more))
    assert pushed == [(tmp_path / "run" / "average", "user/model")]
