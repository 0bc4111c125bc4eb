"""`train` with evaluations during training, and `--average_last`."""

import json
import math
import re
import resource
import shutil
import sys
from types import SimpleNamespace

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.integrations import integration_utils

from hf_vanilla_transformer import load_pairs, score_translations, translate
from hf_vanilla_transformer.apps.cli import plot, train
from hf_vanilla_transformer.support.checkpoint_marks import mark_complete
from hf_vanilla_transformer.training import after_training, run_saving
from hf_vanilla_transformer.training.trainer_callbacks import EXAMPLES_PER_EVALUATION
from tests.apps.cli.tiny_run import assert_is_mean, evaluated, recipe, weights_of


pytestmark = pytest.mark.long


def test_training_that_ends_with_an_average(tmp_path, monkeypatch):
    scored = []

    def note_weights(model, *args, **kwargs):
        scored.append(model.lm_head.weight.detach().cpu().numpy())
        return evaluate(model, *args, **kwargs)

    evaluate = after_training.evaluate
    monkeypatch.setattr(after_training, "evaluate", note_weights)
    # The last update is no multiple of save_steps; its checkpoint counts all the same.
    arguments = recipe(tmp_path, save_steps=2, max_steps=5, train_sampling_strategy="random")
    averaging = [*arguments, "--average_last", "2"]
    folder = train.main([*averaging, "--save_total_limit", "2"])
    checkpoints = [folder / "checkpoint-4", folder / "checkpoint-5"]
    average = weights_of(folder)
    assert_is_mean(average, checkpoints)
    assert (scored[0] == average["model.shared.weight"]).all()
    assert "| weights | average of 2 checkpoints: checkpoint-4, checkpoint-5 |" in (folder / "README.md").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config.num_beams == 4

    train.main([*averaging, "--resume_from_checkpoint", str(checkpoints[0])])
    assert all((weight == average[name]).all() for name, weight in weights_of(folder).items())
    more = ["--max_steps", "7", "--save_steps", "7", "--average_last", "3", "--save_total_limit", "3"]
    train.main([*arguments, *more, "--resume_from_checkpoint", "last"])
    # A resumed run keeps its interval; what it wrote before counts, too.
    assert_is_mean(weights_of(folder), [folder / f"checkpoint-{step}" for step in (5, 6, 7)])
    # It keeps its arguments, too.
    train.main([*arguments, "--max_steps", "7", "--resume_from_checkpoint", "last"])
    assert "average of 3 checkpoints" in (folder / "README.md").read_text()


def test_a_run_that_left_fewer_checkpoints_than_are_to_be_averaged(tmp_path, capsys):
    folder = train.main(recipe(tmp_path, max_steps=-1, num_train_epochs=1, save_steps=5, average_last=4))
    checkpoints = sorted(folder.glob("checkpoint-*"))
    assert_is_mean(weights_of(folder), checkpoints)
    assert f"average_last is 4, but the run left {len(checkpoints)} checkpoints; these are" in capsys.readouterr().err


def test_an_average_of_a_run_that_stops_early(tmp_path):
    """The checkpoint where it stops is one of them, although it is no multiple of save_steps."""
    changes = {**evaluated(tmp_path), "eval_steps": 3, "save_steps": 4, "early_stopping_patience": 2}
    folder = train.main(recipe(tmp_path, **changes, max_steps=20, learning_rate=0.0, average_last=5))
    averaged = "average of 3 checkpoints: checkpoint-4, checkpoint-8, checkpoint-9"
    assert f"| weights | {averaged} |" in (folder / "README.md").read_text()
    assert set(json.loads((folder / "scores.json").read_text())["validation"]) == {"average", "last_checkpoint"}


def test_an_average_without_a_checkpoint_is_the_trained_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_saving, "last_checkpoints", lambda *_: [])
    folder = train.main(recipe(tmp_path, average_last=2))
    last = weights_of(folder / "checkpoint-6")
    assert all((weight == last[name]).all() for name, weight in weights_of(folder).items())
    assert "the run left 0 checkpoints; so the model has the weights of the last update" in capsys.readouterr().err
    assert "average" not in (folder / "README.md").read_text()


