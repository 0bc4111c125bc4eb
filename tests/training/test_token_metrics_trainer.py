"""Perplexity and token accuracy in the Trainer's log, against pairs computed one at a time."""

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, TrainerCallback

from hf_vanilla_transformer import PaperTrainingArguments, RDropTrainer, make_compute_metrics
from hf_vanilla_transformer.training import token_metrics_trainer
from hf_vanilla_transformer.training.token_metrics_trainer import TokenMetricsTrainer
from tests.invariants.killed import run_as_two
from tests.models import small_model
from tests.training.toy import copy_task


def make_trainer(folder, tokenizer, model, trainer_class=TokenMetricsTrainer, rows=11, **arguments):
    defaults = {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 4, "save_strategy": "no"}
    defaults |= {"disable_tqdm": True, "use_cpu": True, "learning_rate": 0.0, "logging_steps": 1, "max_steps": 2}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    options = {"r_drop_alpha": 2.0} if trainer_class is RDropTrainer else {}
    return trainer_class(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, rows, vocabulary=12),
        eval_dataset=copy_task(tokenizer, rows, seed=1, vocabulary=12),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer) if arguments.get("predict_with_generate") else None,
        **options,
    )


def by_hand(model, pairs):
    """Loss, perplexity and accuracy of pairs, one at a time, without padding and without the model's loss."""
    nats, right, tokens = [], 0, 0
    model = model.eval()
    for pair in pairs:
        source, target = torch.tensor([pair["input_ids"]]), pair["labels"]
        before = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=before).logits[0].double()
        probabilities = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
        nats += [-math.log(row[token]) for row, token in zip(probabilities.tolist(), target, strict=True)]
        right += sum(int(row.argmax()) == token for row, token in zip(logits, target, strict=True))
        tokens += len(target)
    loss = math.fsum(nats) / tokens
    # Otherwise any share would do.
    assert 0 < right < tokens
    return {"loss": loss, "perplexity": math.exp(loss), "token_accuracy": 100 * right / tokens}


