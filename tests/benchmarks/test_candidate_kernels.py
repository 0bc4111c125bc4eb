"""benchmarks/support/candidate_kernels.py sees wrong losses, gradients, norms and dropout masks."""

from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.support.candidate_kernels import Sizes, _figures_of_end, _figures_of_loss, _safely, plain_end
from hf_vanilla_transformer.acceleration.fused_loss import fused_smoothed_cross_entropy, replace_logits_by_gradient


pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SIZES = Sizes(tokens=300, d_model=16, vocab_size=104)


def loss_with(change):
    def replace_logits(logits, labels, label_probability):
        terms = replace_logits_by_gradient(logits, labels, label_probability)
        return change(logits, terms)

    return partial(fused_smoothed_cross_entropy, replace_logits=replace_logits, chunk_bytes=2**20)


def wrong_gradient(logits, terms):
    logits.mul_(1.2)
    return terms


def wrong_loss(logits, terms):
    return terms._replace(log_sum=terms.log_sum * 1.2)


def no_error(logits, terms):
    return terms


@pytest.mark.parametrize(("change", "passes"), [(no_error, True), (wrong_gradient, False), (wrong_loss, False)])
def test_losses_are_checked(change, passes):
    figures = _figures_of_loss(loss_with(change), SIZES, CPU)
    assert figures["passes"] == passes
    assert set(figures["errors"]) == {104, 103}
    assert figures["milliseconds"] > 0


def end_with(wrong_rate=None, scale=1.0):
    def make_end(eps, rate, narrow_dtype):
        if rate > 0 and wrong_rate is not None:
            rate = wrong_rate

        def end(x, sublayer_x, weight, bias):
            return plain_end(eps, rate, narrow_dtype)(x, sublayer_x, weight * scale, bias)

        return end

    return make_end


def end_with_another_mask(eps, rate, narrow_dtype):
    """Stands for a backward pass that draws another dropout mask than the forward pass."""

    class OtherMask(torch.autograd.Function):
        @staticmethod
        def forward(ctx, sublayer_x):
            return nn.functional.dropout(sublayer_x, rate)

        @staticmethod
        def backward(ctx, grad):
            return nn.functional.dropout(grad, rate)

    def end(x, sublayer_x, weight, bias):
        return plain_end(eps, 0.0, narrow_dtype)(x, OtherMask.apply(sublayer_x), weight, bias)

    return end


@pytest.mark.parametrize(
    ("make_end", "passes"),
    [
        (end_with(), True),
        (end_with(wrong_rate=0.2), False),
        (end_with(scale=1.01), False),
        (end_with_another_mask, False),
    ],
    ids=["right", "rate", "scale", "mask"],
)
def test_ends_are_checked(make_end, passes):
    assert _figures_of_end(make_end, SIZES, CPU)["passes"] == passes


def test_an_error_is_a_figure():
    def fail():
        raise RuntimeError("no kernel")

    assert _safely("a", fail, CPU) == {"name": "a", "passes": False, "error": "RuntimeError: no kernel"}
