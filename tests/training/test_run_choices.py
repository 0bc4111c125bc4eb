"""What `train` chooses after the training, and how it is resumed: by the arguments that its folder holds."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import load_pairs, score_translations, translate
from hf_vanilla_transformer.apps.cli import train as train_verb
from hf_vanilla_transformer.evaluation import choose_search as search_choice
from hf_vanilla_transformer.evaluation.choose_search import ALPHAS, choose_search
from hf_vanilla_transformer.evaluation.scoring_arguments import ScoringArguments
from hf_vanilla_transformer.training import after_training, run
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_saving import RunStoppedError
from hf_vanilla_transformer.translation.model_loading import load
from tests.apps.cli.tiny_run import TINY, evaluated, recipe, weights_of, write_recipe


def saved_arguments(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "arguments.yaml").read_text())


def test_train_resumes_with_the_arguments_of_its_folder(tmp_path, monkeypatch):
    _, path = recipe(tmp_path)
    whole = train(config=path, output_dir=tmp_path / "whole", seed=3)

    def stop(*_):
        raise RunStoppedError("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(run, "save_model", stop)
        with pytest.raises(RunStoppedError):
            train(config=path, seed=3)
    (tmp_path / "run" / "checkpoint-6" / "trainer_state.json").unlink()
    assert saved_arguments(tmp_path / "run")["seed"] == 3
    resumed = train(output_dir=tmp_path / "run", resume_from_checkpoint="last")
    assert all((weight == weights_of(whole)[name]).all() for name, weight in weights_of(resumed).items())
    assert "resume_from_checkpoint" not in saved_arguments(resumed)
    longer = train(output_dir=tmp_path / "run", resume_from_checkpoint=tmp_path / "run" / "checkpoint-3", max_steps=7)
    assert saved_arguments(longer)["max_steps"] == 7
    # A checkpoint elsewhere may be untrusted.
    (tmp_path / "run" / "arguments.yaml").write_text(f"results: {tmp_path / 'overwritten.json'}")
    train(config=path, output_dir=tmp_path / "other", resume_from_checkpoint=tmp_path / "run" / "checkpoint-3")
    assert not (tmp_path / "overwritten.json").exists()


def test_train_after_a_kill_before_the_first_checkpoint(tmp_path):
    _, path = recipe(tmp_path)
    output = tmp_path / "run"
    output.mkdir()
    (output / "arguments.yaml").write_text("seed: 5")
    assert saved_arguments(train(config=path, resume_from_checkpoint="auto"))["seed"] == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "arguments.yaml").write_text("seed: 6")
    assert "seed" not in saved_arguments(train(config=path, output_dir=tmp_path / "other"))


def test_train_epochs_win_over_the_updates_of_a_recipe(tmp_path):
    _, path = recipe(tmp_path)
    folder = train(config=path, num_train_epochs=1)
    assert (folder / "checkpoint-8").is_dir()


def test_keep_better_of_last_checkpoint_and_average(tmp_path, monkeypatch, capsys):
    command = recipe(tmp_path, **evaluated(tmp_path), average_last=2, keep_better=True)
    compare = after_training.compare_average

    def compared(*args, **options):
        comparison = compare(*args, **options)
        comparison.average["bleu"] = average_bleu
        comparison.last_checkpoint["bleu"] = last_bleu
        return comparison

    monkeypatch.setattr(after_training, "compare_average", compared)
    average_bleu = 2.0
    last_bleu = 1.0
    folder = train_verb.main(command)
    last = weights_of(folder / "checkpoint-6")
    average = weights_of(folder)
    assert any((weight != last[name]).any() for name, weight in average.items())
    average_bleu = 1.0
    last_bleu = 2.0
    train_verb.main([*command, "--overwrite"])
    assert all((weight == last[name]).all() for name, weight in weights_of(folder).items())
    assert "| weights | of checkpoint-6, better than the average |" in (folder / "README.md").read_text()
    assert (folder / "arguments.yaml").is_file()
    assert (folder / "curve.json").is_file()


def test_choose_search_by_bleu_on_validation_pairs(tmp_path, capsys):
    data = evaluated(tmp_path)
    changes = {"max_steps": 60, "eval_steps": 60, "save_steps": 60, "d_model": 32, "learning_rate": 0.01}
    folder = train_verb.main(recipe(tmp_path, **{**data, **changes}, choose_search=True, max_new_tokens=None))
    chosen = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = load_pairs(test_files=data["validation_file"], source="en", target="fr")["test"]

    def bleu(**search: Any) -> float:
        translations = translate(chosen, tokenizer, list(pairs["source"]), show_progress=False, **search)
        return score_translations(translations, pairs["target"], tokenize="char")["bleu"]

    scores = {alpha: bleu(length_penalty=alpha, early_stopping="never") for alpha in ALPHAS}
    best = max(scores, key=scores.get)
    settings = chosen.generation_config
    assert settings.length_penalty == best
    stops = bleu(length_penalty=best, early_stopping=True) > scores[best]
    assert settings.early_stopping == (True if stops else "never")
    assert f"the best of 4 on {len(pairs)} validation pairs" in (folder / "README.md").read_text()
    assert f"validation BLEU {scores[0.6]:.2f}: beam search, 4 beams, length penalty 0.6" in capsys.readouterr().out


def test_choose_search_keeps_a_given_length_penalty(tmp_path, capsys):
    folder = train_verb.main(recipe(tmp_path, **evaluated(tmp_path), choose_search=True, length_penalty=0.9))
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config.length_penalty == 0.9
    assert "the best of 2" in (folder / "README.md").read_text()


def test_choose_search_of_a_greedy_search(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        train_verb.main(recipe(tmp_path, **evaluated(tmp_path), choose_search=True, num_beams=1))
    for word in ("choose_search", "num_beams is 1"):
        assert word in str(error.value)


@pytest.mark.parametrize("rule", [True, False, "never"])
def test_choose_search_keeps_a_given_stopping_rule(monkeypatch, rule):
    tokenizer, model = load("tests/fixtures/numbers_tiny")
    pairs = load_pairs("numbers", max_digits=2, train_size=60)["test"].select(range(4))
    tried = []

    def note(model, tokenizer, sources, **search):
        tried.append(search)
        return translate(model, tokenizer, sources, **search)

    monkeypatch.setattr(search_choice, "translate", note)
    chosen, scores = choose_search(model, tokenizer, pairs, ScoringArguments("char"), early_stopping=rule, num_beams=2)
    assert chosen["early_stopping"] == rule
    assert [search["early_stopping"] for search in tried] == [rule] * len(ALPHAS)
    assert [search["length_penalty"] for search in tried] == [*ALPHAS]
    assert chosen["length_penalty"] in ALPHAS
    assert len(scores) == len(ALPHAS)


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"eval_steps": 3}, 3),
        ({"save_steps": 3}, 3),
        ({"logging_steps": 3}, 3),
        ({}, 500),
    ],
)
def test_load_best_model_saves_what_it_evaluates(tmp_path, arguments, steps):
    arguments = {**arguments, "load_best_model_at_end": True, "max_steps": 6}
    args = Settings.from_arguments(output_dir=str(tmp_path), **arguments).args
    assert (args.eval_steps, args.save_steps) == (steps, steps)


def test_load_best_model_by_epochs(tmp_path):
    for name in ("eval_strategy", "save_strategy"):
        arguments = {"load_best_model_at_end": True, name: "epoch", "max_steps": 6}
        args = Settings.from_arguments(output_dir=str(tmp_path), **arguments).args
        assert (args.eval_strategy, args.save_strategy) == ("epoch", "epoch")


def test_load_best_model_runs_with_evaluation_steps_alone(tmp_path):
    changes = {**evaluated(tmp_path), "load_best_model_at_end": True, "eval_steps": 4, "max_steps": 8}
    del changes["eval_strategy"], changes["save_steps"]
    settings = {name: value for name, value in TINY.items() if name != "save_steps"}
    folder = train_verb.main(write_recipe({**settings, **changes}, tmp_path))
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eval_steps": 300, "save_steps": 500}, ["save_steps is 500", "eval_steps 300"]),
        ({"save_strategy": "no"}, ["eval_strategy", "no"]),
        ({"eval_strategy": "no"}, ["eval_strategy", "no"]),
        ({"eval_strategy": "no", "save_strategy": "best"}, ["eval_strategy", "no"]),
        # The Trainer's arguments raise these.
        ({"eval_strategy": "no", "save_strategy": "steps"}, ["save and eval strategy to match", "STEPS", "NO"]),
        ({"eval_strategy": "epoch", "save_strategy": "steps"}, ["save and eval strategy to match", "STEPS", "EPOCH"]),
    ],
)
def test_load_best_model_with_strategies_that_do_not_fit(tmp_path, changes, words):
    settings = {**TINY, **evaluated(tmp_path), "load_best_model_at_end": True}
    del settings["save_steps"], settings["eval_strategy"]
    with pytest.raises(SystemExit) as error:
        train_verb.main(write_recipe({**settings, **changes}, tmp_path))
    assert str(error.value).startswith("error: ")
    assert "load_best_model_at_end" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    for word in words:
        assert word in str(error.value)


def test_neftune_noise_changes_the_training_and_is_resumed(tmp_path):
    _, path = recipe(tmp_path, dropout=0.0)
    plain = train(config=path, output_dir=tmp_path / "plain")
    noisy = train(config=path, output_dir=tmp_path / "noisy", neftune_noise_alpha=5.0)
    assert any((weight != weights_of(plain)[name]).any() for name, weight in weights_of(noisy).items())
    shutil.copytree(noisy / "checkpoint-3", tmp_path / "resumed" / "checkpoint-3")
    shutil.copy(noisy / "arguments.yaml", tmp_path / "resumed")
    resumed = train(output_dir=tmp_path / "resumed", resume_from_checkpoint="last")
    assert all((weight == weights_of(noisy)[name]).all() for name, weight in weights_of(resumed).items())
