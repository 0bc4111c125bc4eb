"""acceleration/fused_loss.py computes the loss of the formula, its gradients, and the sums over tokens."""

import weakref

import pytest
import torch

from benchmarks.support.gpu_timing import launches_of
from benchmarks.support.triton_support import missing_for_triton
from hf_vanilla_transformer.acceleration import fused_loss
from hf_vanilla_transformer.acceleration.chunked_loss import chunked_smoothed_cross_entropy
from hf_vanilla_transformer.acceleration.fused_loss import replace_logits_by_gradient
from hf_vanilla_transformer.model.operations import token_sums
from tests.rounding import rms


BATCH, TARGET, D_MODEL = 3, 5, 16
# A multiple of 8, and sizes for which the matrix gets rows of zeros.
VOCABULARIES = [64, 61, 3]
SMALL_CHUNK = 1024


def fused_smoothed_cross_entropy(*args, replace_logits=replace_logits_by_gradient, chunk_bytes=2**30):
    return fused_loss.fused_smoothed_cross_entropy(*args, replace_logits=replace_logits, chunk_bytes=chunk_bytes)


def triton_replacement():
    reason = missing_for_triton(torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    from hf_vanilla_transformer.acceleration.triton_loss import replace_logits_by_gradient_in_triton

    return replace_logits_by_gradient_in_triton


REPLACEMENTS = {
    "plain": lambda: replace_logits_by_gradient,
    "triton": triton_replacement,
}


@pytest.fixture(params=REPLACEMENTS)
def replace_logits(request):
    return REPLACEMENTS[request.param]()


def inputs(vocabulary, dtype=torch.float32, with_bias=False):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(BATCH, TARGET, D_MODEL, generator=generator).to(dtype)
    weight = (torch.randn(vocabulary, D_MODEL, generator=generator) / 2).to(dtype)
    bias = torch.randn(vocabulary, generator=generator).to(dtype) if with_bias else None
    labels = torch.randint(vocabulary, (BATCH, TARGET), generator=generator)
    labels[0, 3:] = labels[1, 1] = labels[2, 0] = -100
    return states, weight, bias, labels


def by_formula(states, weight, labels, label_smoothing, bias=None):
    logits = torch.nn.functional.linear(states, weight, bias)
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
    )


