"""Logits in training: whoever reads them gets them, and where only the loss is needed they are not computed."""

import pytest
import torch
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments, RDropTrainer, TokenBudgetBatchSampler, TokenMetricsTrainer
from tests.models import small_model
from tests.training.toy import copy_task


LABEL_SMOOTHING = 0.2


def make_trainer(folder, tokenizer, trainer_class=Seq2SeqTrainer, model=None, **options):
    """A Trainer that makes two updates; options that are no arguments of the Trainer go to `TrainingArguments`."""
    own_options = {name: options.pop(name) for name in ("compute_loss_func", "r_drop_alpha") if name in options}
    defaults = {"disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "use_cpu": True, "max_steps": 2}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **options})
    if model is None:
        model = small_model(vocab_size=len(tokenizer), dropout=0.0, label_smoothing=LABEL_SMOOTHING)
    return trainer_class(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 24),
        eval_dataset=copy_task(tokenizer, 6, seed=1),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        **own_options,
    )


def record_logits(model):
    """Record whether the outputs of each forward pass in training mode have logits."""
    had_logits = []

    def record(module, args, outputs):
        if module.training:
            had_logits.append(outputs.logits is not None)

    model.register_forward_hook(record)
    return had_logits


def smoothed_loss(outputs, labels):
    """The loss of section 5.4 by torch, from logits."""
    return nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), label_smoothing=LABEL_SMOOTHING)


class OwnLoss:
    """The ways in which people write `compute_loss`: by name, by key, and by position."""

    read = "attribute"

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if self.read == "attribute":
            logits = outputs.logits
        elif self.read == "key":
            logits = outputs["logits"]
        else:
            logits = outputs[1]
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), inputs["labels"].flatten(), label_smoothing=LABEL_SMOOTHING
        )
        torch.testing.assert_close(loss, outputs.loss)
        return (loss, outputs) if return_outputs else loss


class OwnLossOfStockTrainer(OwnLoss, Seq2SeqTrainer):
    pass


class OwnLossOfTokenMetricsTrainer(OwnLoss, TokenMetricsTrainer):
    pass


