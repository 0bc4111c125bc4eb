"""Does everything on the CPU and on the second device, and writes down what came out.

Usage: python -m tests.device.compare LIBRARY OUTPUT; the output maps each function below to an error, or to null.
"""

import copy
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_vanilla_transformer import Int8Config, PaperTrainingArguments, paper_optimizers, score, translate
from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling
from hf_vanilla_transformer.training.r_drop import r_drop_loss
from tests.device import second_device
from tests.models import decisive_model, pad, sentences, small_model
from tests.rounding import RandomRounding, explained


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
TEXTS = ["one hundred and three", "seven", "forty-two"]
DEVICES = ("cpu", second_device.NAME)


def on(device: str, model: Any) -> Any:
    """A copy of a model there."""
    model = copy.deepcopy(model).to(device)
    # torch gives each use of a matrix its own on devices that it does not know.
    model.tie_weights()
    return model


def batch(device: str) -> dict[str, torch.Tensor]:
    source, mask = pad(sentences(9, 4, 6))
    labels, real = pad(sentences(5, 7, 2, seed=1))
    tensors = {"input_ids": source, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def same(actual: Any, expected: Any, atol: float = 1e-5) -> None:
    """The same numbers, the first on the device and the second on the CPU."""
    assert actual.device.type == second_device.NAME
    torch.testing.assert_close(actual.cpu(), expected, atol=atol, rtol=1e-4)


def on_both(compute: Callable[[str], tuple[torch.Tensor, ...]], atol: float = 1e-5) -> None:
    there, here = (compute(device) for device in reversed(DEVICES))
    for actual, expected in zip(there, here, strict=True):
        same(actual, expected, atol)


def tensors_of_both_are_refused():
    x = torch.ones(2, device=second_device.NAME)
    for mix in (lambda: x + torch.ones(2), lambda: torch.cat([x, torch.ones(2)]), lambda: x.cpu() @ x):
        with pytest.raises(RuntimeError, match="same device"):
            mix()


def logits():
    @torch.no_grad()
    def compute(device, name=None):
        output = on(device, small_model(attn_implementation=name))(**batch(device))
        return output.logits, output.loss

    for name in (None, "eager", "sdpa"):
        on_both(partial(compute, name=name))
    # Positions are computed where the tokens are, as on NVIDIA's GPUs, or else on the CPU.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling, "_DEVICES_WITH_FLOAT64", DEVICES)
        on_both(compute)


def attentions():
    on_both(lambda device: on(device, small_model())(**batch(device), output_attentions=True).cross_attentions)


def gradients(**settings):
    def compute(device):
        model = on(device, small_model(dropout=0.0, **settings)).train()
        loss = model(**batch(device)).loss
        return loss, *torch.autograd.grad(loss, tuple(model.parameters()))

    on_both(compute)


def gradients_of_an_untied_model():
    gradients(tie_word_embeddings=False, position_embedding_type="learned", max_position_embeddings=20)


def loss_of_an_update_in_several_batches():
    def compute(device):
        model = on(device, small_model(dropout=0.0)).train()
        return (model(**batch(device), num_items_in_batch=torch.tensor(20, device=device)).loss,)

    on_both(compute)


def dropout():
    device = second_device.NAME
    model = on(device, small_model(dropout=0.4)).train()
    losses = {model(**batch(device)).loss.item() for _ in range(3)}
    assert len(losses) == 3
    model.gradient_checkpointing_enable()
    model(**batch(device)).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def r_drop():
    def compute(device):
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(2, 6, 9, generator=generator).to(device).requires_grad_()
        labels = torch.tensor([1, 2, -100, 8, 0, 3], device=device)
        loss = r_drop_loss(z, labels, weight=5.0, label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(loss, z)

    on_both(compute)


def updates():
    def compute(device):
        model = on(device, small_model(dropout=0.0)).train()
        args = PaperTrainingArguments("runs/never_written", max_steps=5, warmup_steps=2, use_cpu=True)
        optimizer, schedule = paper_optimizers(model, args)
        losses = []
        for _ in range(5):
            losses.append(model(**batch(device)).loss)
            losses[-1].backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return tuple(losses)

    on_both(compute)


def autocast():
    def compute(device):
        model = on(device, small_model(dropout=0.0)).train()
        with torch.autocast(device, torch.bfloat16):
            loss = model(**batch(device)).loss
        return loss, *torch.autograd.grad(loss, tuple(model.parameters()))

    # Each rounds to 8 bits in its own places; gradients reach 0.16.
    on_both(compute, atol=0.04)


@torch.no_grad()
def bfloat16():
    model, ids = small_model().bfloat16(), torch.stack(sentences(*[7] * 8))
    exact = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    expected = exact(input_ids=ids, decoder_input_ids=ids).logits
    with RandomRounding(torch.bfloat16):
        rounded = exact(input_ids=ids, decoder_input_ids=ids).logits
    for device in DEVICES:
        there = ids.to(device)
        found = on(device, model)(input_ids=there, decoder_input_ids=there).logits
        assert found.device.type == device
        assert explained(found.cpu(), expected, rounded)


def generation():
    for settings in (
        {},
        {"num_beams": 1},
        {"num_return_sequences": 3},
        {"length_penalty_type": "hf", "length_penalty": 1.2},
        {"num_beams": 1, "cache_implementation": "static", "disable_compile": True},
        {"use_cache": False},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
        {"num_beams": 1, "prompt_lookup_num_tokens": 2},
        {"forced_eos_token_id": 2},
    ):
        generate(**settings)


def generate(**settings):
    def compute(device):
        inputs = batch(device)
        del inputs["labels"]
        if "prompt_lookup_num_tokens" in settings:
            inputs = {name: tensor[:1] for name, tensor in inputs.items()}
        return (on(device, decisive_model()).generate(**inputs, max_new_tokens=10, **settings),)

    on_both(compute)


def sampling():
    model = on(second_device.NAME, decisive_model())
    for num_beams in (1, 3):
        sampled = model.generate(
            batch(second_device.NAME)["input_ids"], do_sample=True, num_beams=num_beams, max_new_tokens=5
        )
        assert sampled.device.type == second_device.NAME


def scores_of_generation():
    def compute(device):
        model, inputs = on(device, decisive_model()), batch(device)
        asked_for = {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True}
        output = model.generate(inputs["input_ids"], max_new_tokens=6, **asked_for)
        return output.sequences, output.sequences_scores, *output.scores

    on_both(compute)


def trained(device: str, **settings: Any) -> tuple[Any, Any]:
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, **settings)
    return on(device, model), AutoTokenizer.from_pretrained(FIXTURE)


def text_to_text():
    expected = translate(*trained("cpu"), TEXTS)
    model, tokenizer = trained(second_device.NAME)
    assert translate(model, tokenizer, TEXTS) == expected
    translator = pipeline("translation", model=model, tokenizer=tokenizer, device=second_device.NAME)
    assert [each["translation_text"] for each in translator(TEXTS)] == expected
    here, there = (score(*trained(device), TEXTS, expected) for device in DEVICES)
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one.log_probs, other.log_probs, atol=1e-4, rtol=0)


def int8():
    here, there = (trained(device, quantization_config=Int8Config()) for device in DEVICES)
    assert translate(*there, TEXTS) == translate(*here, TEXTS)


CHECKS = [
    tensors_of_both_are_refused,
    logits,
    attentions,
    gradients,
    gradients_of_an_untied_model,
    loss_of_an_update_in_several_batches,
    dropout,
    r_drop,
    updates,
    autocast,
    bfloat16,
    generation,
    sampling,
    scores_of_generation,
    text_to_text,
    int8,
]


def main(library: str, output: str) -> None:
    second_device.register(Path(library))
    errors: dict[str, str | None] = dict.fromkeys(check.__name__ for check in CHECKS)
    for check in CHECKS:
        try:
            check()
        except (Exception, pytest.fail.Exception):
            errors[check.__name__] = traceback.format_exc()
    Path(output).write_text(json.dumps(errors), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
