"""bfloat16 and float16: no NaN, sums rounded once, a loss in float32, and translations as in float32."""

import json
import math
from functools import cache

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import PaperTrainingArguments, translate
from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.models import pad, patch_everywhere, sentences, small_model
from tests.training.toy import copy_task


pytestmark = pytest.mark.processor

HALVES = [torch.bfloat16, torch.float16]
EXPECTED = json.loads((FIXTURE / "translations.json").read_text(encoding="utf-8"))
INPUTS = {
    # Beyond the keys of our own products, and beyond the last position that bfloat16 has a number for.
    "long": pad(sentences(400, 3)),
    "much padding": pad(sentences(3, 2), extra=400),
    "padded on the left": pad(sentences(3, 300), side="left"),
    "nothing but padding": pad(sentences(9, 4), extra=1),
}
INPUTS["nothing but padding"][1][1] = 0

each_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture(params=["eager", "sdpa", "vanilla_transformer"])
def implementation(request, monkeypatch):
    """How attention is computed; ours by products, as on CPUs with AVX-512, for elsewhere it is sdpa in evaluation."""
    if request.param == "vanilla_transformer":
        patch_everywhere(monkeypatch, "has_avx512", lambda: True)
    return request.param


def with_usual_scores(implementation):
    return small_model(attn_implementation=implementation)


def with_low_scores(implementation):
    """A model whose attention scores are all -50: in float16, -50 plus the most negative number is minus infinity."""
    model = small_model(attn_implementation=implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.zero_()
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                parameter.fill_(math.sqrt(50 / math.sqrt(model.config.key_dim)) * (-1 if "q_proj" in name else 1))
    return model


@torch.no_grad()
def logits(model, ids, mask):
    """Of the source itself as the target, or of its last 300 tokens."""
    target, target_mask = ids[:, -300:], mask[:, -300:]
    return model(
        input_ids=ids, attention_mask=mask, decoder_input_ids=target, decoder_attention_mask=target_mask
    ).logits


@cache
def exact_logits(build, implementation, name):
    return logits(build(implementation), *INPUTS[name])


@each_half
@pytest.mark.parametrize("build", [with_usual_scores, with_low_scores])
@pytest.mark.parametrize("name", INPUTS)
def test_logits_are_those_of_float32(dtype, implementation, build, name):
    ids, mask = INPUTS[name]
    expected = exact_logits(build, implementation, name)
    output = logits(build(implementation).to(dtype), ids, mask)
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    real = mask[:, -300:].bool()
    # On the way to a logit, numbers are rounded 78 times: once after the embeddings, 11 times in each of two encoder
    # layers, 18 times in each of three decoder layers, and once after the LM head. Each error is at most half of eps,
    # all of one sign would sum up to 39 eps, and they are not all of one sign.
    rounding = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(output[real].float(), expected[real], atol=rounding, rtol=rounding)


@each_half
@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_are_those_of_float32(dtype, num_beams):
    expected = EXPECTED[f"{num_beams} beams"]
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, dtype=dtype)
    output = translate(model, AutoTokenizer.from_pretrained(FIXTURE), list(expected), num_beams=num_beams)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    equal = sum(ours == theirs for ours, theirs in zip(output, expected.values(), strict=True))
    assert equal >= 0.97 * len(expected)


@each_half
@pytest.mark.parametrize("position_type", ["sinusoidal", "learned"])
def test_embedding_plus_position_is_rounded_once(dtype, position_type):
    d_model = 72  # sqrt(72) is no number of few bits, so that the product would be rounded too
    encoder = small_model(d_model=d_model, position_embedding_type=position_type).to(dtype).model.encoder
    embeds = torch.randn(2, 50, d_model, generator=torch.Generator().manual_seed(0)).to(dtype)
    position_ids = torch.arange(50).expand(2, -1)
    positions = sinusoidal_positions(position_ids, d_model)
    if position_type == "learned":
        positions = encoder.embed_positions(position_ids)
    exact = embeds.double() * math.sqrt(d_model) + positions.double()
    step = torch.finfo(dtype).eps * torch.exp2(torch.frexp(exact).exponent - 1)
    assert ((encoder.add_positions(embeds, position_ids) - exact).abs() <= 0.501 * step).all()


@each_half
def test_positions_are_exact_far_out(dtype):
    """Half precision has no number for most positions beyond 256 or 2,048."""
    encoder = small_model().to(dtype).model.encoder
    position_ids = torch.tensor([[99_999, 100_000]])
    output = encoder.add_positions(torch.zeros(1, 2, 32, dtype=dtype), position_ids)
    channel = torch.arange(0, 32, 2, dtype=torch.float64)
    angles = position_ids.double()[..., None] / 10_000 ** (channel / 32)
    exact = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    torch.testing.assert_close(output.double(), exact, atol=torch.finfo(dtype).eps / 2, rtol=0)


@each_half
def test_loss_is_float32_and_gradients_are_finite(dtype, implementation):
    ids, mask = INPUTS["nothing but padding"]
    labels = ids.masked_fill(mask == 0, -100)
    losses = {}
    for weight_dtype in (torch.float32, dtype):
        model = small_model(attn_implementation=implementation, dropout=0.0).to(weight_dtype).train()
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        assert loss.dtype == torch.float32
        loss.backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
        losses[weight_dtype] = loss.item()
    assert losses[dtype] == pytest.approx(losses[torch.float32], rel=8 * torch.finfo(dtype).eps)


def test_trainer_with_bf16_follows_the_one_without(tmp_path, tokenizer):
    losses = {}
    for bf16 in (False, True):
        model = small_model(vocab_size=len(tokenizer), dropout=0.0)
        args = PaperTrainingArguments(
            output_dir=str(tmp_path / str(bf16)),
            bf16=bf16,
            use_cpu=True,
            max_steps=20,
            warmup_steps=10,
            learning_rate=3e-3,
            lr_scheduler_type="linear",
            per_device_train_batch_size=16,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = Seq2SeqTrainer(
            model,
            args,
            train_dataset=copy_task(tokenizer, 64),
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        )
        trainer.train()
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        losses[bf16] = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
    assert losses[True] != losses[False]
    assert losses[True][-1] < 0.9 * losses[True][0]


def test_the_documented_way(capsys):
    names = run(blocks("bfloat16 and float16", page="precision_and_memory.md")[0])
    assert "['zweiundvierzig', 'sieben']" in capsys.readouterr().out
    assert names["model"].dtype == torch.bfloat16
