"""Stock `Seq2SeqTrainer` with this model."""

import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    VanillaTransformerForConditionalGeneration,
    make_compute_metrics,
    paper_optimizers,
)
from tests.models import pad, small_config, small_model
from tests.training.toy import Gradients, copy_task


pytestmark = pytest.mark.long


def make_trainer(folder, tokenizer, model, **arguments):
    defaults = {"per_device_train_batch_size": 8, "disable_tqdm": True, "save_strategy": "no"}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 64),
        eval_dataset=copy_task(tokenizer, 6, seed=1),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer) if arguments.get("predict_with_generate") else None,
        optimizers=paper_optimizers(model, args),
    )


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"source_vocab_size": 300}])
def test_no_tied_weight_is_called_missing(tmp_path, tokenizer, caplog, monkeypatch, changes):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model = small_model(vocab_size=len(tokenizer), **changes)
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    saving |= {"use_cpu": True, "load_best_model_at_end": True, "max_steps": 2}
    make_trainer(tmp_path, tokenizer, model, **saving).train(resume_from_checkpoint=None)
    make_trainer(tmp_path, tokenizer, model, **saving).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-1")
    assert "missing" not in caplog.text.lower()
    weights = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    other = small_model(seed=1, vocab_size=len(tokenizer), **changes)
    # Only tied weights are missing, which is what the Trainer's log leaves out.
    assert set(other.load_state_dict(weights, strict=False).missing_keys) == other._keys_to_ignore_on_save
    assert all(torch.equal(other.state_dict()[name], weight) for name, weight in weights.items())


def test_noise_on_the_embeddings_changes_training(tmp_path, tokenizer):
    losses = []
    for alpha in (None, 5.0):
        model = small_model(vocab_size=len(tokenizer), dropout=0.0)
        trainer = make_trainer(tmp_path, tokenizer, model, max_steps=1, use_cpu=True, neftune_noise_alpha=alpha)
        losses.append(trainer.train().training_loss)
    assert losses[0] != losses[1]


def endless_model(tokenizer):
    """A model that never generates `</s>`."""
    model = small_model(vocab_size=len(tokenizer))
    with torch.no_grad():
        model.model.shared.weight[tokenizer.eos_token_id] = 0
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(5)
    return model


def longest_translation(model):
    source = torch.arange(3, 13)[None]
    return model.generate(source, attention_mask=torch.ones_like(source)).shape[1] - 1


def test_the_length_limit_survives_predict(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, endless_model(tokenizer), predict_with_generate=True)
    prediction = trainer.predict(copy_task(tokenizer, 3, seed=2, longest=30))
    assert prediction.predictions.shape[1] > 50
    assert trainer.model.generation_config.max_length == 20
    assert longest_translation(trainer.model) == 60
    trainer.save_model(str(tmp_path / "saved"))
    assert longest_translation(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")) == 60
    # Other readers of the file do not know max_length_offset.
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "new")
    settings = [(tmp_path / folder / "generation_config.json").read_text() for folder in ("saved", "new")]
    assert settings[0] == settings[1]


def test_the_trainer_s_own_limit_counts(tmp_path, tokenizer):
    trainer = make_trainer(
        tmp_path, tokenizer, endless_model(tokenizer), predict_with_generate=True, generation_max_length=12
    )
    predictions = trainer.predict(copy_task(tokenizer, 3, seed=2)).predictions
    assert (predictions != tokenizer.pad_token_id).sum(axis=1).tolist() == [12, 12, 12]


def test_evaluation_loss_is_plain_and_bleu_is_there(tmp_path, tokenizer):
    model = small_model(vocab_size=len(tokenizer), label_smoothing=0.5)
    metrics = make_trainer(tmp_path, tokenizer, model, predict_with_generate=True).evaluate()
    assert {"eval_loss", "eval_bleu", "eval_chrf"} <= set(metrics)
    plain = small_model(vocab_size=len(tokenizer), label_smoothing=0.0)
    assert metrics["eval_loss"] == pytest.approx(make_trainer(tmp_path, tokenizer, plain).evaluate()["eval_loss"])


