"""Attention over packed sentences equals attention of each sentence alone, and so do its gradients."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.candidates.packed_attention import PackedSentences, packed_by_formula
from benchmarks.candidates.triton_support import missing_for_triton
from tests.rounding import rms


HEADS, HEAD_DIM = 2, 16
SCALING = HEAD_DIM**-0.5
# Some tiles of 64 hold many sentences, one sentence takes several, and none begins where a tile does.
TARGETS = [3, 1, 40, 17, 90, 5]
SOURCES = [1, 30, 2, 70, 33, 4]


def by_formula(query, key, value, sentences):
    return packed_by_formula(query, key, value, sentences, SCALING)


def in_triton(query, key, value, sentences):
    reason = missing_for_triton(torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    from benchmarks.candidates.triton_packed_attention import packed_in_triton, ranges_of

    return packed_in_triton(query, key, value, ranges_of(sentences), SCALING)


def kinds():
    targets, sources = torch.tensor(TARGETS), torch.tensor(SOURCES)
    return {
        "self": PackedSentences.from_lengths(sources, sources, is_causal=False),
        "causal": PackedSentences.from_lengths(targets, targets, is_causal=True),
        "cross": PackedSentences.from_lengths(targets, sources, is_causal=False),
    }


def inputs(sentences, dtype):
    generator = torch.Generator().manual_seed(0)
    num_queries, num_keys = int(sentences.query_bounds[-1]), int(sentences.key_bounds[-1])
    shapes = [(tokens, HEADS, HEAD_DIM) for tokens in (num_queries, num_keys, num_keys)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def sentence_by_sentence(query, key, value, sentences):
    outputs = []
    for number in range(len(sentences.query_bounds) - 1):
        queries = slice(*sentences.query_bounds[number : number + 2].tolist())
        keys = slice(*sentences.key_bounds[number : number + 2].tolist())
        heads_first = [query[queries], key[keys], value[keys]]
        output = scaled_dot_product_attention(
            *(tensor.transpose(0, 1) for tensor in heads_first), is_causal=sentences.is_causal
        )
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("attend", [by_formula, in_triton])
# Triton's interpreter cannot multiply matrices in bfloat16.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 2e-3)])
def test_output_and_gradients(kind, attend, dtype, tolerance):
    sentences = kinds()[kind]
    tensors = inputs(sentences, dtype)
    output = attend(*tensors, sentences)
    precise = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = sentence_by_sentence(*precise, sentences)
    assert output.dtype == dtype
    assert rms(output - expected) <= tolerance * rms(expected)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(output, tensors, grad)
    exact = torch.autograd.grad(expected, precise, grad.double())
    for gradient, expected_gradient in zip(gradients, exact, strict=True):
        assert rms(gradient - expected_gradient) <= tolerance * rms(expected_gradient)


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_ranges_of_queries_and_keys_agree(kind):
    sentences = kinds()[kind]
    first, last = sentences.queries_of_keys()
    queries = torch.arange(int(sentences.query_bounds[-1]))[:, None]
    assert torch.equal(sentences.mask(), (queries >= first) & (queries < last))
