"""The decoder by steps against the model's modules: the same logits, from today's weights, and only where it may be."""

import copy
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, LogitsProcessorList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.acceleration import cpu_decoder as step
from hf_vanilla_transformer.acceleration import cpu_search, prepacked_weights
from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder, supports_cpu_decoder
from tests.generation.by_hand import BOS
from tests.generation.conftest import SENTENCES, ending_model
from tests.models import IMPORTED, decisive_model, pad, patch_everywhere, sentences, small_config, small_model
from tests.rounding import FACTOR, RandomRounding, explained, rms


pytestmark = pytest.mark.processor


@pytest.fixture
def path():
    """These tests choose between steps and modules themselves."""


SHAPES = {
    "as configured": {},
    "d_k = d_v": {"d_k": None, "d_v": None},
    "one head": {"num_heads": 1},
    "learned positions": {"position_embedding_type": "learned", "max_position_embeddings": 45},
    "untied": {"tie_word_embeddings": False},
    "two vocabularies": {"source_vocab_size": 70},
    "no bias": {"attention_bias": False},
    "of another system": IMPORTED,
    "one layer": {"decoder_layers": 1},
}
LENGTH = 40  # Positions get more room on the way.


class Path:
    """A walk through hypotheses as a search would take it, at random."""

    def __init__(self, rows: int, beams: int):
        self.generator = torch.Generator().manual_seed(0)
        self.beams, self.ids = beams, torch.full((rows, 1), BOS)

    def walk(self) -> torch.Tensor:
        """Go on with hypotheses of the same sentences, and with some token; returns the rows that are continued."""
        rows, beams = len(self.ids), self.beams
        picked = torch.randint(beams, (rows,), generator=self.generator) + torch.arange(rows) // beams * beams
        tokens = torch.randint(3, 60, (rows, 1), generator=self.generator)
        self.ids = torch.cat([self.ids[picked], tokens], dim=1)
        return picked


def encode(model, rows, side="right", extra=0):
    ids, mask = pad(rows, side, extra)
    return model.model.encoder(ids, mask).last_hidden_state, mask


def by_modules(model, states, mask, ids, last=None):
    """Logits of the last token, `(rows, vocabulary)`, or of several, `(rows, last, vocabulary)`, without any cache."""
    beams = len(ids) // len(states)
    states, mask = states.repeat_interleave(beams, 0), mask.repeat_interleave(beams, 0)
    logits = model(encoder_outputs=[states], attention_mask=mask, decoder_input_ids=ids, use_cache=False).logits
    return logits[:, -1] if last is None else logits[:, -last:]


# One short sentence, one long one, several, and many.
BATCHES = {"short": (5,), "long": (9,), "several": (7, 3, 5), "many": (7, 3, 5, 6) * 5}


CASES = [("as configured", batch) for batch in BATCHES]
CASES += [(shape, batch) for shape in list(SHAPES)[1:] for batch in ("short", "several")]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("shape", "batch"), CASES)
def test_cpu_decoder_equals_modules(shape, batch, beams):
    assert_steps_equal_the_modules(small_model(**SHAPES[shape]), BATCHES[batch], beams)


@torch.no_grad()
def assert_steps_equal_the_modules(model, lengths, beams):
    states, mask = encode(model, sentences(*lengths), side="left", extra=2)
    decoder, path = CPUDecoder(model, states, mask, beams), Path(len(lengths) * beams, beams)
    for length in range(1, LENGTH):
        log_probs = decoder(path.ids)
        if length % 4 == 0 or length > 30:
            torch.testing.assert_close(log_probs, by_modules(model, states, mask, path.ids), atol=2e-5, rtol=1e-5)
        decoder.reorder(path.walk())


STEPS = 12