def test_a_model_is_kept_when_averaging_fails(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("The disk is full.")

    monkeypatch.setattr(run_saving, "write_average", fail)
    message = r"error: The disk is full\. The model in .*run has the weights of the last update, not an average"
    with pytest.raises(SystemExit, match=message):
        train.main(recipe(tmp_path, average_last=2))
    last = weights_of(tmp_path / "run" / "checkpoint-6")
    assert all((weight == last[name]).all() for name, weight in weights_of(tmp_path / "run").items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average_last": 0}, "average_last is 0; it must be at least 1"),
        ({"save_strategy": "no"}, 'average_last is 2, which needs complete checkpoints; give --save_strategy "steps"'),
        ({"save_only_model": True}, "which needs complete checkpoints; .* leave out --save_only_model"),
        ({"save_total_limit": 1}, "average_last is 2, but save_total_limit 1; give at least 2"),
        (
            {"save_total_limit": 2, "metric_for_best_model": "loss", "eval_strategy": "epoch"},
            "average_last is 2, but save_total_limit 2; give at least 3",
        ),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3},
            "average_last and load_best_model_at_end choose different weights; give one of the two",
        ),
    ],
)
def test_averages_that_a_run_cannot_end_with(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, **{"average_last": 2, **changes}))
    assert not (tmp_path / "run").exists()


def test_an_average_of_a_run_that_has_ended_elsewhere(trained, tmp_path):
    with pytest.raises(
        SystemExit, match=r"error: .*checkpoint-6 is the end of the run, so .* would get no checkpoints to average"
    ):
        train.main(recipe(tmp_path, average_last=2, resume_from_checkpoint=str(trained / "checkpoint-6")))


def test_an_average_of_a_run_that_goes_on_with_another_rate_of_dropout(tmp_path, finished):
    changes = {"dropout": 0.25, "label_smoothing": 0.0, "max_steps": 9, "resume_from_checkpoint": "last"}
    folder = train.main(recipe(tmp_path, average_last=3, **changes))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.config.dropout, model.config.label_smoothing) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"metric_for_best_model": "BLEU"},
            'metric_for_best_model is BLEU; choose "loss" or "token_accuracy", or with --predict_with_generate "bleu"',
        ),
        ({"metric_for_best_model": "eval_bleu"}, "eval_bleu; .* or with --predict_with_generate"),
        ({"metric_for_best_model": "perplexity", "predict_with_generate": True}, "perplexity; choose"),
        (
            {"load_best_model_at_end": True, "save_steps": 4},
            "save_steps is 4 and eval_steps 2, so the best model may not be saved; give both the same number",
        ),
        ({"optim_args": "amsgrad=True"}, "optim_args is amsgrad=True, but .* section 5.3"),
        ({"lr_scheduler_kwargs": {"a": 1}}, "lr_scheduler_kwargs is .*, but .* section 5.3"),
    ],
)
def test_settings_without_an_effect(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, **{**evaluated(tmp_path), **changes}))
    assert not (tmp_path / "run").exists()


