"""acceleration/loss_of_states.py runs Triton's kernel where it works, and elsewhere the loss in chunks."""

from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer.acceleration import loss_of_states
from hf_vanilla_transformer.acceleration.chunked_loss import chunked_smoothed_cross_entropy
from hf_vanilla_transformer.acceleration.fused_loss import RowTerms, replace_logits_by_gradient
from hf_vanilla_transformer.acceleration.loss_of_states import choose_chunk_bytes, smoothed_cross_entropy_of_matrix
from hf_vanilla_transformer.model.operations import plain, smoothed_cross_entropy_of_states
from tests.acceleration.gpu_tensors import on_gpu
from tests.acceleration.test_launches import Launches
from tests.models import pad, sentences, small_model


GIBIBYTE = 2**30
# Of the loss forward and backward. Lower it when a change saves some.
MOST_LAUNCHES = 57


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_can_use_triton_with_three_dtypes(dtype, as_with_cuda):
    states, weight, bias = on_gpu(1, 2, 8, dtype=dtype), on_gpu(5, 8, dtype=dtype), on_gpu(5, dtype=dtype)
    assert loss_of_states._can_use_triton(states, weight, None)
    assert loss_of_states._can_use_triton(states, weight, bias)


def test_can_use_triton_is_false(as_with_cuda):
    states, weight = on_gpu(1, 2, 8), on_gpu(5, 8)
    assert not loss_of_states._can_use_triton(torch.zeros(1, 2, 8), torch.zeros(5, 8), None)
    assert not loss_of_states._can_use_triton(states.double(), weight.double(), None)
    assert not loss_of_states._can_use_triton(states, weight.half(), None)
    assert not loss_of_states._can_use_triton(states, weight, torch.zeros(5))


def force_triton(monkeypatch, replace_logits, chunk_bytes=8 * 64 * 2):
    """Compute losses on the CPU as on a GPU, in chunks of eight rows of at most 64 logits."""
    monkeypatch.setattr(loss_of_states, "_can_use_triton", lambda states, weight, bias: True)
    monkeypatch.setattr(loss_of_states, "triton_works", lambda device, dtype: True)
    monkeypatch.setattr(loss_of_states, "_import_triton_replacement", lambda: replace_logits)
    monkeypatch.setattr(loss_of_states, "choose_chunk_bytes", lambda memory: chunk_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=GIBIBYTE))


def losses_and_gradients(function, model, states, labels):
    total, sums = function(states, model.lm_head, labels, 0.1)
    return [total.detach(), sums, *torch.autograd.grad(total, [states, model.lm_head.weight])]


def test_model_uses_the_fused_loss(monkeypatch):
    """With Triton's function replaced by its formula, the rest of the way is the one on a GPU."""
    chunks = []

    def replace_logits(logits, labels, label_probability):
        chunks.append(len(logits))
        return replace_logits_by_gradient(logits, labels, label_probability)

    model = small_model().train()
    states = torch.randn(3, 7, model.config.d_model, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels, real = pad(sentences(5, 7, 2))
    labels = labels.masked_fill(real == 0, -100)
    expected = losses_and_gradients(plain(smoothed_cross_entropy_of_states), model, states, labels)

    force_triton(monkeypatch, replace_logits, chunk_bytes=8 * 64 * 4)
    actual = losses_and_gradients(smoothed_cross_entropy_of_states, model, states, labels)
    assert chunks == [8, 8, 5]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("memory", "expected"), [(8, 1 / 8), (16, 1 / 4), (80, 1), (141, 1)])
def test_choose_chunk_bytes(memory, expected):
    assert choose_chunk_bytes(memory * GIBIBYTE) == expected * GIBIBYTE


def test_without_triton_the_chunked_loss_is_used(monkeypatch):
    monkeypatch.setattr(loss_of_states, "_can_use_triton", lambda states, weight, bias: True)
    monkeypatch.setattr(loss_of_states, "triton_works", lambda device, dtype: False)
    states, weight = torch.randn(1, 3, 8), torch.randn(5, 8)
    labels = torch.tensor([[1, 4, -100]])
    actual = smoothed_cross_entropy_of_matrix(states, weight, labels, 0.1)
    expected = chunked_smoothed_cross_entropy(states, weight, labels, 0.1)
    assert all(map(torch.equal, actual, expected))


def test_launches_of_the_loss(monkeypatch):
    """In two chunks, as those of 25,000 tokens; with one launch in the place of Triton's kernel."""

    def replace_logits(logits, labels, label_probability):
        log_sum, label_logit, is_highest = logits.new_zeros(3, len(logits), dtype=torch.float32)
        return RowTerms(log_sum, label_logit, is_highest)

    force_triton(monkeypatch, replace_logits)
    states = torch.randn(2, 8, 16).bfloat16().requires_grad_()
    weight = torch.randn(64, 16).requires_grad_()
    labels = torch.randint(64, (2, 8))
    with torch.autocast("cpu", torch.bfloat16), Launches() as launches:
        total, _ = smoothed_cross_entropy_of_matrix(states, weight, labels, 0.1)
        total.backward()
    assert launches.launches.total() <= MOST_LAUNCHES, launches.launches.most_common()
    assert not launches.syncs
