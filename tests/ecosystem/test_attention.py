"""Attention as a user asks for it by name: flash attention and flex attention, without a GPU."""

from functools import wraps

import pytest
import torch
from torch.nn.attention import flex_attention
from transformers import MarianConfig, MarianMTModel, masking_utils
from transformers.integrations.flex_attention import WrappedFlexAttention

from hf_vanilla_transformer.acceleration import flash_attention
from tests import flash
from tests.ecosystem.documentation import blocks, run
from tests.models import decisive_model, pad, sentences, small_model


FLASH, FLEX = "flash_attention_2", "flex_attention"


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    flash.install(monkeypatch)
    # Compiled for a CPU, they take a minute, and cannot decode.
    of_block = flex_attention.create_block_mask
    monkeypatch.setattr(masking_utils, "create_block_mask", lambda _compile, **asked_for: of_block(**asked_for))
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def inputs(side="right"):
    source, mask = pad(sentences(9, 4, 6), side)
    labels, real = pad(sentences(5, 7, 2, seed=1))
    return {"input_ids": source, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}


@pytest.mark.parametrize("sizes", [{"d_k": 10, "d_v": 6}, {"d_k": 6, "d_v": 10}, {"d_k": None, "d_v": None}])
@pytest.mark.parametrize("target", [3, 9, 20])
@pytest.mark.parametrize("name", [FLASH, FLEX])
@torch.no_grad()
def test_equals_eager(name, target, sizes):
    """With targets shorter than the sources, as long, and longer; and with heads of all shapes."""
    source, mask = pad(sentences(9, 4, 6))
    batch = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": torch.stack(sentences(*[target] * 3))}
    ours, eager = (
        small_model(attn_implementation=implementation, **sizes)(**batch).logits for implementation in (name, "eager")
    )
    torch.testing.assert_close(ours, eager, atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_equal_those_of_eager(side):
    losses, gradients = [], []
    for name in (FLASH, "eager"):
        model = small_model(attn_implementation=name, dropout=0.0).train()
        losses.append(model(**inputs(side)).loss)
        gradients.append(torch.autograd.grad(losses[-1], tuple(model.parameters())))
    torch.testing.assert_close(*losses, atol=1e-5, rtol=0)
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


STATIC = {"cache_implementation": "static", "disable_compile": True}


@pytest.mark.parametrize(
    ("name", "settings"),
    [(FLASH, {}), (FLASH, {"use_cache": False}), (FLASH, STATIC), (FLEX, {}), (FLEX, {"use_cache": False})],
)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_generates_the_same(name, num_beams, settings):
    """From nothing, and from a prefix of several tokens; a static cache has the room of the longer of two calls."""
    source, mask = pad(sentences(9, 4, 6))
    settings = {"attention_mask": mask, "num_beams": num_beams, **settings}
    of_name, of_eager = (decisive_model(attn_implementation=implementation) for implementation in (name, "eager"))
    for length, prefix in ((16, 1), (6, 1), (6, 3)):
        settings["decoder_input_ids"] = torch.stack(sentences(prefix, prefix, prefix, seed=2))
        ours, eager = (
            model.generate(source, max_new_tokens=length, min_new_tokens=length, **settings)
            for model in (of_name, of_eager)
        )
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("name", [FLASH, FLEX])
@pytest.mark.parametrize("mask_of", [torch.ones, torch.zeros])
@torch.no_grad()
def test_masks_of_four_dimensions_are_refused(name, mask_of):
    model, ids = small_model(attn_implementation=name), torch.stack(sentences(5))
    masks = {"attention_mask": mask_of(1, 1, 1, 5).bool(), "decoder_attention_mask": mask_of(1, 1, 5, 5)}
    for name_of_mask, mask in masks.items():
        with pytest.raises(ValueError, match=f'"{name}" accepts only padding masks'):
            model(input_ids=ids, decoder_input_ids=ids, **{name_of_mask: mask})


def test_flex_attention_refuses_a_static_cache():
    with pytest.raises(ValueError, match="flex attention does not work with a static cache; use another cache"):
        small_model(attn_implementation=FLEX).generate(inputs()["input_ids"], num_beams=1, **STATIC)


def test_float32_is_computed_in_bfloat16(monkeypatch):
    """As where the Trainer, which trains in bfloat16, generates: transformers calls the encoder outside of autocast."""
    seen = set()
    original = flash.flash_attn_varlen_func

    @wraps(original)
    def record(q, k, v, *args, **kwargs):
        seen.update((q.dtype, k.dtype, v.dtype))
        return original(q, k, v, *args, **kwargs)

    monkeypatch.setattr(flash, "flash_attn_varlen_func", record)
    flash.install(monkeypatch)
    monkeypatch.setattr(flash_attention, "_FLASH_DTYPE", torch.bfloat16)
    logits = {name: small_model(attn_implementation=name)(**inputs()).logits for name in (FLASH, "eager")}
    assert seen == {torch.bfloat16}
    assert logits[FLASH].dtype == torch.float32
    torch.testing.assert_close(logits[FLASH], logits["eager"], atol=0.1, rtol=0)


def test_dropout_of_the_weights():
    layer = small_model(attention_dropout=1.0, attn_implementation=FLASH).train().model.encoder.layers[0].self_attn
    x = torch.randn(2, 5, 32)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    for attended in (layer(x)[0], layer(x, attention_mask=mask)[0]):
        torch.testing.assert_close(attended, layer.out_proj.bias.expand_as(x))


def test_the_page():
    model = run(*blocks("Attention by name"), ('"cuda"', '"cpu"'))["model"]
    assert model.config._attn_implementation == FLASH


@torch.no_grad()
def test_the_flash_attention_of_transformers_is_still_wrong_beside_padding():
    """Or else `flash_attention` can go."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    ids = {"vocab_size": 60, "pad_token_id": 0, "decoder_start_token_id": 0}
    model = MarianMTModel(MarianConfig(**sizes, **ids, encoder_attention_heads=4, decoder_attention_heads=4)).eval()
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    batch = inputs()
    logits = {}
    for name in (FLASH, "eager"):
        model.set_attn_implementation(name)
        logits[name] = model(**batch).logits
    assert not torch.isclose(logits[FLASH], logits["eager"], atol=0.1).all()