def examples_in(printed):
    """Source, prediction and reference of each example that was printed."""
    lines = [line for line in printed.splitlines() if re.match("(source|prediction|reference):", line)]
    names, texts = zip(*(re.split(": *", line, maxsplit=1) for line in lines), strict=True)
    assert names == ("source", "prediction", "reference") * (len(lines) // 3)
    return list(zip(texts[::3], texts[1::3], texts[2::3], strict=True))


class Writer:
    """In the place of TensorBoard's, which is not among the packages of the tests."""

    def __init__(self, log_dir):
        self.scalars, self.texts = {}, {}
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.scalars.setdefault(name, {})[step] = value

    def add_text(self, name, text, step=None):
        self.texts.setdefault(name, {})[step] = text

    def flush(self):
        """Nothing is buffered."""

    close = flush


def test_tensorboard_shows_what_the_log_does(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    changes = {"report_to": "tensorboard", "logging_steps": 2, "max_steps": 4, "eval_steps": 4, "save_steps": 4}
    folder = train.main(recipe(tmp_path, **{**evaluated(tmp_path), **changes}))
    curve = json.loads((folder / "curve.json").read_text())
    for name in ("loss", "perplexity", "token_accuracy"):
        assert Writer.last.scalars[f"eval/{name}"] == {4: curve["points"][0][name]}
        training = {point["updates"]: point[name] for point in curve["training"]}
        assert Writer.last.scalars[f"train/{name}"] == training
        assert list(training) == [2, 4]
    lines = Writer.last.texts["eval/examples"][4].splitlines()
    assert all(not line.strip() or line.startswith("    ") for line in lines)
    assert examples_in("\n".join(line.strip() for line in lines)) == examples_in(capsys.readouterr().out)


def test_an_average_is_compared_with_the_last_checkpoint(tmp_path, capsys):
    """Weights that move fast have an average far from all of them."""
    results = tmp_path / "results.json"
    changes = {"max_steps": 60, "save_steps": 20, "average_last": 3, "learning_rate": 0.02, "eval_strategy": "no"}
    changes |= {"d_model": 64, "d_ff": 64, "dropout": 0.0, "tokens_per_batch": 96, "results": str(results)}
    folder = train.main(recipe(tmp_path, **{**evaluated(tmp_path), **changes, "test_file": None}))
    last = folder / "checkpoint-60"
    pairs = load_pairs(train_files=tmp_path / "validation_file.csv", source="en", target="fr")["train"]
    bleu = []
    for path in (folder, last):
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        translations = translate(model, tokenizer, pairs["source"], max_new_tokens=12)
        bleu.append(score_translations(translations, pairs["target"], tokenize="char")["bleu"])
    assert bleu[0] < bleu[1]
    printed = capsys.readouterr().out
    both = f"average {bleu[0]:.2f}, last checkpoint {bleu[1]:.2f}"
    assert f"comparing the average with checkpoint-60 on {len(pairs)} validation pairs" in printed
    assert f"validation BLEU: {both}; the last checkpoint is better, and is in {folder / 'checkpoint-60'}" in printed
    assert f"| validation BLEU | {both} |" in (folder / "README.md").read_text()
    written = json.loads((folder / "scores.json").read_text())["validation"]
    assert [written[name]["bleu"] for name in ("average", "last_checkpoint")] == pytest.approx(bleu)
    scores = json.loads(results.read_text())["scores"]
    assert scores["validation"] == written["average"]
    assert scores["validation_of_last_checkpoint"] == written["last_checkpoint"]
    assert_is_mean(weights_of(folder), [folder / f"checkpoint-{step}" for step in (20, 40, 60)])


def test_a_checkpoint_every_epoch(tmp_path):
    changes = {"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 3, "tokens_per_batch": 96}
    arguments = recipe(tmp_path, **changes, gradient_accumulation_steps=2)
    folder = train.main(arguments)
    epochs = {
        json.loads((checkpoint / "trainer_state.json").read_text())["epoch"]: checkpoint
        for checkpoint in folder.glob("checkpoint-*")
    }
    assert epochs.keys() == {1, 2, 3}
    resuming = ["--output_dir", str(tmp_path / "resumed"), "--resume_from_checkpoint", str(epochs[2])]
    resumed = train.main([*arguments, *resuming])
    assert [checkpoint.name for checkpoint in resumed.glob("checkpoint-*")] == [epochs[3].name]
    whole = weights_of(folder)
    assert all((weight == whole[name]).all() for name, weight in weights_of(resumed).items())


def test_validation_keeps_the_best_and_tells_the_time(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results_file = tmp_path / "tiny_seed42.json"
    changes = {"predict_with_generate": True, "generation_num_beams": 1, "metric_for_best_model": "chrf"}
    changes |= {"load_best_model_at_end": True, "tokens_per_batch": 96}
    changes |= {"max_steps": 90, "eval_steps": 30, "save_steps": 30, "learning_rate": 0.01}
    changes |= {"d_model": 64, "d_ff": 64, "dropout": 0.0}
    changes |= {"num_beams": 3, "length_penalty": 0.9, "whitespace_words": True}
    changes |= {"results": str(results_file)}
    arguments = recipe(tmp_path, **{**evaluated(tmp_path), **changes})
    folder = train.main(arguments)
    curve = json.loads((folder / "curve.json").read_text())
    points = curve["points"]
    assert [point["updates"] for point in points] == [30, 60, 90]
    assert (folder / "curve.png").is_file()

    assert all({"loss", "perplexity", "token_accuracy"} <= set(point) for point in (*points, *curve["training"]))
    assert points[-1]["perplexity"] == pytest.approx(math.exp(points[-1]["loss"]))

    best = max(points, key=lambda point: point["chrf"])
    checkpoint = folder / f"checkpoint-{best['updates']}"
    whole = weights_of(folder)
    assert all((weight == whole[name]).all() for name, weight in weights_of(checkpoint).items())
    pairs = load_pairs(train_files=tmp_path / "validation_file.csv", source="en", target="fr")["train"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    translations = translate(model, tokenizer, pairs["source"], num_beams=1)
    expected = score_translations(translations, pairs["target"], tokenize="char")
    assert best["chrf"] > 0
    assert best["bleu"] == pytest.approx(expected["bleu"])
    assert best["chrf"] == pytest.approx(expected["chrf"])
    shown = examples_in(capsys.readouterr().out)
    assert len(shown) == 3 * EXAMPLES_PER_EVALUATION
    rows = [0, 2, 4, 6, 8]
    sources, references = ([pairs[side][row] for row in rows] for side in ("source", "target"))
    assert [(source, reference) for source, _, reference in shown] == 3 * list(zip(sources, references, strict=True))
    first = points.index(best) * EXAMPLES_PER_EVALUATION
    assert [prediction for _, prediction, _ in shown[first : first + EXAMPLES_PER_EVALUATION]] == [
        translations[row] for row in rows
    ]

    saved = AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config
    assert (saved.num_beams, saved.length_penalty) == (3, 0.9)
    results = json.loads(results_file.read_text())
    assert results["curve"] == curve
    assert results["scores"]["test"] == json.loads((folder / "scores.json").read_text())
    assert results["scores"]["validation"]["decoding"].startswith("beam search, 3 beams, length penalty 0.9")
    assert results["settings"]["whitespace_words"] is True
    assert results["base_model"] is None
    assert results["precision"] == "float32"
    assert str(tmp_path) not in results_file.read_text()
    assert 0 < results["peak_memory_bytes"] <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert results["training_seconds"] >= points[-1]["training_seconds"]
    assert results["evaluation_seconds"] == pytest.approx(points[-1]["evaluation_seconds"])
    assert results["total_seconds"] > results["training_seconds"] + results["evaluation_seconds"]

    drawn = plot.main(["curve", str(folder), str(results_file), "--output", str(tmp_path / "plot.png")])
    assert drawn.is_file()

    train.main([*arguments, "--resume_from_checkpoint", str(folder / "checkpoint-60")])
    resumed = json.loads((folder / "curve.json").read_text())["points"]
    assert resumed[:2] == points[:2]
    assert resumed[2]["chrf"] == points[2]["chrf"]
    assert json.loads(results_file.read_text())["total_seconds"] is None
    for name in ("training_seconds", "evaluation_seconds"):
        assert resumed[2][name] > resumed[1][name] > resumed[0][name] > 0
    assert all((weight == whole[name]).all() for name, weight in weights_of(folder).items())
    # Nothing is left to train; the best weights are loaded again.
    (folder / "model.safetensors").unlink()
    train.main([*arguments, "--resume_from_checkpoint", "last"])
    assert all((weight == whole[name]).all() for name, weight in weights_of(folder).items())
    # Also without their path, which states that are pushed lack.
    last = folder / "checkpoint-90"
    state = json.loads((last / "trainer_state.json").read_text())
    state |= {"best_global_step": 30, "best_model_checkpoint": None}
    (last / "trainer_state.json").write_text(json.dumps(state))
    mark_complete(last)
    train.main([*arguments, "--resume_from_checkpoint", "last"])
    first = weights_of(folder / "checkpoint-30")
    assert all((weight == first[name]).all() for name, weight in weights_of(folder).items())


def test_stopping_early(tmp_path):
    """With learning rate 0 the first evaluation stays the best."""
    changes = {**evaluated(tmp_path), "max_steps": 20, "early_stopping_patience": 2, "learning_rate": 0.0}
    folder = train.main(recipe(tmp_path, **changes))
    last = folder / "checkpoint-6"
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == 6
    assert not (folder / "checkpoint-8").exists()
    # As where it died before the scores: nothing is left to train.
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    assert not (folder / "checkpoint-8").exists()
    assert all((weight == weights[name]).all() for name, weight in weights_of(folder).items())
    # The one before the checkpoint counts.
    shutil.rmtree(last)
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"early_stopping_patience": 2}, "early_stopping_patience is 2, but the run has no evaluations; give"),
        (
            {"eval_strategy": "steps", "early_stopping_patience": 0},
            "early_stopping_patience is 0; it must be at least 1",
        ),
        (
            {"eval_strategy": "steps", "metric_for_best_model": "bleu"},
            "metric_for_best_model is bleu; .* or with --predict_with_generate",
        ),
        (
            {"eval_strategy": "epoch"},
            "eval_strategy is epoch, but the data has no validation pairs, only train, test; give",
        ),
        ({"results": "nowhere/results.json"}, "nowhere does not exist; create the folder"),
        ({"r_drop_alpha": -1.0}, r"r_drop_alpha is -1.0; give 0 for training without R-Drop"),
        ({"rate_factor": 0.0}, r"rate_factor is 0\.0; it must be above 0"),
        ({"rate_factor": 0.5, "learning_rate": 0.1}, r"rate_factor is 0\.5, but the learning rate does not follow"),
    ],
)
def test_wrong_arguments_of_validation(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run").exists()