@torch.no_grad()
def three_ways(model, exact, lengths=(7, 3, 5), beams=3, levels=None):
    """Logits of the same tokens, `(rows, STEPS, vocabulary)`: by steps, by the modules, and by the reference.

    The reference is `exact`, which holds the same weights in float64. Its logits come twice: as they are, and with
    random rounding to the dtype of `model`, and to so many levels of int8.
    """
    states, mask = encode(model, sentences(*lengths))
    decoder, path, by_steps = CPUDecoder(model, states, mask, beams), Path(len(lengths) * beams, beams), []
    for _ in range(STEPS):
        by_steps.append(decoder(path.ids))
        picked = path.walk()
        decoder.reorder(picked)
        by_steps = [logits[picked] for logits in by_steps]
    ids = path.ids[:, :-1]
    exact.set_attn_implementation("eager")
    wide = states.double()
    reference = by_modules(exact, wide, mask, ids, last=STEPS)
    with RandomRounding(model.dtype, levels):
        rounded = by_modules(exact, wide, mask, ids, last=STEPS)
    return torch.stack(by_steps, dim=1), by_modules(model, states, mask, ids, last=STEPS), reference, rounded


def assert_rounding_explains(by_steps, by_modules, reference, rounded):
    """Both ways are as far from the reference as their roundings make them, and steps no further than modules."""
    assert explained(by_steps, reference, rounded)
    assert explained(by_modules, reference, rounded)
    assert rms(by_steps - reference) <= FACTOR * rms(by_modules - reference)


@pytest.fixture
def without_onednn(monkeypatch):
    monkeypatch.setattr(prepacked_weights._OneDNNLinear, "can_compute", lambda layers: False)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.usefixtures("without_onednn")
def test_cpu_decoder_without_onednn_equals_modules(batch, beams):
    model = small_model()
    assert_steps_equal_the_modules(model, BATCHES[batch], beams)
    assert type(prepacked_weights.pack(model.lm_head)) is prepacked_weights.PackedLinear


@torch.no_grad()
def test_cpu_decoder_cross_attention_class_by_source_length():
    model = small_model()
    lengths = (8, 9)  # Of 4 heads and d_model 32.
    cross_attentions = [
        step.CPUDecoder(model, *encode(model, sentences(length)), 1)._layers[0]._cross_attention for length in lengths
    ]
    assert [type(cross_attention) for cross_attention in cross_attentions] == [step._SingleSentenceCross, step._Cross]


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_cpu_decoder_long_source_and_many_positions(beams):
    model = small_model(decoder_layers=1)
    states, mask = encode(model, sentences(*[3] * 16, 140))
    decoder, path = CPUDecoder(model, states, mask, beams), Path(17 * beams, beams)
    for length in range(1, 140):
        log_probs = decoder(path.ids)
        if length in (1, 120, 128, 129, 139):
            torch.testing.assert_close(log_probs, by_modules(model, states, mask, path.ids), atol=2e-5, rtol=1e-5)
        decoder.reorder(path.walk())


