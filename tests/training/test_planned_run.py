"""What `train` does with a plan: it is printed, saved, and never made again. The plan itself is in test_plan.py."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli import plan as plan_verb
from hf_vanilla_transformer.apps.cli import train as train_verb
from hf_vanilla_transformer.training import run
from hf_vanilla_transformer.training.cost_estimate import Costs
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_saving import RunStoppedError
from tests.apps.cli.tiny_run import recipe, weights_of


CHOSEN = {
    "vocab_size": 300,
    "num_layers": 1,
    "d_model": 16,
    "d_ff": 16,
    "num_heads": 2,
    "tokens_per_batch": 200,
    "max_steps": 6,
    "save_steps": 2,
    "bf16": False,
}


class FixedPlan(NamedTuple):
    arguments: dict[str, Any]
    costs: Costs = Costs(parameters=1, tokens=1, updates=6, seconds=1, memory=1, disk=10**6)

    def lines(self) -> list[str]:
        return [f"{name}: as it was chosen" for name in self.arguments]


@pytest.fixture
def files(tmp_path) -> list[str]:
    numbers = load_pairs("numbers", source="en", target="fr", max_digits=2, train_size=60)["train"]
    for suffix, side in (("en", "source"), ("fr", "target")):
        (tmp_path / f"mine.{suffix}").write_text("".join(f"{text}\n" for text in numbers[side]))
    return [str(tmp_path / "mine.en"), str(tmp_path / "mine.fr")]


@pytest.fixture
def plan_calls(monkeypatch) -> list[dict[str, Any]]:
    """Replace `plan` by a fixed plan. Returns the arguments of each call."""
    calls: list[dict[str, Any]] = []

    def make_fixed_plan(pairs, **arguments):
        calls.append(arguments)
        return FixedPlan({name: value for name, value in CHOSEN.items() if name not in arguments})

    monkeypatch.setattr(run, "plan", make_fixed_plan)
    return calls


def other_pairs(folder: Path) -> dict[str, str]:
    (folder / "other.tsv").write_text("en\tfr\nnine hundred\tneuf cents\n")
    return {"validation_files": str(folder / "other.tsv"), "source_lang": "en", "target_lang": "fr"}


def saved_arguments(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "arguments.yaml").read_text())


def test_train_needs_only_files_and_a_folder(tmp_path, files, plan_calls, capsys):
    folder = train_verb.main(["--train_file", *files, "--output_dir", str(tmp_path / "run")])
    assert "d_model: as it was chosen\n" in capsys.readouterr().out
    assert len(plan_calls) == 1
    config = AutoModelForSeq2SeqLM.from_pretrained(folder).config
    assert (config.d_model, config.encoder_layers) == (16, 1)
    saved = saved_arguments(folder)
    assert {**CHOSEN, "train_file": files}.items() <= saved.items()
    again = train(config=str(folder / "arguments.yaml"), output_dir=tmp_path / "again")
    assert len(plan_calls) == 1
    assert saved["validation_size"] == 1
    other_folder = train(config=str(folder / "arguments.yaml"), output_dir=tmp_path / "others", **other_pairs(tmp_path))
    assert "validation_size" not in saved_arguments(other_folder)
    assert all((weight == weights_of(folder)[name]).all() for name, weight in weights_of(again).items())


def test_train_rejects_a_disk_without_space_for_the_planned_checkpoints(tmp_path, files, plan_calls, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=10**6 - 1))
    with pytest.raises(OSError, match=r"0\.001 GB.*disk"):
        train(files, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_train_saves_the_best_checkpoint_of_a_plan(tmp_path, files, plan_calls):
    arguments = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "eval_steps": 2}
    folder = train(files, tmp_path / "run", **arguments)
    assert saved_arguments(folder)["eval_strategy"] == "steps"
    assert "best_model_checkpoint" in (folder / "checkpoint-6" / "trainer_state.json").read_text()


def test_train_rejects_a_single_pair(tmp_path):
    for suffix, text in (("en", "nine"), ("fr", "neuf")):
        (tmp_path / f"one.{suffix}").write_text(f"{text}\n")
    with pytest.raises(ValueError, match="too few"):
        train([tmp_path / "one.en", tmp_path / "one.fr"], tmp_path / "run")


def test_train_prefers_given_arguments_to_the_plan(tmp_path, files, plan_calls):
    folder = train(files, tmp_path / "run", d_model=8, seed=3)
    assert {"d_model": 8, "seed": 3}.items() <= plan_calls[0].items()
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.d_model == 8
    assert saved_arguments(folder)["d_model"] == 8


@pytest.mark.parametrize("arguments", [{"preset": "base"}, {"max_steps": 2}, {"model_name_or_path": "x"}])
def test_from_arguments_needs_no_plan_with_some_arguments(arguments, files):
    assert Settings.from_arguments(allow_plan=True, train_file=files).needs_plan
    assert not Settings.from_arguments(allow_plan=True, train_file=files, **arguments).needs_plan
    assert not Settings.from_arguments(train_file=files).needs_plan


def test_train_makes_no_plan_with_a_recipe(tmp_path, files, plan_calls):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**CHOSEN, "train_file": files, "output_dir": str(tmp_path / "run")}))
    train_verb.main([f"--config={path}"])
    train(config=path, output_dir=tmp_path / "python")
    assert plan_calls == []


def test_train_writes_nothing_in_a_dry_run(tmp_path, files, plan_calls, capsys):
    train_verb.main(["--train_file", *files, "--output_dir", str(tmp_path / "run"), "--dry_run"])
    printed_by_train = capsys.readouterr().out
    plan_verb.main(["--train_file", *files, "--output_dir", str(tmp_path / "run")])
    assert capsys.readouterr().out == printed_by_train
    assert "d_model: as it was chosen\n" in printed_by_train
    train(files, tmp_path / "run", dry_run=True)
    assert not (tmp_path / "run").exists()


def test_plan_ignores_an_earlier_run_in_the_output_folder(tmp_path, files, plan_calls, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"of an earlier run")
    arguments = ["--train_file", *files, "--output_dir", str(folder)]
    plan_verb.main(arguments)
    assert "d_model: as it was chosen\n" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    with pytest.raises(SystemExit):
        train_verb.main(arguments)


def test_train_estimates_only_costs_in_a_dry_run_of_a_recipe(tmp_path, plan_calls):
    _, path = recipe(tmp_path)
    train(config=path, dry_run=True)
    assert [call["chooses"] for call in plan_calls] == [False]
    assert not (tmp_path / "run").exists()


def test_train_resumes_with_the_plan_of_its_folder(tmp_path, files, plan_calls, monkeypatch):
    uninterrupted_folder = train(files, tmp_path / "whole")

    def stop(self, *_, **__):
        raise RunStoppedError("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(run, "save_model", stop)
        with pytest.raises(RunStoppedError):
            train(files, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-6" / "trainer_state.json").unlink()
    assert saved_arguments(tmp_path / "run")["max_steps"] == 6
    assert len(plan_calls) == 2
    resumed_folder = train(output_dir=tmp_path / "run", resume_from_checkpoint="last")
    assert len(plan_calls) == 2
    assert all(
        (weight == weights_of(uninterrupted_folder)[name]).all() for name, weight in weights_of(resumed_folder).items()
    )
    assert "resume_from_checkpoint" not in saved_arguments(resumed_folder)


def test_train_resumes_a_run_that_was_killed_before_its_first_checkpoint(tmp_path, files, plan_calls):
    output = tmp_path / "run"
    output.mkdir()
    (output / "arguments.yaml").write_text(yaml.safe_dump({**CHOSEN, "train_file": files, "seed": 5}))
    train(files, output, resume_from_checkpoint="auto")
    assert plan_calls == []
    assert saved_arguments(output)["seed"] == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "arguments.yaml").write_text("seed: 6")
    train(files, tmp_path / "other")
    assert saved_arguments(tmp_path / "other").get("seed") is None
