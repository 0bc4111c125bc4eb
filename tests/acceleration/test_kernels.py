"""The fast forms of the paper's functions against the formulas that they compute."""

import copy
import itertools
import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSeq2SeqLM
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from hf_vanilla_transformer.acceleration import attention as attention_module
from hf_vanilla_transformer.acceleration import chunked_loss, fast_path_checks, linear_and_dropout, position_tables
from hf_vanilla_transformer.acceleration.attention import attention, attention_mask_without_sync
from hf_vanilla_transformer.acceleration.position_tables import tabulated_positions
from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from hf_vanilla_transformer.model.operations import drop, linear, plain, token_sums
from tests.models import IMPORTED, VOCAB_SIZE, decisive_model, pad, patch_everywhere, sentences, small_model
from tests.rounding import RandomRounding, explained


class CallingLayer(torch.nn.Module):
    """What an attention function sees of the module that calls it."""

    def __init__(self, is_causal=False):
        super().__init__()
        self.is_causal = is_causal


def queries_keys_values(target=5, source=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, target, 4), (2, 3, source, 4), (2, 3, source, 6)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def by_the_formula(query, key, value, mask):
    """Eq. 1 in float64, `(batch, target, heads, d_v)`."""
    query, key, value = (x.detach().double() for x in (query, key, value))
    scores = (query @ key.transpose(-2, -1) / 2).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.fixture
def fused_calls(monkeypatch):
    """The lengths of the keys with which torch's fused attention is called."""
    lengths, fused = [], attention_module.sdpa_attention_forward

    def record(module, query, key, *args, **kwargs):
        lengths.append(key.shape[2])
        return fused(module, query, key, *args, **kwargs)

    monkeypatch.setattr(attention_module, "sdpa_attention_forward", record)
    patch_everywhere(monkeypatch, "has_avx512", lambda: True)
    return lengths