class LossOfTheTrainersOutputs:
    """A `compute_loss` that asks the Trainer for the outputs."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        torch.testing.assert_close(loss, smoothed_loss(outputs, inputs["labels"]))
        return (loss, outputs) if return_outputs else loss


class OutputsOfStockTrainer(LossOfTheTrainersOutputs, Seq2SeqTrainer):
    pass


class OutputsOfTokenMetricsTrainer(LossOfTheTrainersOutputs, TokenMetricsTrainer):
    pass


def use_budget(trainer):
    TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=60)


@pytest.mark.parametrize("is_training", [True, False])
def test_outputs_are_those_of_transformers_models(is_training):
    ours = small_model().train(is_training)
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    config = BartConfig(vocab_size=60, encoder_attention_heads=2, decoder_attention_heads=2, **sizes)
    bart = BartForConditionalGeneration(config).train(is_training)
    ids = torch.randint(3, 60, (2, 5))
    outputs, expected = ours(input_ids=ids, labels=ids), bart(input_ids=ids, labels=ids, use_cache=False)
    assert list(outputs.keys()) == list(expected.keys())
    assert outputs[1] is outputs.logits
    as_tuple = ours(input_ids=ids, labels=ids, return_dict=False)
    assert as_tuple[1].shape == expected.logits.shape


@pytest.mark.parametrize("read", ["attribute", "key", "position"])
@pytest.mark.parametrize("trainer_class", [OwnLossOfStockTrainer, OwnLossOfTokenMetricsTrainer])
@pytest.mark.parametrize("prepare", [None, use_budget])
def test_a_compute_loss_of_ones_own_gets_logits(tmp_path, tokenizer, monkeypatch, trainer_class, read, prepare):
    monkeypatch.setattr(OwnLoss, "read", read)
    trainer = make_trainer(tmp_path, tokenizer, trainer_class)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("trainer_class", [OutputsOfStockTrainer, OutputsOfTokenMetricsTrainer])
@pytest.mark.parametrize("prepare", [None, use_budget])
def test_the_outputs_of_compute_loss_have_logits(tmp_path, tokenizer, trainer_class, prepare):
    trainer = make_trainer(tmp_path, tokenizer, trainer_class)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize("trainer_class", [Seq2SeqTrainer, TokenMetricsTrainer])
def test_a_compute_loss_func_gets_logits(tmp_path, tokenizer, trainer_class):
    losses = []

    def compute_loss(outputs, labels, num_items_in_batch=None):
        losses.append(smoothed_loss(outputs, labels))
        return losses[-1]

    trainer = make_trainer(tmp_path, tokenizer, trainer_class, compute_loss_func=compute_loss)
    use_budget(trainer)
    trainer.train()
    assert len(losses) == 2


@pytest.mark.parametrize("set_loss", [None, "before", "after"])
def test_use_in_skips_logits_unless_the_loss_is_customized(tmp_path, tokenizer, set_loss):
    trainer = make_trainer(tmp_path, tokenizer)
    had_logits = record_logits(trainer.model)

    def compute_loss(model, inputs, **kwargs):
        return smoothed_loss(model(**inputs), inputs["labels"])

    if set_loss == "before":
        trainer.compute_loss = compute_loss
    use_budget(trainer)
    # A second budget replaces the first one.
    use_budget(trainer)
    if set_loss == "after":
        trainer.compute_loss = compute_loss
    trainer.train()
    assert had_logits == [set_loss is not None] * 2


@pytest.mark.parametrize(
    ("trainer_class", "options", "has_logits"),
    [
        (TokenMetricsTrainer, {}, False),
        (TokenMetricsTrainer, {"label_smoothing_factor": 0.1}, True),
        (Seq2SeqTrainer, {}, True),
        (RDropTrainer, {"r_drop_alpha": 1.0}, True),
    ],
)
def test_which_trainers_skip_logits(tmp_path, tokenizer, trainer_class, options, has_logits):
    trainer = make_trainer(tmp_path, tokenizer, trainer_class, **options)
    had_logits = record_logits(trainer.model)
    trainer.train()
    assert had_logits == [has_logits] * 2


@pytest.mark.parametrize("options", [{"label_smoothing_factor": 0.1}, {"bf16": True}])
def test_use_in_with_options_of_the_stock_trainer(tmp_path, tokenizer, options):
    trainer = make_trainer(tmp_path, tokenizer, **options)
    had_logits = record_logits(trainer.model)
    use_budget(trainer)
    trainer.train()
    assert had_logits == ["label_smoothing_factor" in options] * 2


@pytest.mark.parametrize("trainer_class", [Seq2SeqTrainer, TokenMetricsTrainer])
def test_models_with_adapters_skip_logits(tmp_path, tokenizer, trainer_class):
    peft = pytest.importorskip("peft")
    base = small_model(vocab_size=len(tokenizer), dropout=0.0)
    lora = peft.LoraConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, target_modules=["q_proj"], r=2)
    model = peft.get_peft_model(base, lora)
    had_logits = record_logits(base)
    trainer = make_trainer(tmp_path, tokenizer, trainer_class, model=model)
    use_budget(trainer)
    trainer.train()
    assert had_logits == [False] * 2


def test_losses_are_equal_with_and_without_logits(tmp_path, tokenizer):
    losses = []
    for trainer_class in (Seq2SeqTrainer, TokenMetricsTrainer):
        trainer = make_trainer(tmp_path, tokenizer, trainer_class)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("trainer_class", [Seq2SeqTrainer, TokenMetricsTrainer])
def test_models_of_transformers_train_as_well(tmp_path, tokenizer, trainer_class):
    """They have no `skip_logits`, and raise for an unknown argument."""
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **sizes, **heads))
    trainer = make_trainer(tmp_path, tokenizer, trainer_class, model=model)
    use_budget(trainer)
    trainer.train()
    assert trainer.state.global_step == 2
