"""The schedule is Eq. 3 at every update, also after a resume."""

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, TrainerCallback

from hf_vanilla_transformer import PaperTrainingArguments, paper_learning_rate, paper_optimizers
from tests.models import small_model
from tests.parity import paper_numpy
from tests.training.toy import copy_task


WARMUP = 5
D_MODEL = 32


class UsedRates(TrainerCallback):
    """Records the learning rate of each update."""

    def __init__(self):
        self.rates = {}

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.rates[state.global_step + 1] = optimizer.param_groups[0]["lr"]


def run(folder, tokenizer, optimizers=paper_optimizers, resume=None, **arguments):
    args = PaperTrainingArguments(
        output_dir=str(folder),
        warmup_steps=WARMUP,
        max_steps=12,
        save_steps=4,
        per_device_train_batch_size=4,
        disable_tqdm=True,
        **arguments,
    )
    model = small_model(vocab_size=len(tokenizer))
    rates = UsedRates()
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 64),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        optimizers=optimizers(model, args) if optimizers else (None, None),
        callbacks=[rates],
    )
    trainer.train(resume_from_checkpoint=resume)
    return rates.rates, model


def test_every_update_uses_the_formula(tmp_path, tokenizer):
    expected = {k: paper_numpy.learning_rate(k, D_MODEL, WARMUP) for k in range(1, 13)}
    rates, _ = run(tmp_path, tokenizer)
    assert rates == pytest.approx(expected, rel=1e-12)
    resumed, _ = run(tmp_path, tokenizer, resume=str(tmp_path / "checkpoint-4"))
    assert resumed == pytest.approx({k: expected[k] for k in range(5, 13)}, rel=1e-12)


def test_transformers_schedule_lags_by_one_update(tmp_path, tokenizer):
    rates, _ = run(tmp_path, tokenizer, optimizers=None, learning_rate=D_MODEL**-0.5 * WARMUP**-0.5)
    expected = {k: paper_numpy.learning_rate(k - 1, D_MODEL, WARMUP) if k > 1 else 0 for k in range(1, 13)}
    assert rates == pytest.approx(expected, rel=1e-12)


def test_peak_of_the_base_model():
    peak = paper_learning_rate(4000, 512, 4000)
    assert peak == pytest.approx(6.988e-4, rel=1e-3)
    assert PaperTrainingArguments.learning_rate == pytest.approx(peak)
    assert paper_learning_rate(3999, 512, 4000) < peak > paper_learning_rate(4001, 512, 4000)


def test_adam_of_section_5_3(tmp_path):
    args = PaperTrainingArguments(output_dir=str(tmp_path))
    optimizer, _ = paper_optimizers(small_model(), args)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0.0)
    assert (args.max_grad_norm, args.warmup_steps, args.lr_scheduler_type) == (0.0, 4000, "inverse_sqrt")
    assert args.label_smoothing_factor == 0.0


def test_every_default_can_be_overridden(tmp_path):
    args = PaperTrainingArguments(output_dir=str(tmp_path), adam_beta2=0.9, warmup_steps=7, max_grad_norm=1.0)
    optimizer, scheduler = paper_optimizers(small_model(), args)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)
    assert scheduler.get_last_lr() == [pytest.approx(paper_numpy.learning_rate(1, D_MODEL, 7))]
    _, slower = paper_optimizers(small_model(), args, factor=0.25)
    assert slower.get_last_lr() == [pytest.approx(paper_numpy.learning_rate(1, D_MODEL, 7) / 4)]


def test_bad_steps(tmp_path):
    with pytest.raises(ValueError, match="update is 0; it must be at least 1"):
        paper_learning_rate(0, 512, 5)
    args = PaperTrainingArguments(output_dir=str(tmp_path), warmup_steps=0.1)
    with pytest.raises(ValueError, match=r"warmup_steps is 0\.1; give a whole number of updates"):
        paper_optimizers(small_model(), args)


def test_weight_decay_is_adamw_s_and_of_matrices_alone(tmp_path):
    """Computed by hand: w - lr decay w; the gradients are zero here."""
    model = small_model()
    args = PaperTrainingArguments(str(tmp_path), weight_decay=0.5, warmup_steps=1, use_cpu=True)
    optimizer, _ = paper_optimizers(model, args)
    rate = optimizer.param_groups[0]["lr"]
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        expected = before[name] * (1 - rate * 0.5) if weight.ndim > 1 else before[name]
        torch.testing.assert_close(weight, expected)