def skewed_model(tokenizer, **settings):
    """A model that is right about some tokens: its weights are random, but large."""
    model = small_model(vocab_size=len(tokenizer), dropout=0.0, **settings)
    with torch.no_grad():
        model.model.shared.weight[12:].zero_()
        model.model.shared.weight[:12].mul_(4)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"predict_with_generate": True, "generation_num_beams": 1, "generation_max_length": 6},
        {"label_smoothing_factor": 0.3},
    ],
    ids=["loss only", "with translations", "smoothed by the Trainer"],
)
def test_evaluate_is_exact_by_tokens(tmp_path, tokenizer, changes):
    model = skewed_model(tokenizer, label_smoothing=0.2)
    trainer = make_trainer(tmp_path, tokenizer, model, **changes)
    expected = by_hand(model, trainer.eval_dataset)
    metrics = trainer.evaluate()
    assert {name: metrics[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert ("eval_bleu" in metrics) == ("predict_with_generate" in changes)


def test_evaluate_keeps_the_length_limit(tmp_path, tokenizer, caplog):
    """The Trainer sets another, and transformers would warn of it with every batch."""
    model = skewed_model(tokenizer)
    model.generation_config.update(max_new_tokens=4)
    trainer = make_trainer(tmp_path, tokenizer, model, predict_with_generate=True)
    logging.getLogger("transformers").addHandler(caplog.handler)
    trainer.evaluate()
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert model.generation_config.max_length is None
    assert "max_new_tokens" not in caplog.text


def test_evaluate_keeps_the_length_limit_after_an_error(tmp_path, tokenizer, monkeypatch):
    model = skewed_model(tokenizer)
    trainer = make_trainer(tmp_path, tokenizer, model, predict_with_generate=True)

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    # The Trainer sets its limit after it has translated, and before it pads the labels.
    monkeypatch.setattr(trainer, "_pad_tensors_to_max_len", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.evaluate()
    assert model.generation_config.max_length is None


def test_evaluate_calls_the_model_once_for_each_batch(tmp_path, tokenizer):
    model = skewed_model(tokenizer)
    trainer = make_trainer(tmp_path, tokenizer, model)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(None))
    trainer.evaluate()
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("trainer_class", "changes"),
    [(TokenMetricsTrainer, {}), (TokenMetricsTrainer, {"label_smoothing_factor": 0.3}), (RDropTrainer, {})],
)
def test_train_logs_exact_metrics_of_accumulated_batches(tmp_path, tokenizer, trainer_class, changes):
    """With learning rate 0 and without dropout an epoch measures what an evaluation of its pairs does."""
    model = skewed_model(tokenizer, label_smoothing=0.2)
    epoch = {"max_steps": -1, "num_train_epochs": 1, "gradient_accumulation_steps": 2, "logging_steps": 2}
    trainer = make_trainer(tmp_path, tokenizer, model, trainer_class, **epoch, **changes)
    expected = by_hand(model, trainer.train_dataset)
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged["step"] == 2
    for name in ("perplexity", "token_accuracy"):
        assert logged[name] == pytest.approx(expected[name], rel=1e-5)
    # The loss that is minimized is smoothed.
    assert abs(logged["loss"] - expected["loss"]) > 0.1


def test_train_with_neftune_noise_evaluates_without_it(tmp_path, tokenizer):
    model = skewed_model(tokenizer)
    evaluations = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}
    epoch = {"per_device_train_batch_size": 11, "max_steps": 2}
    trainer = make_trainer(tmp_path, tokenizer, model, neftune_noise_alpha=5.0, **epoch, **evaluations)
    trainer.train()
    (training,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    (evaluation,) = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluation["eval_loss"] == pytest.approx(by_hand(model, trainer.eval_dataset)["loss"], rel=1e-5)
    without_noise = by_hand(model, trainer.train_dataset)["perplexity"]
    assert abs(training["perplexity"] - without_noise) > 0.01 * without_noise


def test_log_entry_has_its_own_batches(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, skewed_model(tokenizer), train_sampling_strategy="sequential")
    expected = [by_hand(trainer.model, trainer.train_dataset.select(rows)) for rows in (range(3), range(3, 6))]
    trainer.train()
    perplexities = [entry["perplexity"] for entry in trainer.state.log_history if "loss" in entry]
    assert perplexities == pytest.approx([metrics["perplexity"] for metrics in expected], rel=1e-5)


@pytest.mark.parametrize("trainer_class", [TokenMetricsTrainer, RDropTrainer])
def test_log_has_the_speed_without_evaluations(tmp_path, tokenizer, monkeypatch, trainer_class):
    class Clock(TrainerCallback):
        now = 0.0

        def on_step_end(self, *args, **kwargs):
            self.now += 1

        def on_evaluate(self, *args, **kwargs):
            self.now += 1000

    clock = Clock()
    steps = {"max_steps": 4, "logging_steps": 2, "eval_steps": 3, "eval_strategy": "steps"}
    monkeypatch.setattr(token_metrics_trainer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    steps["train_sampling_strategy"] = "sequential"
    trainer = make_trainer(tmp_path, tokenizer, small_model(), trainer_class, rows=12, **steps)
    trainer.add_callback(clock)
    trainer.train()
    labels = trainer.train_dataset["labels"]
    expected = [round(sum(map(len, labels[start : start + 6])) / 2) for start in (0, 6)]
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["target_tokens_per_second"] for entry in entries] == expected
    assert [entry["minutes_left"] for entry in entries] == [round(2 / 60, 1), 0]


# 11 pairs in batches of 4 fill up the last batch of two processes with a pair of the first.
TWO_PROCESSES = {"per_device_train_batch_size": 4, "max_steps": 1, "train_sampling_strategy": "sequential"}


def measure_as_one_of_two(folder, tokenizer_folder):
    """What each of two processes measures; the first writes it."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    trainer = make_trainer(folder, tokenizer, skewed_model(tokenizer), **TWO_PROCESSES)
    metrics = trainer.evaluate()
    trainer.train()
    if trainer.is_world_process_zero():
        (folder / "log.json").write_text(json.dumps([metrics, *trainer.state.log_history]))


def test_evaluate_and_train_in_two_processes(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    run_as_two(measure_as_one_of_two, tmp_path, tmp_path / "tokenizer", folder=tmp_path)
    trainer = make_trainer(tmp_path, tokenizer, skewed_model(tokenizer))
    metrics, *log = json.loads((tmp_path / "log.json").read_text())
    expected = by_hand(trainer.model, trainer.eval_dataset)
    assert {name: metrics[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    (update,) = [entry for entry in log if "loss" in entry]
    expected = by_hand(trainer.model, trainer.train_dataset.select(range(8)))
    assert {name: update[name] for name in ("perplexity", "token_accuracy")} == pytest.approx(
        {name: expected[name] for name in ("perplexity", "token_accuracy")}, rel=1e-5
    )


# 27 pairs in batches of 4 fill up the last batch of two processes with 5 pairs of the first.
TRANSLATIONS = {"predict_with_generate": True, "generation_num_beams": 1, "generation_max_length": 6}


def translate_validation(trainer):
    """The translations of the validation pairs, and the scores that the Trainer logs for them."""
    scores = trainer.evaluate()
    predictions = trainer.predict(trainer.eval_dataset)
    return {
        "scores": {name: scores[f"eval_{name}"] for name in ("bleu", "chrf", "loss")},
        "scores_of_predict": {name: predictions.metrics[f"test_{name}"] for name in ("bleu", "chrf", "loss")},
        "predictions": without_padding(predictions.predictions),
        "labels": without_padding(predictions.label_ids),
    }


def without_padding(rows):
    """Token ids without the pad token and without -100, with which several processes pad to a common length."""
    return [[token for token in row if token not in (0, -100)] for row in rows.tolist()]


def translate_as_one_of_two(folder, tokenizer_folder):
    """Translate the validation pairs in two processes; the first writes the result."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    trainer = make_trainer(folder, tokenizer, skewed_model(tokenizer), rows=27, **TRANSLATIONS)
    translated = translate_validation(trainer)
    if trainer.is_world_process_zero():
        (folder / "translated.json").write_text(json.dumps(translated))


def test_evaluate_in_two_processes_scores_translations_once(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    run_as_two(translate_as_one_of_two, tmp_path, tmp_path / "tokenizer", folder=tmp_path)
    translated = json.loads((tmp_path / "translated.json").read_text())
    trainer = make_trainer(tmp_path, tokenizer, skewed_model(tokenizer), rows=27, **TRANSLATIONS)
    expected = translate_validation(trainer)
    assert len(translated["predictions"]) == 27
    # Two processes translate the pairs in another order of batches, but report them in the order of the data set.
    assert translated["predictions"] == expected["predictions"]
    assert translated["labels"] == expected["labels"]
    for scores in ("scores", "scores_of_predict"):
        assert translated[scores] == pytest.approx(expected[scores], rel=1e-5)
    # Otherwise a sentence that is counted twice would not change the score.
    assert 0 < expected["scores"]["chrf"] < 100
