"""benchmarks/candidates/triton_add_and_norm.py computes dropout, sum and norm of the formula, and their gradients."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.support.candidate_kernels import plain_end, triton_end
from benchmarks.support.triton_support import missing_for_triton
from tests.rounding import rms


pytestmark = pytest.mark.slow

EPS = 1e-6
# Whole blocks of Triton's kernel, and a part of one.
WIDTHS = [16, 20]


@pytest.fixture(params=["plain", "triton"])
def make_end(request):
    if request.param == "plain":
        return plain_end
    reason = missing_for_triton(torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    return triton_end


def inputs(width, dtype=torch.float32, shape=(2, 7)):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, width, generator=generator)
    sublayer_x = torch.randn(*shape, width, generator=generator).to(dtype)
    weight = 1 + torch.randn(width, generator=generator) / 4
    bias = torch.randn(width, generator=generator)
    return [tensor.requires_grad_() for tensor in (x, sublayer_x, weight, bias)]


def formula(x, sublayer_x, weight, bias):
    residual_sum = x + sublayer_x
    mean = residual_sum.mean(dim=-1, keepdim=True)
    variance = (residual_sum - mean).square().mean(dim=-1, keepdim=True)
    return (residual_sum - mean) / (variance + EPS).sqrt() * weight + bias


def weighted(normalized, narrow):
    """A sum in which each element of both results counts differently."""
    weights = torch.arange(normalized.numel(), dtype=torch.float64).view_as(normalized) / normalized.numel()
    return (normalized.double() * weights).sum() + (narrow.double() * weights.square()).sum()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 4e-7), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_values_and_gradients_without_dropout(make_end, width, dtype, tolerance):
    tensors = inputs(width, dtype)
    normalized, narrow = make_end(EPS, 0.0, dtype)(*tensors)
    assert normalized.dtype == torch.float32
    assert narrow.dtype == dtype
    precise = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = formula(*precise)
    torch.testing.assert_close(normalized.double(), expected, atol=5e-6, rtol=0)
    torch.testing.assert_close(narrow, expected.to(dtype), atol=tolerance, rtol=tolerance)

    gradients = torch.autograd.grad(weighted(normalized, narrow), tensors)
    exact = torch.autograd.grad(weighted(expected, expected), precise)
    for tensor, gradient, expected_gradient in zip(tensors, gradients, exact, strict=True):
        assert gradient.dtype == tensor.dtype
        assert gradient.shape == tensor.shape
        assert rms(gradient - expected_gradient) <= tolerance * rms(expected_gradient)


def test_gradients_in_float64():
    tensors = [tensor.detach().double().requires_grad_() for tensor in inputs(16)]
    assert torch.autograd.gradcheck(plain_end(EPS, 0.0, torch.float64), tensors)


@pytest.mark.parametrize("used", [0, 1])
def test_one_result_alone(make_end, used):
    tensors = inputs(16, torch.bfloat16)
    results = make_end(EPS, 0.0, torch.bfloat16)(*tensors)
    gradients = torch.autograd.grad(results[used].float().square().sum(), tensors)
    precise = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = torch.autograd.grad(formula(*precise).square().sum(), precise)
    # The sum over a row of x's exact gradient is nearly 0, so only the norm's gradients are compared.
    for gradient, expected in list(zip(gradients, exact, strict=True))[2:]:
        assert rms(gradient - expected) <= 8e-3 * rms(expected)


# On CPUs rates are rounded to multiples of 2^-16, and these are exact.
@pytest.mark.parametrize("rate", [0.125, 0.3125])
def test_dropout(make_end, rate):
    x, _, weight, bias = inputs(512, shape=(4, 10))
    # Without the norm's scale, the largest change of a row shows which elements were kept.
    sublayer_x = torch.full_like(x, 5.0).requires_grad_()
    torch.manual_seed(3)
    normalized, _ = make_end(EPS, rate, torch.bfloat16)(x, sublayer_x, weight, bias)
    (gradient,) = torch.autograd.grad(normalized.square().sum(), [sublayer_x])
    is_kept = gradient != 0
    share = is_kept.double().mean()
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert abs(share - (1 - rate)) <= 4 * deviation
    dropped = torch.where(is_kept, sublayer_x / (1 - rate), 0)
    torch.testing.assert_close(normalized, formula(x, dropped, weight, bias), atol=1e-5, rtol=0)


def test_everything_is_dropped_at_rate_1(make_end):
    x, sublayer_x, weight, bias = inputs(16)
    normalized, _ = make_end(EPS, 1.0, torch.bfloat16)(x, sublayer_x, weight, bias)
    torch.testing.assert_close(normalized, formula(x, torch.zeros_like(x), weight, bias), atol=5e-6, rtol=0)


def test_masks_differ_between_rows_and_calls(make_end):
    x, _, weight, bias = inputs(512, shape=(4, 10))
    end = make_end(EPS, 0.5, torch.float32)

    def mask():
        sublayer_x = torch.full_like(x, 5.0).requires_grad_()
        normalized, _ = end(x, sublayer_x, weight, bias)
        return torch.autograd.grad(normalized.square().sum(), [sublayer_x])[0].flatten(0, 1) != 0

    torch.manual_seed(0)
    first, second = mask(), mask()
    assert len(first.unique(dim=0)) == len(first)
    assert not torch.equal(first, second)
    # Neighbors in a row, and the same column in neighboring rows, are independent.
    for first_mask, second_mask in ((first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), (first, second)):
        agreement = (first_mask == second_mask).double().mean()
        assert abs(agreement - 0.5) <= 4 * 0.5 / first_mask.numel() ** 0.5
    torch.manual_seed(0)
    assert torch.equal(mask(), first)


def test_gradient_checkpointing_replays_the_mask(make_end):
    x, sublayer_x, weight, bias = inputs(64, torch.bfloat16)
    end = make_end(EPS, 0.3, torch.bfloat16)

    def gradients(run):
        torch.manual_seed(0)
        return torch.autograd.grad(weighted(*run()), [x, sublayer_x])

    expected = gradients(lambda: end(x, sublayer_x, weight, bias))
    replayed = gradients(lambda: checkpoint(end, x, sublayer_x, weight, bias, use_reentrant=False))
    assert all(map(torch.equal, replayed, expected))


def test_triton_draws_other_masks_where_the_device_has_another_seed(monkeypatch):
    """Processes that train together have one state of the CPU's generator, and differ in the seed of their GPU."""
    pytest.importorskip("triton")
    from benchmarks.candidates import triton_add_and_norm

    class Generator:
        def __init__(self, seed):
            self.seed = seed

        def initial_seed(self):
            return self.seed

    monkeypatch.setattr(torch.cuda, "default_generators", [Generator(7), Generator(8)])
    seeds = []
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        torch.manual_seed(0)
        seeds.append(triton_add_and_norm._draw_seed(torch.device(device)))
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeds[2]