@pytest.mark.processor
class TestAttention:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_it_is_the_formula(self, dtype, fused_calls):
        query, key, value = queries_keys_values(target=9, dtype=dtype)
        mask = torch.rand(2, 1, 9, 7, generator=torch.Generator().manual_seed(1)) < 0.6
        mask[..., 0] = True
        output, weights = attention(CallingLayer(), query, key, value, mask, scaling=0.5)
        assert weights is None
        assert fused_calls == []
        exact = by_the_formula(query, key, value, mask)
        with RandomRounding(dtype):
            rounded = by_the_formula(query, key, value, mask)
        # A row for each head of each query.
        assert explained(output.flatten(0, 2), exact.flatten(0, 2), rounded.flatten(0, 2))
        additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        assert torch.equal(attention(CallingLayer(), query, key, value, additive, scaling=0.5)[0], output)

    @pytest.mark.parametrize("long", [False, True])
    @pytest.mark.parametrize("is_causal", [True, False])
    def test_argument_is_causal_overrides_the_module(self, is_causal, long, fused_calls):
        """Whichever way computes it."""
        length = 200 if long else 5
        query, key, value = queries_keys_values(target=length, source=length)
        with torch.no_grad():
            output, _ = attention(
                CallingLayer(not is_causal), query, key, value, None, scaling=0.5, is_causal=is_causal
            )
        mask = torch.ones(length, length, dtype=torch.bool)
        expected = by_the_formula(query, key, value, mask.tril() if is_causal else mask)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)
        assert bool(fused_calls) == long

    @pytest.mark.parametrize("is_causal", [True, False])
    def test_without_a_mask(self, is_causal):
        query, key, value = queries_keys_values(target=6, source=6)
        output, _ = attention(CallingLayer(is_causal), query, key, value, None, scaling=0.5)
        mask = torch.ones(6, 6, dtype=torch.bool)
        expected = by_the_formula(query, key, value, mask.tril() if is_causal else mask)
        torch.testing.assert_close(output.double(), expected, rtol=1e-6, atol=1e-6)

    def test_single_query_attends_to_all_keys(self):
        query, key, value = queries_keys_values(target=1, source=6)
        output, _ = attention(CallingLayer(is_causal=True), query, key, value, None, scaling=0.5)
        expected = by_the_formula(query, key, value, torch.ones(1, 6, dtype=torch.bool))
        torch.testing.assert_close(output.double(), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_query_without_keys_gives_no_nan(self, dtype):
        query, key, value = queries_keys_values(dtype=dtype)
        # All scores are far below 0.
        query, key = query.abs() * 10, -10 * key.abs()
        mask = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
        output, _ = attention(CallingLayer(), query, key, value, mask, scaling=0.5)
        output.sum().backward()
        assert output.isfinite().all()
        assert value.grad.isfinite().all()

    def test_long_sentences_use_fused_attention(self, fused_calls):
        longest = attention_module._LONGEST_UNFUSED[torch.float32]
        for source in (longest, longest + 1):
            attention(CallingLayer(), *queries_keys_values(source=source), None, scaling=0.5)
        assert fused_calls == [longest + 1]

    def test_without_avx512_fused_attention_is_used(self, fused_calls, monkeypatch):
        patch_everywhere(monkeypatch, "has_avx512", lambda: False)
        attention(CallingLayer(), *queries_keys_values(), None, 0.5)
        assert fused_calls == [7]

    def test_query_without_keys_gets_the_mean_of_values(self, monkeypatch):
        for has_avx512 in (True, False):
            patch_everywhere(monkeypatch, "has_avx512", lambda has_avx512=has_avx512: has_avx512)
            for source in (7, 100):
                query, key, value = queries_keys_values(source=source)
                output, _ = attention(
                    CallingLayer(), query, key, value, torch.zeros(2, 1, 5, source, dtype=torch.bool), 0.5
                )
                torch.testing.assert_close(output, value.mean(dim=2).unsqueeze(1).expand_as(output))

    def test_lower_precision_allows_longer_unfused_attention(self, fused_calls):
        longest = attention_module._LONGEST_UNFUSED[torch.float32]
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            attention(CallingLayer(), *queries_keys_values(source=longest + 1), None, scaling=0.5)
        finally:
            torch.set_float32_matmul_precision(before)
        assert fused_calls == []

    def test_fused_and_unfused_gradients_agree(self, fused_calls, monkeypatch):
        mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
        mask[1, :, :, 4:] = False
        results = []
        for longest in (7, 6):
            monkeypatch.setattr(attention_module, "_LONGEST_UNFUSED", {torch.float32: longest})
            inputs = queries_keys_values()
            output, _ = attention(CallingLayer(), *inputs, mask, scaling=0.5)
            output.square().sum().backward()
            results.append([output, *(x.grad for x in inputs)])
        assert fused_calls == [7]
        for product, fused in zip(*results, strict=True):
            torch.testing.assert_close(product, fused, rtol=1e-5, atol=1e-5)

    @torch.no_grad()
    def test_dropout_of_attention_weights(self):
        query, key, _ = queries_keys_values()
        # Each value has a channel of its own, so the output is the weights.
        value, rate = torch.eye(7).expand(2, 3, 7, 7), 0.3
        weights = by_the_formula(query, key, value, torch.ones(5, 7, dtype=torch.bool))
        torch.manual_seed(0)
        outputs = [attention(CallingLayer(), query, key, value, None, scaling=0.5, dropout=rate)[0] for _ in range(200)]
        outputs = torch.stack(outputs).double()
        is_kept = outputs != 0
        torch.testing.assert_close(
            outputs[is_kept], (weights / (1 - rate)).expand_as(outputs)[is_kept], rtol=1e-4, atol=0
        )
        assert abs((~is_kept).double().mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / is_kept.numel())

    def test_default_attention_of_models(self, fused_calls):
        model = small_model()
        assert model.config._attn_implementation == "vanilla_transformer"
        source = torch.stack(sentences(6, 6))
        model(input_ids=source, labels=source)
        assert fused_calls == []

    @pytest.mark.parametrize("name", ["eager", "sdpa"])
    def test_named_attention_is_used(self, name, tmp_path, monkeypatch):
        monkeypatch.setattr(attention_module, "attention", None)
        small_model().save_pretrained(tmp_path)
        for model in (
            small_model(attn_implementation=name),
            AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=name),
        ):
            source = torch.stack(sentences(6, 6))
            assert model(input_ids=source, labels=source).loss.isfinite()
            assert model.config._attn_implementation == name
            assert model.model.decoder.layers[0].encoder_attn.config._attn_implementation == name

    @pytest.mark.compiles
    def test_compiled_attention_takes_any_length(self):
        graphs = CompileCounter()
        compiled = torch.compile(
            lambda query, key, value: attention(CallingLayer(), query, key, value, None, scaling=0.5)[0],
            backend=graphs,
            fullgraph=True,
            dynamic=True,
        )
        for source in (7, attention_module._LONGEST_UNFUSED[torch.float32] + 1):
            query, key, value = queries_keys_values(source=source)
            expected, _ = attention(CallingLayer(), query, key, value, None, scaling=0.5)
            torch.testing.assert_close(compiled(query, key, value), expected)
        assert graphs.frame_count == 1


@pytest.fixture(scope="class")
def ones():
    return torch.ones(36_000_001)


class TestMaskWithoutSync:
    @pytest.fixture
    def masks(self):
        """`(batch, keys)`: with padding on both sides, and without padding."""
        padded = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
        return [padded, torch.ones_like(padded)]

    @pytest.mark.parametrize("queries", [1, 5, 7])
    @pytest.mark.parametrize("mask_function", [causal_mask_function, bidirectional_mask_function])
    def test_mask_equals_that_of_transformers(self, monkeypatch, masks, mask_function, queries):
        patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: False)
        for mask in masks:
            sizes = {"batch_size": 3, "q_length": queries, "kv_length": 5, "mask_function": mask_function}
            expected = sdpa_mask(attention_mask=mask, allow_is_causal_skip=False, **sizes)
            skips = {"allow_is_causal_skip": True, "allow_is_bidirectional_skip": True}
            assert torch.equal(attention_mask_without_sync(attention_mask=mask, **skips, **sizes), expected)

    def test_longer_keys_than_the_mask(self, monkeypatch, masks):
        """As of a static cache."""
        patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: False)
        sizes = {"batch_size": 3, "q_length": 5, "kv_length": 9, "mask_function": bidirectional_mask_function}
        expected = sdpa_mask(attention_mask=masks[0], allow_is_causal_skip=False, **sizes)
        assert torch.equal(attention_mask_without_sync(attention_mask=masks[0], **sizes), expected)

    @pytest.mark.parametrize("on_cpu", [True, False])
    @pytest.mark.parametrize("mask_function", [causal_mask_function, bidirectional_mask_function])
    def test_mask_is_left_out_on_cpus_only(self, monkeypatch, masks, mask_function, on_cpu):
        patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: on_cpu)
        options = {"batch_size": 3, "q_length": 5, "kv_length": 5, "mask_function": mask_function}
        options["allow_is_causal_skip"] = mask_function is causal_mask_function
        options["allow_is_bidirectional_skip"] = mask_function is bidirectional_mask_function
        assert attention_mask_without_sync(attention_mask=None, **options) is None
        assert (attention_mask_without_sync(attention_mask=masks[1], **options) is None) == on_cpu


