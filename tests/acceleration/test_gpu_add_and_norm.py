"""acceleration/gpu_add_and_norm.py: which sums Triton computes, and that training does not change by it.

The formula stands for Triton's kernel here; `make test-triton` runs the kernel itself.
"""

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.support.candidate_kernels import plain_end
from hf_vanilla_transformer.acceleration import gpu_add_and_norm
from hf_vanilla_transformer.acceleration.gpu_add_and_norm import narrow_copy_of, remember_narrow_copy
from hf_vanilla_transformer.model.linear_kernels import cast_for_matmul
from tests.acceleration.gpu_tensors import on_gpu
from tests.models import pad, sentences, small_model
from tests.rounding import rms


LAYERS = {"encoder_layers": 2, "decoder_layers": 3}
# Two sums in a layer of the encoder, and three in one of the decoder.
SUMS = 2 * 2 + 3 * 3
BFLOAT16 = {"dtype": torch.bfloat16}


@pytest.fixture
def large(monkeypatch):
    """Every sum is large enough."""
    monkeypatch.setattr(gpu_add_and_norm, "LEAST_ELEMENTS", 1)


@pytest.mark.usefixtures("as_with_cuda", "large")
def test_triton_computes_sums_under_autocast():
    suits = gpu_add_and_norm._suits_triton
    x, sublayer_x, norm = on_gpu(2, 3, 8), on_gpu(2, 3, 8, **BFLOAT16), nn.LayerNorm(8)
    assert suits(x, sublayer_x, norm)
    assert not suits(x.half(), sublayer_x, norm)
    assert not suits(x, on_gpu(2, 3, 8), norm)
    assert not suits(x, on_gpu(1, 3, 8, **BFLOAT16), norm)
    assert not suits(torch.zeros(2, 3, 8), sublayer_x, norm)
    assert not suits(on_gpu(2, 3, 6), on_gpu(2, 3, 6, **BFLOAT16), nn.LayerNorm(6))


@pytest.mark.usefixtures("as_with_cuda", "large")
def test_modified_norms_are_called():
    x, sublayer_x = on_gpu(2, 3, 8), on_gpu(2, 3, 8, **BFLOAT16)
    hooked = nn.LayerNorm(8)
    hooked.register_forward_hook(lambda module, args, output: output)
    wrapped = nn.Sequential(nn.LayerNorm(8))
    for norm in (hooked, wrapped, nn.LayerNorm(8, bias=False), nn.LayerNorm((3, 8)), nn.LayerNorm(8).bfloat16()):
        assert not gpu_add_and_norm._suits_triton(x, sublayer_x, norm)


@pytest.mark.usefixtures("as_with_cuda")
def test_small_sums_are_left_to_torch():
    norm = nn.LayerNorm(1024)
    sizes = {"base": (25_000, 512), "big": (25_000, 1024)}
    norms = {"base": nn.LayerNorm(512), "big": norm}
    suits = {}
    for name, shape in sizes.items():
        # Without memory: one element that is repeated.
        x = on_gpu(1, 1).expand(shape)
        sublayer_x = on_gpu(1, 1, **BFLOAT16).expand(shape)
        suits[name] = gpu_add_and_norm._suits_triton(x, sublayer_x, norms[name])
    assert suits == {"base": False, "big": True}


@pytest.fixture
def calls(monkeypatch):
    """All sums take the way of large ones on a GPU; a list of the rates of dropout with which they are called."""
    rates = []

    def add_and_norm_in_triton(x, sublayer_x, weight, bias, eps, rate, narrow_dtype):
        rates.append(rate)
        return plain_end(eps, rate, narrow_dtype)(x, sublayer_x, weight, bias)

    module = SimpleNamespace(add_and_norm_in_triton=add_and_norm_in_triton)
    monkeypatch.setitem(sys.modules, "hf_vanilla_transformer.acceleration.triton_add_and_norm", module)
    monkeypatch.setattr(gpu_add_and_norm, "_suits_triton", lambda x, sublayer_x, norm: sublayer_x.dtype != x.dtype)
    monkeypatch.setattr(gpu_add_and_norm, "triton_works", lambda: True)
    return rates


def batch():
    source, mask = pad(sentences(9, 4, 6))
    labels, real = pad(sentences(5, 7, 2, seed=1))
    return {"input_ids": source, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}


def loss_and_gradients(model):
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch(), skip_logits=True).loss
    loss.backward()
    # In one vector, because those of the keys' biases are 0 but for rounding.
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad(set_to_none=True)
    return loss.detach(), gradients


def without_triton(monkeypatch, model):
    with monkeypatch.context() as patch:
        patch.setattr(gpu_add_and_norm, "triton_works", lambda: False)
        return loss_and_gradients(model)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_training_does_not_change(calls, monkeypatch, reentrant):
    """With both kinds of gradient checkpointing, too, whose two passes must draw the same masks."""
    model = small_model(dropout=0.25, **LAYERS).train()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        # Otherwise reentrant checkpoints of the first layer see no input with a gradient.
        model.enable_input_require_grads()
    expected = without_triton(monkeypatch, model)
    assert calls == []
    actual = loss_and_gradients(model)
    passes = 1 if reentrant is None else 2
    assert calls == [0.25] * SUMS * passes
    for value, exact in zip(actual, expected, strict=True):
        assert rms(value - exact) <= torch.finfo(torch.bfloat16).eps * rms(exact)


def test_matmuls_read_the_copies(calls, monkeypatch):
    casts = []
    plain_cast = gpu_add_and_norm.plain(cast_for_matmul)

    def counted(x):
        casts.append(x.dtype)
        return plain_cast(x)

    monkeypatch.setattr(gpu_add_and_norm, "plain", lambda operation: counted)
    loss_and_gradients(small_model(dropout=0.25, **LAYERS).train())
    wide = [dtype for dtype in casts if dtype == torch.float32]
    # The embeddings of both stacks, and the weight of the loss: all other wide tensors are sums that have a copy.
    assert len(wide) <= 2 + 2


def test_evaluation_takes_the_plain_way(calls):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        small_model(dropout=0.25, **LAYERS)(**batch())
    assert calls == []


def wide_and_narrow():
    wide = torch.randn(3, requires_grad=True) * 1
    narrow = wide.to(torch.bfloat16)
    remember_narrow_copy(wide, narrow)
    return wide, narrow


def test_a_copy_serves_as_the_cast():
    wide, narrow = wide_and_narrow()
    assert narrow_copy_of(wide) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert narrow_copy_of(wide) is narrow
        assert cast_for_matmul(wide) is narrow
    with torch.autocast("cpu", torch.float16):
        assert cast_for_matmul(wide).dtype == torch.float16
    assert cast_for_matmul(wide) is wide


@torch.autocast("cpu", torch.bfloat16)
def test_a_copy_of_a_changed_tensor_is_not_used():
    wide, _ = wide_and_narrow()
    wide.mul_(2)
    assert torch.equal(cast_for_matmul(wide), wide.to(torch.bfloat16))


@torch.autocast("cpu", torch.bfloat16)
def test_a_copy_without_the_gradient_is_not_used():
    wide, _ = wide_and_narrow()
    remember_narrow_copy(wide, wide.detach().to(torch.bfloat16))
    assert cast_for_matmul(wide).requires_grad
    assert narrow_copy_of(copy.copy(wide.detach())) is None