@torch.no_grad()
def test_cpu_decoder_source_of_padding_only():
    model = small_model()
    states, mask = encode(model, sentences(5))
    decoder, path = CPUDecoder(model, states, 0 * mask, 1), Path(1, 1)
    expected = by_modules(model, states, 0 * mask, path.ids)
    torch.testing.assert_close(decoder(path.ids), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_cpu_decoder_select(beams):
    model = small_model()
    states, mask = encode(model, sentences(7, 3, 5, 6))
    decoder, path = CPUDecoder(model, states, mask, beams), Path(4 * beams, beams)
    running = [0, 1, 2, 3]
    for continuing in ([0, 1, 2, 3], [1, 3], [1]):
        for _ in range(3):
            torch.testing.assert_close(
                decoder(path.ids), by_modules(model, states, mask, path.ids), atol=2e-5, rtol=1e-5
            )
            decoder.reorder(path.walk())
        rows = torch.tensor([row for row, sentence in enumerate(running) if sentence in continuing])
        running = continuing
        decoder.select(rows)
        states, mask = states[rows], mask[rows]
        path.ids = path.ids.unflatten(0, (-1, beams))[rows].flatten(0, 1)


@torch.no_grad()
def test_pack_by_two_threads_packs_once(monkeypatch):
    prepacked_weights.forget_packed()
    packed_class = prepacked_weights._choose_class([nn.Linear(8, 8)])
    begin, packs, meeting = packed_class.__init__, [], threading.Barrier(2)

    def begin_slowly(self, *args):
        packs.append(threading.get_ident())
        time.sleep(0.2)
        begin(self, *args)

    def pack(layer):
        meeting.wait()
        return prepacked_weights.pack(layer)

    monkeypatch.setattr(packed_class, "__init__", begin_slowly)
    layer = nn.Linear(8, 8)
    with ThreadPoolExecutor(2) as executor:
        first, second = executor.map(pack, [layer, layer])
    assert first is second
    assert len(packs) == 1


# How a product is made where weights are numbers of float32, whatever this CPU would choose.
KINDS = ["PackedLinear", "_OneDNNLinear", "_Avx2Linear"]


@pytest.fixture
def avx2(monkeypatch):
    """torch reports AVX2 and three threads, and no matrix is too small for any path."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for name in ("_LARGEST_FOR_MKL", "_SMALLEST_TO_SPLIT"):
        monkeypatch.setattr(prepacked_weights, name, 0)


@pytest.mark.parametrize("packed_class", KINDS)
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(6, 12), (7, 12), (6, 3), (6, 4)],
    ids=["columns shared", "columns that cannot be", "rows shared", "rows that cannot be"],
)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("avx2")
@torch.no_grad()
def test_packed_product_equals_the_layer(bias, rows, inputs, outputs, packed_class):
    layer = nn.Linear(inputs, outputs, bias=bias)
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    packed = getattr(prepacked_weights, packed_class)(layer.weight, layer.bias, [layer])
    weights = (None if parameter is None else parameter.double() for parameter in (layer.weight, layer.bias))
    expected = nn.functional.linear(x.double(), *weights)
    for product, expected_product in (
        (packed(x), expected),
        (packed.relu(x), expected.clamp(min=0)),
        (packed.plus(x, residual), expected + residual),
    ):
        torch.testing.assert_close(product.double(), expected_product, atol=1e-6, rtol=1e-6)


PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::addmm", "mkldnn::_linear_pointwise"}


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "product"),
    [
        (1, 128, 60, "aten::baddbmm"),
        (1, 60, 128, "aten::bmm"),
        (1, 64, 60, "aten::addmm"),
        (4, 64, 60, "mkldnn::_linear_pointwise"),
        (4, 8, 60, "aten::addmm"),
    ],
)
@pytest.mark.usefixtures("avx2")
@torch.no_grad()
def test_pack_without_avx512_uses_mkl_for_small_products(monkeypatch, rows, inputs, outputs, product):
    monkeypatch.setattr(prepacked_weights, "_LARGEST_FOR_MKL", 60 * 8)
    monkeypatch.setattr(prepacked_weights, "_SMALLEST_TO_SPLIT", 60 * 128)
    packed, x = prepacked_weights.pack(nn.Linear(inputs, outputs)), torch.randn(rows, inputs)
    with torch.profiler.profile() as profile:
        packed(x)
    assert {event.name for event in profile.events()} & PRODUCTS == {product}


def test_forget_packed():
    layer, x = nn.Linear(8, 6), torch.randn(2, 8)
    packed = weakref.ref(prepacked_weights.pack(layer))
    assert prepacked_weights.pack(layer) is packed()
    prepacked_weights.forget_packed()
    assert packed() is None
    torch.testing.assert_close(prepacked_weights.pack(layer)(x), layer(x))


@torch.no_grad()
def test_cpu_decoder_reorder_frees_slots():
    model = small_model()
    states, mask = encode(model, sentences(7, 3))
    decoder, ids = CPUDecoder(model, states, mask, 4), torch.full((8, 1), BOS)
    first = torch.tensor([0, 0, 0, 0, 4, 4, 4, 4])
    for token in range(60):
        log_probs = decoder(ids)
        if token % 10 == 9:
            torch.testing.assert_close(log_probs, by_modules(model, states, mask, ids), atol=2e-5, rtol=1e-5)
        decoder.reorder(first)
        ids = torch.cat([ids[first], torch.arange(token, token + 8)[:, None] % 60], dim=1)
    # Of each position one place, and all of the last few.
    assert 60 < decoder._slots._num_used_slots < 60 + 4 * 2 * step._MIN_POSITIONS_PER_GROWTH


@pytest.fixture(params=[True, False], ids=["by its products", "without products"])
def products_in_16_bits(request, monkeypatch):
    """Whether the 16-bit matmuls of this CPU are used, if it has any."""
    if not request.param:
        patch_everywhere(monkeypatch, "cpu_supports_matmul_in", lambda dtype: dtype.itemsize > 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=list(BATCHES))
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.usefixtures("products_in_16_bits")
@torch.no_grad()
def test_cpu_decoder_half_precision_errors(beams, lengths, dtype):
    exact = small_model()
    model = copy.deepcopy(exact).to(dtype)
    rows = sentences(*lengths)
    states, mask = encode(model, rows)
    exact_states, _ = encode(exact, rows)
    decoder, path, errors = CPUDecoder(model, states, mask, beams), Path(len(lengths) * beams, beams), []
    for _ in range(12):
        expected = by_modules(exact, exact_states, mask, path.ids)
        both = decoder(path.ids), by_modules(model, states, mask, path.ids)
        errors.append([(log_probs.float() - expected).square().mean() for log_probs in both])
        decoder.reorder(path.walk())
    ours, theirs = torch.tensor(errors).mean(dim=0).sqrt()
    assert 0 < ours <= 1.2 * theirs


class Recorder:
    """A processor that changes nothing and keeps what it sees."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(scores.clone())
        return scores


def scores(model, rows=None, **kwargs):
    """What greedy search compares, `(steps, batch, vocabulary)`, of the first so many sentences, or of all."""
    recorder, (ids, mask) = Recorder(), pad(SENTENCES[:rows])
    processors = LogitsProcessorList([recorder])
    options = {"num_beams": 1, "max_new_tokens": 6, "min_new_tokens": 6, "logits_processor": processors, **kwargs}
    model.generate(ids, attention_mask=mask, **options)
    return torch.stack(recorder.seen)


def plain_scores(model, monkeypatch, **kwargs):
    """The same by the modules alone."""
    with monkeypatch.context() as patch:
        patch.setattr(cpu_search, "supports_cpu_decoder", lambda model: False)
        return scores(model, **kwargs)


def fused_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    ids, mask = pad(SENTENCES)
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def write_through_data(model):
    for parameter in model.parameters():
        parameter.data.add_(0.05)


def write_one_number(model):
    model.model.decoder.layers[1].self_attn.v_proj.weight.data[3, 4] += 1.0


def write_into_numpy(model):
    model.model.decoder.layers[0].self_attn.v_proj.weight.detach().numpy()[0, 0] += 2.0


def load_others(model):
    model.load_state_dict(ending_model(seed=3).state_dict())


def hook(model):
    model.model.decoder.layers[0].fc2.register_forward_hook(lambda module, args, output: output * 1.5)


def hook_on_a_layer(model):
    model.model.decoder.layers[-1].register_forward_pre_hook(lambda module, args: (args[0] * 1.1, *args[1:]))


def weight_norm(model):
    nn.utils.parametrizations.weight_norm(model.model.decoder.layers[0].fc1)
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.parametrizations.weight.original0.mul_(1.5)


def another_forward(model):
    layer = model.model.decoder.layers[1].encoder_attn.q_proj
    layer.forward = lambda x: nn.functional.linear(x, layer.weight * 2, layer.bias)


def another_module(model):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    old = model.model.decoder.layers[0].fc1
    new = Doubled(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.model.decoder.layers[0].fc1 = new


def one_flat_tensor(model):
    """The weights become views of it, at odd places."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach() * 1.1
    nn.utils.vector_to_parameters(torch.cat([flat.new_zeros(1), flat])[1:], model.parameters())


def another_scaling(model):
    model.model.decoder.layers[0].encoder_attn.scaling *= 3


def no_bias(model):
    model.model.decoder.layers[0].self_attn.k_proj.bias = None
    model.model.decoder.layers[0].self_attn.v_proj.bias.data.add_(0.5)


CHANGES = [
    one_flat_tensor,
    another_scaling,
    no_bias,
    fused_step,
    write_through_data,
    write_one_number,
    write_into_numpy,
    load_others,
    hook,
    hook_on_a_layer,
    weight_norm,
    another_forward,
    another_module,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_cpu_decoder_sees_changed_weights(change, monkeypatch):
    model = ending_model()
    before = scores(model)
    torch.testing.assert_close(before, plain_scores(model, monkeypatch), atol=5e-5, rtol=1e-5)
    change(model)
    after = scores(model)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, plain_scores(model, monkeypatch), atol=5e-5, rtol=1e-5)


WRITES = pytest.mark.parametrize(
    "write", [fused_step, write_through_data, write_one_number], ids=lambda write: write.__name__
)


def assert_nothing_stale_is_used(model, write, **kwargs):
    before = scores(model, **kwargs)
    write(model)
    after = scores(model, **kwargs)
    assert not torch.equal(before, after)
    prepacked_weights.forget_packed()
    assert torch.equal(scores(model, **kwargs), after)


@WRITES
@pytest.mark.usefixtures("without_onednn")
def test_pack_without_onednn_sees_changed_weights(write):
    assert_nothing_stale_is_used(ending_model(), write)


@WRITES
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("avx2")
def test_pack_in_two_ways_sees_changed_weights(rows, write):
    assert_nothing_stale_is_used(ending_model(), write, rows=rows)


@WRITES
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("products_in_16_bits")
def test_pack_of_16_bits_sees_changed_weights(rows, write):
    """Of one row and of several: they may be packed in two ways."""
    assert_nothing_stale_is_used(ending_model().bfloat16(), write, rows=rows)


def test_cpu_decoder_sees_unmerged_adapters(monkeypatch):
    peft = pytest.importorskip("peft")
    model = ending_model()
    before = scores(model)
    lora = peft.LoraConfig(target_modules=["v_proj", "fc1"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora).eval()
    after = scores(adapted)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, plain_scores(adapted, monkeypatch), atol=5e-5, rtol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(scores(merged), after, atol=1e-4, rtol=1e-4)
    assert takes_steps(merged, monkeypatch)


def test_cpu_decoder_of_a_cast_and_copied_model(monkeypatch):
    model = ending_model()
    before = scores(model)
    model.bfloat16()
    assert_rounding_explains(*three_ways(model, copy.deepcopy(model).double()))
    model.float()
    assert not torch.equal(scores(model), before)  # Rounded, and not remembered from before.
    torch.testing.assert_close(scores(model), plain_scores(model, monkeypatch), atol=5e-5, rtol=1e-5)
    other = copy.deepcopy(model)
    write_one_number(other)
    torch.testing.assert_close(scores(other), plain_scores(other, monkeypatch), atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(scores(model), plain_scores(model, monkeypatch), atol=5e-5, rtol=1e-5)


def takes_steps(model, monkeypatch, source=None, **kwargs) -> bool:
    """Whether a call of generate() goes by `CPUDecoder`, with the source's ids or what is given in their place."""
    decoders = []

    class Spy(CPUDecoder):
        def __init__(self, *args):
            super().__init__(*args)
            decoders.append(self)

    (ids, mask), options = pad(SENTENCES), {"max_new_tokens": 3, **kwargs}
    with monkeypatch.context() as patch:
        patch.setattr(cpu_search, "CPUDecoder", Spy)
        model.generate(**(source or {"input_ids": ids}), attention_mask=mask, **options)
    return bool(decoders)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_cpu_decoder_is_used_where_supported(num_beams, monkeypatch, tokenizer):
    def takes(model, **kwargs):
        return takes_steps(model, monkeypatch, num_beams=num_beams, **kwargs)

    model = ending_model()
    assert takes(model)
    assert takes(model, do_sample=True)
    assert takes(model, repetition_penalty=1.2, max_length_offset=3)
    assert takes(model, num_return_sequences=1, eos_token_id=[2, 5])
    assert takes(model, stop_strings=["a"], tokenizer=tokenizer)
    ids, mask = pad(SENTENCES)
    # As `Seq2SeqTrainer` calls it.
    assert takes(model, labels=ids)
    with torch.no_grad():
        assert takes(model, source={"inputs_embeds": model.get_input_embeddings()(ids)})
        assert takes(model, source={"encoder_outputs": model.get_encoder()(ids, attention_mask=mask)})
    # What their modules have recorded once stays silent later.
    model.generate(SENTENCES[0][None], return_dict_in_generate=True, output_attentions=True, output_hidden_states=True)
    assert takes(model)
    assert takes(copy.deepcopy(model).bfloat16())
    assert takes(copy.deepcopy(model).half())
    assert not takes(model, use_cache=False)
    assert not takes(model, cache_implementation="static")
    # A caller may continue from its own cache, so the cache must be filled.
    assert not takes(model, cache=EncoderDecoderCache(DynamicCache(), DynamicCache()))
    assert not takes(model, return_dict_in_generate=True, output_scores=True)
    assert not takes(model, decoder_input_ids=torch.tensor([[BOS, 7]] * len(SENTENCES)))
    assert not takes(ending_model(activation_function="gelu"))
    assert not takes(ending_model(attn_implementation="eager"))
    assert not takes(copy.deepcopy(model).train())
    assert not takes(copy.deepcopy(model).double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes(model)


def test_cpu_decoder_is_not_used_for_subclasses(monkeypatch):
    class Loud(VanillaTransformerForConditionalGeneration):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            outputs.logits = -outputs.logits
            return outputs

    model = Loud(small_config()).eval()
    with torch.no_grad():
        assert not supports_cpu_decoder(model)
    assert not takes_steps(model, monkeypatch)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_cpu_decoder_rejects_a_token_outside_the_vocabulary(num_beams):
    ids, mask = pad(SENTENCES)
    with pytest.raises(ValueError, match="vocabulary"):
        ending_model().generate(ids, attention_mask=mask, num_beams=num_beams, decoder_start_token_id=99)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_cpu_decoder_rejects_more_positions_than_learned(num_beams):
    model = decisive_model(position_embedding_type="learned", max_position_embeddings=8)
    ids, mask = pad(SENTENCES[1:])
    with pytest.raises(ValueError, match="learned 8 positions"):
        model.generate(ids, attention_mask=mask, num_beams=num_beams, min_new_tokens=20, max_new_tokens=20)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_shrinks_the_batch(num_beams, monkeypatch):
    sizes = []

    class Spy(CPUDecoder):
        def __call__(self, input_ids):
            sizes.append(len(input_ids))
            return super().__call__(input_ids)

    model = ending_model()
    rows = sentences(*range(3, 15))
    alone = [model.generate(row[None], num_beams=num_beams, max_length_offset=6)[0] for row in rows]
    ids, mask = pad(rows)
    with monkeypatch.context() as patch:
        patch.setattr(cpu_search, "CPUDecoder", Spy)
        together = model.generate(ids, attention_mask=mask, num_beams=num_beams, max_length_offset=6)
    assert [row[row != 0].tolist() for row in together] == [row.tolist() for row in alone]
    assert sizes[0] == len(rows) * num_beams
    assert 0 < sizes[-1] <= sizes[0] // 2
    assert sorted(sizes, reverse=True) == sizes


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "criterion", [MaxLengthCriteria(4), EosTokenCriteria(28), EosTokenCriteria(58)], ids=["length", "28", "58"]
)
def test_generate_stopping_criteria_on_cpu(criterion, num_beams, monkeypatch):
    model, (ids, mask) = ending_model(), pad(SENTENCES)

    def targets():
        criteria = StoppingCriteriaList([criterion])
        options = {"num_beams": num_beams, "max_new_tokens": 8, "stopping_criteria": criteria}
        return model.generate(ids, attention_mask=mask, **options).tolist()

    stopped_targets = targets()
    assert stopped_targets != model.generate(ids, attention_mask=mask, num_beams=num_beams, max_new_tokens=8).tolist()
    if isinstance(criterion, MaxLengthCriteria):
        assert max(map(len, stopped_targets)) == 4
    else:
        (end,) = criterion.eos_token_id.tolist()
        after_ends = [row[row.index(end) + 1 :] for row in stopped_targets if end in row]
        assert after_ends
        assert all(set(tokens) <= {0} for tokens in after_ends)
    monkeypatch.setattr(cpu_search, "supports_cpu_decoder", lambda model: False)
    assert stopped_targets == targets()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_generate_ignores_the_default_dtype(dtype, num_beams):
    model = ending_model()
    expected = scores(model, num_beams=num_beams)
    torch.set_default_dtype(dtype)
    try:
        scores_with_default = scores(model, num_beams=num_beams)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(scores_with_default, expected)


def test_cpu_decoder_is_not_used_for_changed_modules(monkeypatch):
    model = ending_model()
    model.model.decoder.train()
    assert not takes_steps(model, monkeypatch)
    model = ending_model()
    model.model.decoder.layers[0].fc1.compile(backend="eager")
    with torch.no_grad():
        assert not supports_cpu_decoder(model)
    model, calls = ending_model(), []
    prepare = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: calls.append(args) or prepare(*args, **kwargs)
    assert not takes_steps(model, monkeypatch)
    assert calls


OPTIONS = {
    "encoder_repetition_penalty": 8.0,
    "exponential_decay_length_penalty": (2, 1.5),
    "repetition_penalty": 3.0,
    "watermarking_config": {"bias": 6.0, "greenlist_ratio": 0.5},
}
SAMPLING_OPTIONS = {"typical_p": 0.2, "epsilon_cutoff": 0.08, "eta_cutoff": 0.3, "min_p": 0.6, "top_h": 0.2}


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("option", [*OPTIONS, *SAMPLING_OPTIONS])
def test_generate_options_on_cpu_equal_modules(option, num_beams, monkeypatch):
    model, (ids, mask) = ending_model(), pad(SENTENCES)
    do_sample = option in SAMPLING_OPTIONS
    changed_options = {option: {**OPTIONS, **SAMPLING_OPTIONS}[option]}

    def targets(**options):
        torch.manual_seed(0)
        options |= {"do_sample": do_sample, "top_k": 0} if do_sample else {}
        return model.generate(ids, attention_mask=mask, num_beams=num_beams, max_new_tokens=10, **options).tolist()

    assert takes_steps(model, monkeypatch, num_beams=num_beams, **changed_options)
    changed_targets = targets(**changed_options)
    assert changed_targets != targets()
    monkeypatch.setattr(cpu_search, "supports_cpu_decoder", lambda model: False)
    assert changed_targets == targets(**changed_options)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.compiles
def test_generate_of_a_compiled_model(num_beams):
    model, (ids, mask) = ending_model(decoder_layers=1), pad(SENTENCES)
    options = {"attention_mask": mask, "num_beams": num_beams, "max_new_tokens": 6}
    expected = model.generate(ids, **options)
    assert torch.equal(torch.compile(model, backend="eager").generate(ids, **options), expected)
    model.compile(backend="eager")
    assert torch.equal(model.generate(ids, **options), expected)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_mask_of_four_dimensions(num_beams):
    model, (ids, mask) = ending_model(), pad(SENTENCES)
    embeds, options = model.get_input_embeddings()(ids), {"num_beams": num_beams, "max_new_tokens": 8}
    expected = model.generate(ids, attention_mask=mask, **options)
    # Positions are counted by it, too, where it has two dimensions; on the right padding makes no difference to them.
    output = model.generate(inputs_embeds=embeds, attention_mask=mask.bool()[:, None, None], **options)
    assert torch.equal(output, expected)


def test_generate_warns_of_nan_scores(caplog):
    model, (ids, mask) = ending_model(), pad(SENTENCES)
    model.generate(ids, attention_mask=mask, num_beams=3, max_new_tokens=5)
    assert not caplog.records
    model.lm_head.weight.data[:] = torch.nan
    model.generate(ids, attention_mask=mask, num_beams=3, max_new_tokens=5)
    assert "3 of 3 sentences have no translation" in caplog.text