class TestDropout:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("rate", [0.1, 0.3, 1 / 3, 0.001, 0.999])
    def test_the_mean_rate(self, ones, rate, dtype):
        torch.manual_seed(0)
        output = drop(ones.to(dtype), rate)
        # 2e-4 is the promise; four standard deviations of the sample are at most 3.4e-4.
        spread = 4 * math.sqrt(rate * (1 - rate) / len(ones))
        assert abs((output == 0).sum().item() / len(ones) - rate) < min(2e-4, spread + 2**-17)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
    def test_scale_follows_from_the_rounded_rate(self, dtype):
        torch.manual_seed(0)
        x = torch.randn(301, 7, dtype=dtype)
        output = drop(x, 0.3)
        assert output.dtype == dtype
        is_kept = output != 0
        assert 0.6 < is_kept.double().mean() < 0.8
        really_kept = 1 - round(0.3 * 2**16) / 2**16
        torch.testing.assert_close(output[is_kept], (x / really_kept)[is_kept])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_each_position_is_dropped_at_the_rate(self, dtype):
        torch.manual_seed(0)
        draws, x = 20_000, torch.ones(3, 13, dtype=dtype)
        dropped = sum((drop(x, 0.1) == 0).double() for _ in range(draws)) / draws
        assert (dropped - 0.1).abs().max() < 5 * math.sqrt(0.1 * 0.9 / draws)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("rate", [0.1, 0.5])
    def test_positions_and_calls_are_independent(self, rate, dtype):
        torch.manual_seed(0)
        draws, x = 4_000, torch.ones(50, dtype=dtype)
        # Two layers one after the other, many times: correlations between any two of their positions.
        keep_masks = torch.stack([torch.cat([drop(x, rate), drop(x, rate)]) for _ in range(draws)]).T.float()
        correlations = torch.corrcoef(keep_masks) - torch.eye(100)
        assert correlations.abs().max() < 5.5 / math.sqrt(draws)

    def test_each_dropout_of_a_model_draws_its_own_mask(self, monkeypatch):
        drawn, draw_keep = [], linear_and_dropout._draw_keep

        def record(*args):
            drawn.append(draw_keep(*args))
            return drawn[-1]

        monkeypatch.setattr(linear_and_dropout, "_draw_keep", record)
        source = torch.stack(sentences(6, 6))
        model = small_model(dropout=0.5).train()
        model(input_ids=source, labels=source)
        # Of the embeddings of both stacks, and of two sub-layers of each encoder layer and three of each decoder layer.
        assert len(drawn) == 2 + 2 * model.config.encoder_layers + 3 * model.config.decoder_layers
        assert all(not torch.equal(first, second) for first, second in itertools.combinations(drawn, 2))

    def test_default_device_of_torch_changes_nothing(self):
        x = torch.ones(8, 8)
        torch.manual_seed(1)
        expected = drop(x, 0.5)
        torch.manual_seed(1)
        with torch.device("meta"):
            assert torch.equal(drop(x, 0.5), expected)

    def test_the_seed_decides(self):
        x = torch.ones(1000)
        torch.manual_seed(1)
        first, second = drop(x, 0.5), drop(x, 0.5)
        assert not torch.equal(first, second)
        torch.manual_seed(1)
        assert torch.equal(first, drop(x, 0.5))
        assert torch.equal(second, drop(x, 0.5))

    def test_0_and_1_are_exact(self):
        x = torch.randn(10)
        assert drop(x, 0.0) is x
        assert drop(x, 0.5, training=False) is x
        assert torch.equal(drop(x, 1.0), torch.zeros(10))

    def test_rate_too_small_for_16_bits(self, ones):
        torch.manual_seed(0)
        # 36 of 36 million numbers on average.
        assert 10 < (drop(ones, 1e-6) == 0).sum() < 80

    def test_views_and_empty_tensors(self):
        torch.manual_seed(0)
        x = torch.randn(6, 5)
        output = drop(x.T, 0.5)
        is_kept = output != 0
        torch.testing.assert_close(output[is_kept], 2 * x.T[is_kept])
        assert drop(torch.ones(0, 3), 0.5).shape == (0, 3)

    def test_torch_func(self):
        torch.manual_seed(0)
        rate, x = 0.3, torch.ones(10_000)
        gradient = torch.func.grad(lambda x: drop(x, rate).sum())(x)
        is_kept = gradient != 0
        assert abs((~is_kept).double().mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / len(x))
        torch.testing.assert_close(gradient[is_kept], (x / (1 - rate))[is_kept])

    def test_dropout_gradients(self):
        x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

        def dropped(x):
            torch.manual_seed(3)
            return drop(x, 0.4)

        assert torch.autograd.gradcheck(dropped, x)
        assert torch.autograd.gradgradcheck(dropped, x)