def with_gradients(function, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss = function(*leaves)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_bytes", [SMALL_CHUNK, 2**30], ids=["chunks", "whole"])
def test_loss_and_gradients_in_float32(replace_logits, vocabulary, label_smoothing, with_bias, chunk_bytes):
    states, weight, bias, labels = inputs(vocabulary, with_bias=with_bias)
    tensors = [states, weight] if bias is None else [states, weight, bias]

    def fused(states, weight, bias=None):
        return fused_smoothed_cross_entropy(
            states, weight, labels, label_smoothing, bias, replace_logits=replace_logits, chunk_bytes=chunk_bytes
        )[0]

    def formula(states, weight, bias=None):
        return by_formula(states, weight, labels, label_smoothing, bias)

    expected = with_gradients(formula, [tensor.double() for tensor in tensors])
    for actual, exact in zip(with_gradients(fused, tensors), expected, strict=True):
        assert actual.dtype == torch.float32
        assert actual.shape == exact.shape
        assert rms(actual - exact) <= 4 * torch.finfo(torch.float32).eps * rms(exact)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_gradients_in_float64(vocabulary):
    states, weight, bias, labels = inputs(vocabulary, torch.float64, with_bias=True)
    leaves = [tensor.requires_grad_() for tensor in (states, weight, bias)]

    def fused(states, weight, bias):
        return fused_smoothed_cross_entropy(states, weight, labels, 0.1, bias, chunk_bytes=SMALL_CHUNK)[0]

    assert torch.autograd.gradcheck(fused, leaves, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits(replace_logits, dtype):
    states, weight, bias, labels = inputs(61, dtype, with_bias=True)
    expected = with_gradients(
        lambda *leaves: by_formula(*leaves[:2], labels, 0.1, leaves[2]),
        [tensor.double() for tensor in (states, weight, bias)],
    )
    actual = with_gradients(
        lambda *leaves: fused_smoothed_cross_entropy(
            *leaves[:2], labels, 0.1, leaves[2], replace_logits=replace_logits, chunk_bytes=SMALL_CHUNK
        )[0],
        [states, weight, bias],
    )
    assert actual[0].dtype == torch.float32
    for value, exact in zip(actual, expected, strict=True):
        assert rms(value - exact) <= 4 * torch.finfo(dtype).eps * rms(exact)


def test_sums_of_tokens(replace_logits):
    states, weight, bias, labels = inputs(61, with_bias=True)
    logits = torch.nn.functional.linear(states, weight, bias)
    # The label of this row has the highest logit.
    labels[1, 2] = logits[1, 2].argmax()
    _, sums = fused_smoothed_cross_entropy(
        states, weight, labels, 0.1, bias, replace_logits=replace_logits, chunk_bytes=SMALL_CHUNK
    )
    expected = token_sums(logits, labels).sum(dim=0)
    assert expected[1] > 0
    torch.testing.assert_close(sums, expected)
    assert torch.equal(sums[1:], expected[1:])


def test_a_vocabulary_of_several_blocks(replace_logits):
    # Two whole blocks of Triton's kernel, and a part of one.
    vocabulary = 2 * 4096 + 9
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([5000, vocabulary - 1, -100])
    expected_logits = logits.clone()
    expected = replace_logits_by_gradient(expected_logits, labels, 0.9)
    actual = replace_logits(logits, labels, 0.9)
    torch.testing.assert_close(logits, expected_logits)
    torch.testing.assert_close(actual, expected)


def test_a_batch_without_labels(replace_logits):
    states, weight, _, labels = inputs(61)
    leaves = [states.requires_grad_(), weight.requires_grad_()]
    loss, sums = fused_smoothed_cross_entropy(
        *leaves, torch.full_like(labels, -100), 0.1, replace_logits=replace_logits
    )
    assert loss == 0
    assert not sums.any()
    for gradient in torch.autograd.grad(loss, leaves):
        assert not gradient.any()


def test_states_without_a_label_may_be_infinite(replace_logits):
    states, weight, _, labels = inputs(61)
    expected = with_gradients(lambda weight: by_formula(states, weight, labels, 0.1), [weight])
    states[labels == -100] = torch.inf
    actual = with_gradients(
        lambda weight: fused_smoothed_cross_entropy(states, weight, labels, 0.1, replace_logits=replace_logits)[0],
        [weight],
    )
    torch.testing.assert_close(actual, expected)


def test_fused_loss_equals_chunked_loss_under_autocast():
    states, weight, bias, labels = inputs(61, with_bias=True)

    def compute(function):
        with torch.autocast("cpu", torch.bfloat16):
            return with_gradients(lambda *leaves: function(*leaves[:2], labels, 0.1, leaves[2])[0], tensors)

    tensors = [states, weight, bias]
    for actual, expected in zip(
        compute(fused_smoothed_cross_entropy), compute(chunked_smoothed_cross_entropy), strict=True
    ):
        assert actual.dtype == expected.dtype == torch.float32
        assert rms(actual - expected) <= 4 * torch.finfo(torch.bfloat16).eps * rms(expected)


def test_no_gradient_for_frozen_weights():
    states, weight, _, labels = inputs(64)
    loss, _ = fused_smoothed_cross_entropy(states, weight.requires_grad_(), labels, 0.1)
    assert torch.autograd.grad(loss, [weight])[0].any()
    with torch.no_grad():
        loss, _ = fused_smoothed_cross_entropy(states, weight, labels, 0.1)
    assert not loss.requires_grad


def test_the_rows_of_a_chunk_follow_from_its_bytes():
    states, weight, _, labels = inputs(64)
    sizes = []

    def replace_logits(logits, labels, label_probability):
        sizes.append(len(logits))
        return replace_logits_by_gradient(logits, labels, label_probability)

    # Four rows of 64 logits with 4 bytes each.
    fused_smoothed_cross_entropy(states, weight, labels, 0.1, replace_logits=replace_logits, chunk_bytes=1024)
    assert sizes == [4, 4, 4, 3]


def test_labels_of_a_slice(replace_logits):
    """They lie apart in memory."""
    states, weight, _, labels = inputs(61)
    every_second = torch.stack([labels, labels.roll(1)], dim=-1).flatten(1)[:, ::2]
    assert not every_second.flatten().is_contiguous()
    assert torch.equal(every_second, labels)
    actual = fused_smoothed_cross_entropy(states, weight, every_second, 0.1, replace_logits=replace_logits)
    expected = fused_smoothed_cross_entropy(states, weight, labels, 0.1)
    torch.testing.assert_close(actual, expected)


def test_one_chunk_of_logits_is_in_memory():
    states, weight, _, labels = inputs(64)
    chunks = []
    alive = []

    def replace_logits(logits, labels, label_probability):
        chunks.append(weakref.ref(logits._base))
        alive.append(sum(chunk() is not None for chunk in chunks))
        return replace_logits_by_gradient(logits, labels, label_probability)

    fused_smoothed_cross_entropy(
        states, weight.requires_grad_(), labels, 0.1, replace_logits=replace_logits, chunk_bytes=SMALL_CHUNK
    )
    assert alive == [1] * 4


def test_the_cpu_never_reads_a_value():
    """On a GPU each value that the CPU reads makes it wait."""
    states, weight, _, labels = inputs(64)

    def run():
        loss, _ = fused_smoothed_cross_entropy(states, weight.requires_grad_(), labels, 0.1)
        loss.backward()

    assert launches_of(run, torch.device("cpu")).syncs == 0
    assert launches_of(lambda: labels.nonzero(), torch.device("cpu")).syncs == 1
