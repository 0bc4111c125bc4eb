"""Changes replace functions of the package for a while, and training then computes the same."""

import pytest
import torch

from benchmarks.support import candidates_in_model
from benchmarks.support.candidate_kernels import plain_end
from benchmarks.support.candidates_in_model import Change, changes_for, using
from tests.models import pad, sentences, small_model


pytestmark = pytest.mark.slow

modeling = candidates_in_model.modeling
LAYERS = {"encoder_layers": 2, "decoder_layers": 3}
# Two ends of sub-layers in a layer of the encoder, and three in one of the decoder.
ENDS = 2 * 2 + 3 * 3


def batch():
    source, mask = pad(sentences(9, 4, 6))
    labels, real = pad(sentences(5, 7, 2, seed=1))
    return {"input_ids": source, "attention_mask": mask, "labels": labels.masked_fill(real == 0, -100)}


def loss_and_gradients(model, autocast=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(**batch(), skip_logits=True).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("change", changes_for(torch.device("cpu")), ids=lambda change: change.name)
def test_a_step_with_a_change_equals_the_step_of_the_package(change):
    if change.missing is not None:
        pytest.skip(change.missing)
    model = small_model(dropout=0.0, **LAYERS).train()
    expected = loss_and_gradients(model)
    with using([change]):
        actual = loss_and_gradients(model)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_the_ends_of_all_sublayers_are_replaced_and_their_narrow_copies_read():
    calls = []
    read = []

    def make_end(eps, rate, narrow_dtype):
        def end(*tensors):
            normalized, narrow = plain_end(eps, rate, narrow_dtype)(*tensors)
            narrow.register_hook(lambda gradient: read.append(gradient.dtype))
            calls.append((rate, narrow_dtype))
            return normalized, narrow

        return end

    model = small_model(dropout=0.25, **LAYERS).train()
    with using([Change("ends", "ends", lambda: candidates_in_model.use_ends(make_end))]):
        loss_and_gradients(model, autocast=True)
    assert calls == [(0.25, torch.bfloat16)] * ENDS
    # The matmuls of all but the last end, whose state the loss reads, use the copy.
    assert read == [torch.bfloat16] * (ENDS - 1)


def test_an_operation_is_replaced():
    shapes = []
    plain_loss = modeling.smoothed_cross_entropy_of_states

    def loss(states, *args, **kwargs):
        shapes.append(states.shape)
        return plain_loss(states, *args, **kwargs)

    model = small_model().train()
    with candidates_in_model.use_operation("smoothed_cross_entropy_of_states", loss):
        loss_and_gradients(model)
    assert shapes == [(3, 7, model.config.d_model)]


def test_nothing_stays_replaced():
    names = ("smoothed_cross_entropy_of_states", "cast_for_matmul", "linear")
    layers = (modeling.VanillaTransformerEncoderLayer, modeling.VanillaTransformerDecoderLayer)

    def functions():
        methods = [modeling.VanillaTransformerLayer.add_and_norm, *(layer.forward for layer in layers)]
        return [getattr(modeling, name) for name in names] + methods

    before = functions()
    ends = Change("ends", "ends", lambda: candidates_in_model.use_ends(plain_end))
    other_changes = [change for change in changes_for(torch.device("cpu")) if change.missing is None]
    with using([ends, *other_changes]):
        assert all(new is not old for new, old in zip(functions(), before, strict=True))
    assert all(new is old for new, old in zip(functions(), before, strict=True))


def test_attention_by_cudnn_is_forbidden_for_a_while():
    is_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    with candidates_in_model.cudnn_attention(enabled=False):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == is_enabled