def states_weight_labels(rows=(3, 19), vocabulary=50, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(*rows, 16, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(vocabulary, 16, generator=generator, dtype=dtype).requires_grad_()
    labels = torch.randint(vocabulary, rows, generator=generator)
    labels[0, 4:] = -100
    return states, weight, labels


def plain_loss(states, weight, labels, label_smoothing, bias=0):
    logits = states @ weight.T + bias
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing, reduction="sum"
    )


class LargestTensor(TorchDispatchMode):
    """Watches how many numbers the largest tensor has that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


def loss_of_states(*args, **kwargs):
    return chunked_loss.chunked_smoothed_cross_entropy(*args, **kwargs)[0]


@pytest.mark.processor
class TestLossOfStates:
    @pytest.fixture(params=["CPU", "accelerator"], autouse=True)
    def way(self, request, monkeypatch):
        """Compute it as on each kind of device, with tensors on the CPU."""
        if request.param == "accelerator":
            patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: False)

    @pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
    @pytest.mark.parametrize("rows_by_d_model", [0, 1, 2])
    def test_loss_equals_cross_entropy_of_torch(self, monkeypatch, label_smoothing, rows_by_d_model):
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS", 7)
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS_PER_D_MODEL", rows_by_d_model)
        states, weight, labels = states_weight_labels()
        loss = loss_of_states(states, weight, labels, label_smoothing)
        expected = plain_loss(states, weight, labels, label_smoothing)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        gradients = torch.autograd.grad(3 * loss, (states, weight))
        for ours, theirs in zip(gradients, torch.autograd.grad(3 * expected, (states, weight)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

    def test_with_a_bias(self, monkeypatch):
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS", 7)
        states, weight, labels = states_weight_labels()
        bias = torch.linspace(-1, 1, len(weight), dtype=weight.dtype).requires_grad_()
        parts = (states, weight, bias)
        loss = loss_of_states(states, weight, labels, 0.1, bias=bias)
        expected = plain_loss(states, weight, labels, 0.1, bias)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        gradients = zip(torch.autograd.grad(3 * loss, parts), torch.autograd.grad(3 * expected, parts), strict=True)
        for ours, theirs in gradients:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        loss_of_states(states.detach(), weight.detach(), labels, 0.1, bias=bias).backward()
        assert bias.grad.any()
        with torch.no_grad():
            alone = loss_of_states(states, weight, labels, 0.1, bias=bias)
        torch.testing.assert_close(alone, expected.detach(), rtol=1e-12, atol=0)

    def test_sums_equal_those_of_the_logits(self, monkeypatch):
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS", 7)
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS_PER_D_MODEL", 0)
        states, weight, labels = states_weight_labels()
        logits = states @ weight.T
        # Some labels must be right.
        labels = labels.where((labels == -100) | (torch.arange(labels.shape[1]) % 3 > 0), logits.argmax(dim=-1))
        _, sums = chunked_loss.chunked_smoothed_cross_entropy(states, weight, labels, 0.1)
        right = (logits.argmax(dim=-1) == labels).sum()
        assert 0 < right < (labels != -100).sum()
        expected = torch.stack([plain_loss(states, weight, labels, 0.0), right, (labels != -100).sum()])
        torch.testing.assert_close(sums, expected.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(token_sums(logits, labels).sum(dim=0), sums, rtol=1e-12, atol=0)
        assert not sums.requires_grad

    def test_in_float32_to_1e_5(self):
        states, weight, labels = states_weight_labels((8, 100), 3000, torch.float32)
        loss = loss_of_states(states, weight, labels, 0.1)
        expected = plain_loss(states, weight, labels, 0.1)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        gradients = torch.autograd.grad(loss, (states, weight))
        for ours, theirs in zip(gradients, torch.autograd.grad(expected, (states, weight)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    def test_half_precision_sums_in_float32(self):
        states, weight, labels = states_weight_labels((8, 100), 300, torch.float32)
        exact = plain_loss(states, weight, labels, 0.1)
        exact_gradients = torch.autograd.grad(exact, (states, weight))
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of_states(states, weight, labels, 0.1)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, exact, rtol=1e-3, atol=0)
        for ours, theirs in zip(torch.autograd.grad(loss, (states, weight)), exact_gradients, strict=True):
            assert ours.dtype == torch.float32
            assert (ours - theirs).norm() < 0.02 * theirs.norm()

    def test_the_logits_are_never_all_in_memory(self, monkeypatch):
        monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS", 1)
        states, weight, labels = states_weight_labels((20, 50), 500, torch.float32)
        with LargestTensor() as largest:
            loss_of_states(states, weight, labels, 0.1).backward()
        assert largest.numbers <= 2 * 16 * 500
        with LargestTensor() as largest:
            plain_loss(states, weight, labels, 0.1)
        assert largest.numbers == 20 * 50 * 500

    def test_at_most_512_rows_of_logits_are_in_memory(self):
        states, weight, labels = states_weight_labels((40, 50), 500, torch.float32)
        with LargestTensor() as largest:
            loss_of_states(states, weight, labels, 0.1).backward()
        assert largest.numbers <= 512 * 500

    def test_no_gradient_is_computed_without_grad_mode(self, monkeypatch):
        states, weight, labels = states_weight_labels()
        expected = loss_of_states(states, weight, labels, 0.1)
        products, linear = [], torch.nn.functional.linear
        monkeypatch.setattr(torch.nn.functional, "linear", lambda *args: products.append(args) or linear(*args))
        with torch.no_grad():
            loss = loss_of_states(states, weight, labels, 0.1)
        assert len(products) == 1
        assert loss == expected.detach()

    def test_only_requested_gradients_are_computed(self):
        states, weight, labels = states_weight_labels()
        loss_of_states(states, weight.detach(), labels, 0.1).backward()
        frozen = states.grad
        states.grad = None
        loss_of_states(states, weight, labels, 0.1).backward()
        torch.testing.assert_close(states.grad, frozen)
        assert not loss_of_states(states.detach(), weight.detach(), labels, 0.1).requires_grad

    def test_no_labels_at_all(self):
        states, weight, labels = states_weight_labels()
        loss = loss_of_states(states, weight, torch.full_like(labels, -100), 0.1)
        loss.backward()
        assert loss == 0
        assert (weight.grad == 0).all()


def training_step(model, skip_logits=True, **kwargs):
    source, mask = pad(sentences(9, 4))
    labels, _ = pad(sentences(6, 3, seed=1))
    labels[1, 3:] = -100
    output = model(input_ids=source, attention_mask=mask, labels=labels, skip_logits=skip_logits, **kwargs)
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return output, gradients


class TestSkippingLogits:
    @pytest.mark.parametrize("tie_word_embeddings", [True, False])
    @pytest.mark.parametrize("num_items_in_batch", [None, 20])
    def test_loss_and_gradients_are_the_same(self, tie_word_embeddings, num_items_in_batch):
        model = small_model(dropout=0.0, tie_word_embeddings=tie_word_embeddings).train()
        skipped, gradients = training_step(model, num_items_in_batch=num_items_in_batch)
        whole, expected = training_step(model, skip_logits=False, num_items_in_batch=num_items_in_batch)
        assert skipped.logits is None
        assert whole.logits.shape == (2, 6, VOCAB_SIZE)
        torch.testing.assert_close(skipped.loss, whole.loss, rtol=1e-6, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("is_training", [True, False])
    def test_skip_logits_leaves_out_logits(self, is_training):
        model = small_model(dropout=0.0).train(is_training)
        source = torch.stack(sentences(5, 5))
        whole, skipped = (
            model(input_ids=source, labels=source),
            model(input_ids=source, labels=source, skip_logits=True),
        )
        assert whole.logits is not None
        assert whole[1] is whole.logits
        assert skipped.logits is None
        torch.testing.assert_close(skipped.loss, whole.loss)
        # Without labels there is no loss, so there are logits.
        assert model(input_ids=source, decoder_input_ids=source, skip_logits=True).logits is not None

    @pytest.mark.parametrize(
        "change", ["hook", "pre-hook", "global hook", "parametrization", "subclass", "forward", "loss"]
    )
    def test_modified_output_projection_is_called(self, change, request):
        model = small_model(dropout=0.0, tie_word_embeddings=False).train()
        plain = training_step(model)[0].loss
        if change == "hook":
            model.lm_head.register_forward_hook(lambda module, args, output: output * 2)
        elif change == "pre-hook":
            model.lm_head.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        elif change == "global hook":
            doubling = register_module_forward_hook(
                lambda module, args, output: output * 2 if module is model.lm_head else None
            )
            request.addfinalizer(doubling.remove)
        elif change == "parametrization":
            torch.nn.utils.parametrizations.weight_norm(model.lm_head)
            model.lm_head.parametrizations.weight.original0.data.mul_(2)
        elif change == "subclass":
            model.lm_head = Doubling(model.lm_head)
        elif change == "forward":
            forward = model.lm_head.forward
            model.lm_head.forward = lambda states: 2 * forward(states)
        else:
            model.loss_function = lambda logits, labels, *args, **kwargs: logits.square().mean()
        skipped, whole = training_step(model)[0], training_step(model, skip_logits=False)[0]
        assert skipped.logits is None
        torch.testing.assert_close(skipped.loss, whole.loss)
        assert abs(skipped.loss - plain) > 1e-3

    def test_a_label_outside_the_vocabulary_is_named(self):
        model = small_model().train()
        source = torch.stack(sentences(5, 5))
        labels = source.clone()
        labels[0, 0] = VOCAB_SIZE
        for skip_logits in (True, False):
            with pytest.raises(ValueError, match=rf"to {VOCAB_SIZE}, but the target vocabulary has ids 0 to"):
                model(input_ids=source, labels=labels, decoder_input_ids=source, skip_logits=skip_logits)


class Doubling(torch.nn.Linear):
    """A matrix whose outputs are doubled."""

    def __init__(self, linear):
        super().__init__(linear.in_features, linear.out_features, bias=False)
        self.weight = linear.weight

    def forward(self, states):
        return 2 * super().forward(states)


@pytest.fixture
def onednn_calls(monkeypatch):
    """How often oneDNN is asked for a product; it is for the smallest ones, too."""
    calls, product = [], linear_and_dropout.onednn_linear

    def record(*args):
        calls.append(args)
        return product(*args)

    for module in (linear_and_dropout, chunked_loss):
        monkeypatch.setattr(module, "onednn_linear", record)
    monkeypatch.setattr(linear_and_dropout, "_SMALLEST_FOR_ONEDNN", 1)
    patch_everywhere(monkeypatch, "has_avx512", lambda: True)
    return calls


@pytest.mark.processor
class TestLinear:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("shape", [(7, 20), (3, 5, 20), (1, 20)])
    def test_linear_equals_the_layer(self, onednn_calls, bias, shape):
        torch.manual_seed(0)
        layer = torch.nn.Linear(20, 30, bias=bias)
        inputs = torch.randn(shape, requires_grad=True)
        output, expected = linear(layer, inputs), layer(inputs)
        assert len(onednn_calls) == 1
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
        leaves = [inputs, *layer.parameters()]
        gradients = torch.autograd.grad(output.square().sum(), leaves)
        for ours, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), leaves), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("frozen", ["weight", "input", None])
    def test_only_tensors_for_gradients_are_saved(self, onednn_calls, frozen):
        layer, inputs, saved_shapes = torch.nn.Linear(20, 30), torch.randn(7, 20, requires_grad=frozen != "input"), []
        layer.weight.requires_grad_(frozen != "weight")
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved_shapes.append(x.shape) or x, lambda x: x):
            output = linear(layer, inputs)
        assert len(onednn_calls) == 1
        shapes = {"weight": [(30, 20)], "input": [(7, 20)], None: [(7, 20), (30, 20)]}[frozen]
        assert saved_shapes == shapes
        leaves = [tensor for tensor in (inputs, *layer.parameters()) if tensor.requires_grad]
        expected = torch.autograd.grad(layer(inputs).square().sum(), leaves)
        for ours, theirs in zip(torch.autograd.grad(output.square().sum(), leaves), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    def test_second_derivatives(self, onednn_calls):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 3)
        inputs = torch.randn(5, 4, requires_grad=True)
        penalties = []
        for output in (linear(layer, inputs), layer(inputs)):
            (gradient,) = torch.autograd.grad(output.pow(3).sum(), inputs, create_graph=True)
            penalties.append(torch.autograd.grad(gradient.square().sum(), layer.weight)[0])
        torch.testing.assert_close(*penalties, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("change", ["half", "double", "medium", "autocast", "disabled", "small", "AVX2"])
    def test_onednn_is_not_called(self, onednn_calls, monkeypatch, change):
        layer, inputs = torch.nn.Linear(4, 3), torch.ones(5, 4)
        if change in ("half", "double"):
            dtype = torch.bfloat16 if change == "half" else torch.float64
            linear(layer.to(dtype), inputs.to(dtype))
        elif change == "medium":
            before = torch.get_float32_matmul_precision()
            try:
                torch.set_float32_matmul_precision("medium")
                linear(layer, inputs)
            finally:
                torch.set_float32_matmul_precision(before)
        elif change == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                linear(layer, inputs)
        elif change == "disabled":
            with torch.backends.mkldnn.flags(enabled=False):
                linear(layer, inputs)
        elif change == "small":
            monkeypatch.setattr(linear_and_dropout, "_SMALLEST_FOR_ONEDNN", 5 * 4 * 3 + 1)
            linear(layer, inputs)
        else:
            patch_everywhere(monkeypatch, "has_avx512", lambda: False)
            linear(layer, inputs)
        assert onednn_calls == []

    @pytest.mark.parametrize(
        ("backend", "precision", "uses_onednn"),
        [(torch.backends.cuda.matmul, "tf32", True), (torch.backends.mkldnn.matmul, "bf16", False)],
    )
    def test_newer_precision_settings_of_torch(self, onednn_calls, backend, precision, uses_onednn):
        """After one of them torch.get_float32_matmul_precision() raises RuntimeError."""
        before, ids, model = backend.fp32_precision, torch.tensor([[5, 6, 7, 2]]), small_model().train()
        try:
            backend.fp32_precision = precision
            with pytest.raises(RuntimeError, match="mix"):
                torch.get_float32_matmul_precision()
            linear(torch.nn.Linear(4, 3), torch.ones(5, 4))
            assert bool(onednn_calls) == uses_onednn
            model(input_ids=ids, labels=ids).loss.backward()
            assert model.eval().generate(ids, max_new_tokens=3).shape[0] == 1
        finally:
            backend.fp32_precision = before
        assert torch.get_float32_matmul_precision() == "highest"

    def test_gradients_of_a_model_with_and_without_onednn(self, onednn_calls):
        model = small_model(dropout=0.0).train()
        fast, gradients = training_step(model)
        assert onednn_calls
        onednn_calls.clear()
        with torch.backends.mkldnn.flags(enabled=False):
            plain, expected = training_step(model)
        assert onednn_calls == []
        torch.testing.assert_close(fast.loss, plain.loss, rtol=1e-6, atol=0)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("skip_logits", [True, False])
    def test_torch_func(self, onednn_calls, training, skip_logits):
        model = small_model(dropout=0.0 if training else 0.1).train(training)
        source = torch.stack(sentences(5, 5))
        parameters = dict(model.named_parameters())

        def loss(parameters):
            batch = {"input_ids": source, "labels": source, "skip_logits": skip_logits}
            return torch.func.functional_call(model, parameters, kwargs=batch).loss

        gradients = torch.func.grad(loss)(parameters)
        model(input_ids=source, labels=source, skip_logits=skip_logits).loss.backward()
        torch.testing.assert_close(
            gradients["model.encoder.layers.0.fc1.weight"], model.model.encoder.layers[0].fc1.weight.grad
        )

    @pytest.mark.parametrize("skip_logits", [True, False])
    def test_torch_func_by_inputs(self, skip_logits):
        model = small_model(dropout=0.0).train()
        source = torch.stack(sentences(5, 5))
        embeds = model.get_input_embeddings()(source).detach().requires_grad_()

        def loss(embeds):
            return model(inputs_embeds=embeds, labels=source, skip_logits=skip_logits).loss

        gradient = torch.func.grad(loss)(embeds)
        torch.testing.assert_close(gradient, torch.autograd.grad(loss(embeds), embeds)[0])


FORMULA = plain(sinusoidal_positions)


@pytest.fixture
def tables(monkeypatch):
    """The tables of a process that has made none."""
    monkeypatch.setattr(position_tables, "_tables", {})
    return position_tables._tables


@pytest.fixture
def computed(monkeypatch):
    """The numbers of positions that the formula computes."""
    counts = []

    def count(position_ids, *args):
        counts.append(position_ids.numel())
        return FORMULA(position_ids, *args)

    monkeypatch.setattr(position_tables, "plain", lambda operation: count)
    return counts


class TestTabulatedPositions:
    @pytest.mark.parametrize("first", [0, 1, 99_000])
    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (3, 1), (5, 7), (64, 32)])
    def test_it_is_the_formula(self, tables, first, shape):
        positions = torch.randint(first, first + shape[1], shape, generator=torch.Generator().manual_seed(0))
        bound = first + shape[1]
        for divisor in (64, 62, None):
            assert torch.equal(tabulated_positions(positions, 64, divisor, bound), FORMULA(positions, 64, divisor))
        assert bool(tables) == (first < 9000)

    @pytest.mark.usefixtures("tables")
    def test_a_table_is_computed_once_and_doubles(self, computed):
        position_ids = torch.arange(9)[None]
        for bound in (9, 512, 513, 1500, 9, 8192):
            tabulated_positions(position_ids, 8, bound=bound)
        assert computed == [512, 1024, 2048, 8192]
        tabulated_positions(position_ids, 16, bound=9)
        assert computed == [512, 1024, 2048, 8192, 512]
        # Beyond the largest table, and where only a tensor holds the bound.
        for bound in (8193, None):
            tabulated_positions(position_ids, 8, bound=bound)
        assert computed[5:] == [9, 9]

    def test_a_table_of_inference_serves_training(self, tables):
        position_ids = torch.arange(9)[None]
        with torch.inference_mode():
            tabulated_positions(position_ids, 8, bound=9)
        assert len(tables) == 1
        x = torch.zeros(1, 9, 8, requires_grad=True)
        (x + tabulated_positions(position_ids, 8, bound=9)).square().sum().backward()
        torch.testing.assert_close(x.grad, 2 * FORMULA(position_ids, 8))

    @pytest.mark.usefixtures("tables")
    def test_a_mode_around_the_first_call_does_not_change_the_table(self):
        position_ids = torch.arange(9)[None]
        with RandomRounding(torch.bfloat16):
            tabulated_positions(position_ids, 8, bound=9)
        assert torch.equal(tabulated_positions(position_ids, 8, bound=9), FORMULA(position_ids, 8))

    def test_no_table_where_operations_are_recorded(self, tables):
        position_ids = torch.arange(9)[None]

        def compute(position_ids):
            return sinusoidal_positions(position_ids, 8, bound=9)

        compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(position_ids), FORMULA(position_ids, 8))
        with FakeTensorMode():
            assert compute(torch.arange(9)[None]).shape == (1, 9, 8)
        assert tables == {}

    def test_a_table_for_each_device(self, tables):
        for device in ("cpu", "meta"):
            position_ids = torch.arange(9, device=device)[None]
            assert tabulated_positions(position_ids, 8, bound=9).device.type == device
        assert len(tables) == 2

    def test_no_table_belongs_to_a_model(self, tables):
        model = small_model()
        source = torch.stack(sentences(5, 5))
        before = pickle.dumps(model)
        logits = model(input_ids=source, decoder_input_ids=source).logits
        assert len(tables) == 1
        assert len(pickle.dumps(model)) == len(before)
        assert {*model.state_dict()} == {*pickle.loads(before).state_dict()}
        again = copy.deepcopy(model)(input_ids=source, decoder_input_ids=source).logits
        assert torch.equal(again, logits)

    def test_decoding_with_and_without_tables(self, tables, monkeypatch):
        """With the cache of each kind, and an offset of the first position."""
        model = decisive_model(**IMPORTED)
        source = torch.stack(sentences(5, 5))
        settings = {"num_beams": 1, "max_new_tokens": 12}
        actual = model.generate(source, **settings)
        static = model.generate(source, cache_implementation="static", disable_compile=True, **settings)
        assert len(tables) == 1
        without_tables(monkeypatch)
        expected = model.generate(source, **settings)
        assert torch.equal(actual, expected)
        assert torch.equal(static, expected)

    @pytest.mark.parametrize("bound", [None, 9000])
    def test_without_a_table_cpus_compute_each_position_once(self, computed, tables, bound):
        position_ids = torch.tensor([[8990, 8991, 8992], [8991, 8992, 8993]])
        actual = tabulated_positions(position_ids, 8, bound=bound)
        assert computed == [4]
        assert tables == {}
        assert torch.equal(actual, FORMULA(position_ids, 8))


def without_tables(monkeypatch):
    monkeypatch.setattr(position_tables, "_LARGEST_TABLE", 0)


@pytest.mark.processor
class TestHalfPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("bias", [True, False])
    def test_a_linear_layer_is_rounded_once(self, dtype, bias):
        torch.manual_seed(0)
        layer = torch.nn.Linear(20, 30, bias=bias).to(dtype)
        inputs = torch.randn(3, 5, 20).to(dtype).requires_grad_()
        output, exact = linear(layer, inputs), copy.deepcopy(layer).double()
        exact_output = exact(inputs.double())
        torch.testing.assert_close(output, exact_output.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
        gradients = torch.autograd.grad(output.double().square().sum(), [inputs, *layer.parameters()])
        expected = torch.autograd.grad(exact_output.square().sum(), [inputs, *exact.parameters()])
        for ours, theirs in zip(gradients, expected, strict=True):
            assert ours.dtype == dtype
            assert (ours - theirs).norm() < 2 * torch.finfo(dtype).eps * theirs.norm()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_rounding_explains_the_errors_of_a_model(self, dtype):
        model, (ids, mask) = small_model().to(dtype), pad(sentences(9, 12, 10, 7, 11))
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
        exact = copy.deepcopy(model).double()
        exact.set_attn_implementation("eager")
        actual = model(**inputs).logits
        assert actual.dtype == dtype
        with torch.no_grad():
            expected = exact(**inputs).logits
            with RandomRounding(dtype):
                rounded = exact(**inputs).logits
        assert explained(actual, expected, rounded)

    @pytest.mark.parametrize(
        ("supported", "amx", "instructions", "intel", "expected"),
        [
            (True, True, True, True, True),
            (True, False, True, True, False),
            (True, False, True, False, True),
            (True, False, False, False, False),
            (True, False, False, True, False),
            (False, True, True, False, False),
        ],
    )
    def test_cpu_is_faster_in_bfloat16(self, monkeypatch, supported, amx, instructions, intel, expected):
        monkeypatch.setattr(fast_path_checks, "cpu_supports_matmul_in", lambda dtype: supported)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
        monkeypatch.setattr(fast_path_checks, "_is_intel_cpu", lambda: intel)
        # `__wrapped__` is the function without its cache.
        assert fast_path_checks.cpu_is_faster_in_bfloat16.__wrapped__() is expected

    @pytest.mark.parametrize(("vendor", "expected"), [("GenuineIntel", True), ("AuthenticAMD", False)])
    @pytest.mark.parametrize("system", ["Linux", "Windows"])
    def test_is_intel_cpu(self, monkeypatch, tmp_path, system, vendor, expected):
        path = tmp_path / "cpuinfo"
        if system == "Linux":
            path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
        monkeypatch.setattr(fast_path_checks, "Path", lambda name: path)
        monkeypatch.setattr(fast_path_checks.platform, "processor", lambda: f"Family 6 Model 85, {vendor}")
        assert fast_path_checks._is_intel_cpu() is expected

    @pytest.mark.parametrize("supported", [True, False])
    def test_matmuls_that_the_cpu_lacks_warn_once(self, monkeypatch, caplog, supported):
        patch_everywhere(monkeypatch, "cpu_supports_matmul_in", lambda dtype: supported or dtype.itemsize > 2)
        model, ids = small_model(), torch.stack(sentences(5, 5))
        fast_path_checks.warn_of_slow_matmuls.cache_clear()
        try:
            model(input_ids=ids, decoder_input_ids=ids)
            assert caplog.messages == []
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16):
                    model(input_ids=ids, decoder_input_ids=ids)
            assert len(caplog.messages) == (not supported)
            model.half().generate(ids, max_new_tokens=2)
            names = [] if supported else ["bfloat16", "float16"]
            assert [message.split(", so torch")[0] for message in caplog.messages] == [
                f"This CPU has no matmuls in {name}" for name in names
            ]
        finally:
            fast_path_checks.warn_of_slow_matmuls.cache_clear()


@pytest.mark.parametrize(
    ("supported", "dtype", "has"),
    [
        (False, torch.bfloat16, False),
        (False, torch.float16, False),
        (True, torch.bfloat16, True),
        (None, torch.bfloat16, False),
        (False, torch.float32, True),
    ],
)
def test_cpu_supports_matmul_in(monkeypatch, supported, dtype, has):
    ask = None if supported is None else lambda: supported
    operators = {"_is_mkldnn_bf16_supported": ask, "_is_mkldnn_fp16_supported": ask} if ask else {}
    monkeypatch.setattr(linear_and_dropout.torch.ops, "mkldnn", SimpleNamespace(**operators))
    fast_path_checks.cpu_supports_matmul_in.cache_clear()
    try:
        assert fast_path_checks.cpu_supports_matmul_in(dtype) == has
    finally:
        fast_path_checks.cpu_supports_matmul_in.cache_clear()
