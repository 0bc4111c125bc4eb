"""R-Drop: its loss equals torch's KL divergence; its Trainer reads every batch twice and evaluates as usual."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments, paper_optimizers
from hf_vanilla_transformer.training import r_drop
from hf_vanilla_transformer.training.r_drop import RDropTrainer, r_drop_loss
from hf_vanilla_transformer.training.run_arguments import RunArguments
from tests.models import small_model
from tests.training.toy import Gradients, copy_task


def two_predictions(tokens=7, vocabulary=11, seed=0):
    """Logits of two passes, `(2, tokens, vocabulary)`, and labels, the second of which is ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, tokens, vocabulary, generator=generator).double()
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    labels[1] = -100
    return logits.requires_grad_(), labels


def loss_by_torch(logits, labels, weight, label_smoothing):
    """Liang et al. 2021, Eq. 4, halved."""
    first, second = logits[:, labels != -100]
    labels = labels[labels != -100]
    entropies = [
        nn.functional.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="sum")
        for logits in (first, second)
    ]
    log_p, log_q = first.log_softmax(-1), second.log_softmax(-1)
    divergences = [
        nn.functional.kl_div(of_other, own, log_target=True, reduction="sum")
        for own, of_other in ((log_p, log_q), (log_q, log_p))
    ]
    return (sum(entropies) + weight * sum(divergences) / 2) / 2


@pytest.mark.parametrize("tokens_at_once", [1, 3, 512])
@pytest.mark.parametrize(("weight", "label_smoothing"), [(1.0, 0.0), (5.0, 0.1), (0.3, 0.4)])
def test_r_drop_loss_and_gradients_equal_torch_s(weight, label_smoothing, tokens_at_once, monkeypatch):
    monkeypatch.setattr(r_drop, "_TOKENS_PER_CHUNK_ON_CPUS", tokens_at_once)
    logits, labels = two_predictions()
    loss, sums = r_drop_loss(logits, labels, weight, label_smoothing)
    expected_loss = loss_by_torch(logits, labels, weight, label_smoothing)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-12)
    gradients = torch.autograd.grad(3 * loss, logits)
    expected_gradients = torch.autograd.grad(3 * expected_loss, logits)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-12, rtol=1e-10)
    both = labels.repeat(2)
    plain = nn.functional.cross_entropy(logits.flatten(0, 1), both, reduction="sum")
    correct = (logits.flatten(0, 1).argmax(dim=-1) == both).sum()
    torch.testing.assert_close(sums, torch.stack([plain.detach(), correct.double(), (both != -100).sum().double()]))


def test_r_drop_loss_gradients_equal_finite_differences():
    logits, labels = two_predictions(tokens=3, vocabulary=5)
    assert torch.autograd.gradcheck(lambda some_logits: r_drop_loss(some_logits, labels, 2.0, 0.1)[0], logits)


def test_r_drop_loss_of_equal_predictions():
    (logits, _), labels = two_predictions()
    expected = nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    loss, _ = r_drop_loss(torch.stack([logits, logits]), labels, 9.0, 0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_r_drop_loss_of_bfloat16_is_computed_in_float32():
    logits, labels = two_predictions()
    half = logits.detach().bfloat16().requires_grad_()
    double = half.detach().double().requires_grad_()
    loss, _ = r_drop_loss(half, labels, 2.0, 0.1)
    exact_loss, _ = r_drop_loss(double, labels, 2.0, 0.1)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact_loss.item(), rel=1e-5)
    # bfloat16 cannot represent this scale; only the gradients are rounded.
    (rounded,) = torch.autograd.grad(loss / 1237, half)
    (expected,) = torch.autograd.grad(exact_loss / 1237, double)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), expected, atol=1e-9, rtol=2**-7)


def test_r_drop_loss_without_a_label():
    logits, labels = two_predictions()
    loss, _ = r_drop_loss(logits, torch.full_like(labels, -100), 2.0, 0.1)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0
    assert not gradient.any()


def make_trainer(folder, tokenizer, weight, dropout=0.0, **arguments):
    """A Trainer on fixed sentences in a fixed order; `Seq2SeqTrainer` without a weight."""
    defaults = {
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "warmup_steps": 10,
        "train_sampling_strategy": "sequential",
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    model = small_model(vocab_size=len(tokenizer), dropout=dropout).double()
    trainer_class = Seq2SeqTrainer
    if weight is not None:
        trainer_class = partial(RDropTrainer, r_drop_alpha=weight)
    return trainer_class(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 64),
        eval_dataset=copy_task(tokenizer, 6, seed=1),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        optimizers=paper_optimizers(model, args),
    )


def losses_and_gradients(trainer):
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], gradients.kept


def test_r_drop_trainer_without_dropout_is_the_stock_trainer(tmp_path, tokenizer):
    losses, gradients = losses_and_gradients(make_trainer(tmp_path, tokenizer, None))
    r_drop_losses, r_drop_gradients = losses_and_gradients(make_trainer(tmp_path, tokenizer, 3.0))
    assert len(losses) == 3
    assert r_drop_losses == pytest.approx(losses, rel=1e-9)
    for name, gradient in gradients.items():
        torch.testing.assert_close(r_drop_gradients[name], gradient, atol=1e-10, rtol=1e-7)


def test_r_drop_trainer_with_dropout_adds_the_divergence(tmp_path, tokenizer):
    first_losses = []
    for weight in (1e-9, 1.0, 3.0):
        trainer = make_trainer(tmp_path, tokenizer, weight, dropout=0.3, max_steps=1)
        torch.manual_seed(0)
        first_losses.append(losses_and_gradients(trainer)[0][0])
    plain, once, thrice = first_losses
    # With equal dropout masks the divergence is equal, so only its weight changes the loss.
    assert once > plain + 1e-3
    assert thrice - plain == pytest.approx(3 * (once - plain), rel=1e-6)


@pytest.mark.parametrize("predict_with_generate", [False, True])
def test_r_drop_trainer_evaluates_as_the_stock_trainer(tmp_path, tokenizer, predict_with_generate):
    stock, ours = (
        make_trainer(tmp_path, tokenizer, weight, dropout=0.3, predict_with_generate=predict_with_generate)
        for weight in (None, 3.0)
    )
    assert ours.evaluate()["eval_loss"] == pytest.approx(stock.evaluate()["eval_loss"], rel=1e-12)
    ours.train()
    stock.model.load_state_dict(ours.model.state_dict())
    assert ours.evaluate()["eval_loss"] == pytest.approx(stock.evaluate()["eval_loss"], rel=1e-12)
    predictions = []
    for trainer in (stock, ours):
        outputs = trainer.predict(copy_task(tokenizer, 4, seed=3)).predictions
        # Without `predict_with_generate`, the outputs are a tuple that begins with the logits.
        predictions.append(outputs[0] if isinstance(outputs, tuple) else outputs)
    assert np.array_equal(*predictions)


def test_r_drop_trainer_rejects_invalid_arguments(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"r_drop_alpha is 0\.0; it must be above 0"):
        make_trainer(tmp_path, tokenizer, 0.0)
    with pytest.raises(ValueError, match="compute_loss_func was given"):
        RDropTrainer(r_drop_alpha=1.0, compute_loss_func=lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match=r"label_smoothing_factor is 0\.2, but R-Drop uses the model's rate"):
        make_trainer(tmp_path, tokenizer, 1.0, label_smoothing_factor=0.2)
    with pytest.raises(ValueError, match=r"r_drop_alpha is -1\.0; give 0"):
        RunArguments(output_dir=str(tmp_path), r_drop_alpha=-1.0)