def smoothed_run(folder, tokenizer, label_smoothing, label_smoothing_factor):
    """Losses of updates with gradient accumulation, the first gradients, and the evaluation loss before."""
    trainer = make_trainer(
        folder,
        tokenizer,
        # The two losses sum in different orders; float64 hides the difference.
        small_model(vocab_size=len(tokenizer), dropout=0.0, label_smoothing=label_smoothing).double(),
        label_smoothing_factor=label_smoothing_factor,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=1,
        warmup_steps=10,
        train_sampling_strategy="sequential",
    )
    gradients = Gradients()
    trainer.add_callback(gradients)
    evaluation = trainer.evaluate()["eval_loss"]
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], gradients.kept, evaluation


@pytest.fixture(scope="module")
def smoothed_by_the_model(tmp_path_factory, tokenizer):
    """Runs without the trainer's label smoothing, by the model's own."""
    folder = tmp_path_factory.mktemp("smoothed")
    return {rate: smoothed_run(folder / str(rate), tokenizer, rate, 0.0) for rate in (0.0, 0.1)}


@pytest.mark.parametrize("of_the_model", [0.0, 0.1, 0.3])
def test_the_trainer_s_label_smoothing_replaces_the_model_s(tmp_path, tokenizer, smoothed_by_the_model, of_the_model):
    losses, gradients, plain = smoothed_by_the_model[0.1]
    trainer_losses, trainer_gradients, smoothed = smoothed_run(tmp_path, tokenizer, of_the_model, 0.1)
    assert len(losses) == 4
    assert trainer_losses == pytest.approx(losses, rel=1e-6)
    assert trainer_gradients.keys() == gradients.keys() != set()
    for name, gradient in gradients.items():
        torch.testing.assert_close(trainer_gradients[name], gradient, rtol=1e-5, atol=1e-8)
    assert smoothed != pytest.approx(plain, rel=1e-3)


def test_the_model_s_label_smoothing_is_in_the_training_alone(smoothed_by_the_model):
    losses, _, plain = smoothed_by_the_model[0.1]
    unsmoothed_losses, _, plain_again = smoothed_by_the_model[0.0]
    assert unsmoothed_losses != pytest.approx(losses, rel=1e-3)
    assert plain == pytest.approx(plain_again)


def test_a_saved_run_loads_by_the_auto_classes(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, small_model(vocab_size=len(tokenizer)), max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert loaded.generation_config.num_beams == 4
    assert len(AutoTokenizer.from_pretrained(tmp_path / "saved")) == len(tokenizer)


@pytest.mark.slow
def test_it_learns_from_scratch_to_reverse_the_source(tmp_path, tokenizer):
    torch.manual_seed(0)
    task = {"reverse": True, "vocabulary": 20, "longest": 6}
    config = small_config(
        vocab_size=len(tokenizer), d_model=64, d_ff=128, d_k=None, d_v=None, decoder_layers=2, dropout=0.0
    )
    model = VanillaTransformerForConditionalGeneration(config)
    args = PaperTrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=64,
        max_steps=800,
        warmup_steps=200,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        disable_tqdm=True,
        save_strategy="no",
    )
    Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 8000, **task),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    ).train()

    test = list(copy_task(tokenizer, 200, seed=1, **task))
    sources, labels = [row["input_ids"] for row in test], [row["labels"] for row in test]
    assert share_of_equal(translate_ids(model, sources), labels) >= 0.95
    others = translate_ids(model, [source[-2::-1] + source[-1:] for source in sources])
    palindromes = share_of_equal([label[:-1] for label in labels], [label[-2::-1] for label in labels])
    assert share_of_equal(others, labels) <= palindromes + 0.05


def translate_ids(model, rows):
    """All at once, each up to its `</s>`."""
    ids, mask = pad([torch.tensor(row) for row in rows])
    end = model.config.eos_token_id
    output = model.eval().generate(ids, attention_mask=mask, num_beams=1)[:, 1:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in output]


def share_of_equal(rows, others):
    return np.mean([row == other for row, other in zip(rows, others, strict=True)])
