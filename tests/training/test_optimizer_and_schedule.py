"""The schedule is Eq. 3 at every update, also after a resume."""

from types import SimpleNamespace

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, TrainerCallback

from hf_vanilla_transformer import PaperSchedule, PaperTrainingArguments, paper_learning_rate, paper_optimizers
from tests.models import IMPORTED, small_model
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


def make_trainer(folder, tokenizer, optimizers=None, **arguments):
    args = PaperTrainingArguments(
        **{
            "output_dir": str(folder),
            "warmup_steps": WARMUP,
            "max_steps": 12,
            "save_steps": 4,
            "per_device_train_batch_size": 4,
            "disable_tqdm": True,
            **arguments,
        }
    )
    model = small_model(vocab_size=len(tokenizer))
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 64),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        optimizers=optimizers(model, args) if optimizers else (None, None),
    )


def rates_of_training(trainer, resume=None):
    """Train, and return the learning rate of each update by its number."""
    rates = UsedRates()
    trainer.add_callback(rates)
    trainer.train(resume_from_checkpoint=resume)
    trainer.remove_callback(rates)
    return rates.rates


def run(folder, tokenizer, optimizers=paper_optimizers, resume=None, **arguments):
    trainer = make_trainer(folder, tokenizer, optimizers, **arguments)
    return rates_of_training(trainer, resume), trainer.model


def run_with_use_in(folder, tokenizer, resume=None, factor=1.0, **arguments):
    trainer = make_trainer(folder, tokenizer, **arguments)
    PaperSchedule.use_in(trainer, factor)
    return rates_of_training(trainer, resume), trainer.model


def formula(first, last, warmup=WARMUP):
    return {k: paper_numpy.learning_rate(k, D_MODEL, warmup) for k in range(first, last + 1)}


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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_use_in_trains_as_paper_optimizers(tmp_path, tokenizer, weight_decay):
    """The same rates and, bit for bit, the same weights, also after a resume."""
    _, expected = run(tmp_path / "expected", tokenizer, weight_decay=weight_decay)
    rates, model = run_with_use_in(tmp_path / "used", tokenizer, weight_decay=weight_decay)
    assert rates == pytest.approx(formula(1, 12), rel=1e-12)
    checkpoint = str(tmp_path / "used" / "checkpoint-4")
    later_rates, resumed = run_with_use_in(tmp_path / "resumed", tokenizer, checkpoint, weight_decay=weight_decay)
    assert later_rates == pytest.approx(formula(5, 12), rel=1e-12)
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
        assert torch.equal(resumed.state_dict()[name], weight), name


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_use_in_and_paper_optimizers_resume_from_each_other_s_checkpoints(tmp_path, tokenizer, weight_decay):
    _, expected = run(tmp_path / "first", tokenizer, weight_decay=weight_decay)
    run_with_use_in(tmp_path / "second", tokenizer, weight_decay=weight_decay)
    first, second = str(tmp_path / "first" / "checkpoint-4"), str(tmp_path / "second" / "checkpoint-4")
    _, from_first = run_with_use_in(tmp_path / "third", tokenizer, first, weight_decay=weight_decay)
    _, from_second = run(tmp_path / "fourth", tokenizer, resume=second, weight_decay=weight_decay)
    for name, weight in expected.state_dict().items():
        assert torch.equal(from_first.state_dict()[name], weight), name
        assert torch.equal(from_second.state_dict()[name], weight), name


def test_use_in_trains_no_frozen_weights(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.model.get_encoder().requires_grad_(False)
    PaperSchedule.use_in(trainer)
    optimized = {parameter for group in trainer.create_optimizer().param_groups for parameter in group["params"]}
    assert optimized == {parameter for parameter in trainer.model.parameters() if parameter.requires_grad}


def test_use_in_multiplies_by_the_factor(tmp_path, tokenizer):
    rates, _ = run_with_use_in(tmp_path, tokenizer, factor=0.25, max_steps=3)
    assert rates == pytest.approx({k: rate / 4 for k, rate in formula(1, 3).items()}, rel=1e-12)


def test_use_in_again_replaces_the_factor(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, max_steps=2)
    PaperSchedule.use_in(trainer, factor=0.25)
    PaperSchedule.use_in(trainer)
    assert rates_of_training(trainer) == pytest.approx(formula(1, 2), rel=1e-12)


def test_use_in_starts_anew_in_a_second_training(tmp_path, tokenizer):
    """As a stock Trainer does with its own schedule."""
    trainer = make_trainer(tmp_path, tokenizer, max_steps=3)
    PaperSchedule.use_in(trainer)
    assert rates_of_training(trainer) == rates_of_training(trainer) == pytest.approx(formula(1, 3), rel=1e-12)


def test_use_in_reads_the_arguments_when_a_training_starts(tmp_path, tokenizer):
    """As in a trial of a hyperparameter search, for which the Trainer drops the optimizer of the trial before."""
    trainer = make_trainer(tmp_path, tokenizer, max_steps=3)
    PaperSchedule.use_in(trainer)
    rates_of_training(trainer)
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.args.warmup_steps, trainer.args.adam_beta2, trainer.args.weight_decay = 2, 0.9, 0.1
    assert rates_of_training(trainer) == pytest.approx(formula(1, 3, warmup=2), rel=1e-12)
    group = trainer.optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.9), 0.1)
    assert isinstance(trainer.optimizer.optimizer, torch.optim.AdamW)


FIELDS = [{}, {**IMPORTED, "tie_word_embeddings": False}, {"position_embedding_type": "learned"}]


@pytest.mark.parametrize("fields", FIELDS, ids=["paper", "of another system", "learned positions"])
def test_use_in_decays_the_weights_that_paper_optimizers_decays(tmp_path, tokenizer, fields):
    trainer = make_trainer(tmp_path, tokenizer, weight_decay=0.1)
    trainer.model = small_model(**fields)
    PaperSchedule.use_in(trainer)
    optimizers = trainer.create_optimizer(), paper_optimizers(trainer.model, trainer.args)[0]
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    groups = [
        {group["weight_decay"]: [names[parameter] for parameter in group["params"]] for group in optimizer.param_groups}
        for optimizer in optimizers
    ]
    assert groups[0] == groups[1]
    assert set(groups[0]) == {0.1, 0.0}


def test_use_in_raises_for_a_share_of_warmup(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, warmup_steps=0.1)
    with pytest.raises(ValueError, match=r"warmup_steps is 0\.1; give a whole number of updates"):
        PaperSchedule.use_in(trainer)


def test_use_in_raises_for_a_trainer_with_an_optimizer(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, optimizers=paper_optimizers)
    with pytest.raises(ValueError, match=r"already has an optimizer .* without optimizers="):
        PaperSchedule.use_in(trainer)


@pytest.mark.parametrize("name", ["optimizer", "scheduler"])
def test_use_in_raises_for_an_optimizer_of_deepspeed(tmp_path, tokenizer, name):
    trainer = make_trainer(tmp_path, tokenizer)
    trainer.is_deepspeed_enabled = True
    plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config={"zero_optimization": {"stage": 2}, name: {}}))
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    with pytest.raises(ValueError, match=f'configuration of DeepSpeed has "{name}"'):
        PaperSchedule.use_in(trainer)
