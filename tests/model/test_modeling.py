import math
import os
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerLayer,
    label_smoothed_cross_entropy,
    sinusoidal_positions,
)
from hf_vanilla_transformer.model.operations import drop
from tests import flash
from tests.models import (
    FIRST_WORD_ID,
    IMPORTED,
    VOCAB_SIZE,
    pad,
    patch_everywhere,
    sentences,
    small_config,
    small_model,
)


ATTENTIONS = ["eager", "sdpa", "vanilla_transformer"]
FLASH = "flash_attention_2"
VOCABULARIES = {
    "one matrix": {},
    "untied": {"tie_word_embeddings": False},
    "two vocabularies": {"source_vocab_size": 45},
    "two vocabularies, untied": {"source_vocab_size": 45, "tie_word_embeddings": False},
}


@pytest.fixture
def attentions(monkeypatch):
    """Where each way to compute attention does so, and ours by products, for elsewhere it is sdpa in evaluation."""
    patch_everywhere(monkeypatch, "has_avx512", lambda: True)
    flash.install(monkeypatch)


@pytest.fixture(params=[*ATTENTIONS, FLASH])
def attn_implementation(request, attentions):
    """How attention is computed."""
    return request.param


@pytest.fixture(scope="module")
def batch():
    source, mask = pad(sentences(9, 4))
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": torch.stack(sentences(6, 6, seed=1))}


@torch.no_grad()
def logits_of(model, **inputs):
    return model(**inputs).logits


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def test_gradients_equal_finite_differences():
    torch.set_default_dtype(torch.float64)
    try:
        model = small_model(d_model=8, d_ff=6, num_heads=2, d_k=3, d_v=2, encoder_layers=1, decoder_layers=1)
    finally:
        torch.set_default_dtype(torch.float32)
    source, mask = pad(sentences(4, 3))
    labels = torch.stack(sentences(3, 3, seed=1))

    def loss():
        return model(input_ids=source, attention_mask=mask, labels=labels).loss

    loss().backward()
    generator = torch.Generator().manual_seed(0)
    step = 1e-6
    for parameter in model.parameters():
        index = int(torch.randint(parameter.numel(), (1,), generator=generator))
        flat = parameter.data.view(-1)
        flat[index] += step
        above = loss().item()
        flat[index] -= 2 * step
        below = loss().item()
        flat[index] += step
        assert parameter.grad.view(-1)[index].item() == pytest.approx((above - below) / (2 * step), abs=1e-7, rel=1e-5)


def test_causality(batch, attn_implementation):
    model = small_model(attn_implementation=attn_implementation)
    before = logits_of(model, **batch)
    changed = batch["decoder_input_ids"].clone()
    changed[:, 3] = (changed[:, 3] + 1) % VOCAB_SIZE
    after = logits_of(model, **{**batch, "decoder_input_ids": changed})
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all(dim=-1).any()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extra", [0, 3, 40])
def test_padding_of_the_source_changes_nothing(attn_implementation, side, extra):
    model = small_model(attn_implementation=attn_implementation)
    rows, targets = sentences(9, 4, 1), sentences(6, 6, 6, seed=1)
    source, mask = pad(rows, side, extra)
    together = logits_of(model, input_ids=source, attention_mask=mask, decoder_input_ids=torch.stack(targets))
    for index, (row, target) in enumerate(zip(rows, targets, strict=True)):
        alone = logits_of(model, input_ids=row[None], decoder_input_ids=target[None])
        close(together[index], alone[0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_padding_of_the_target_changes_nothing(attn_implementation, side, position_embedding_type):
    model = small_model(attn_implementation=attn_implementation, position_embedding_type=position_embedding_type)
    rows, source = sentences(6, 2), torch.stack(sentences(5, 5, seed=1))
    target, mask = pad(rows, side, extra=2)
    together = logits_of(model, input_ids=source, decoder_input_ids=target, decoder_attention_mask=mask)
    for index, row in enumerate(rows):
        alone = logits_of(model, input_ids=source[index : index + 1], decoder_input_ids=row[None])
        close(together[index][mask[index].bool()], alone[0])


@pytest.mark.parametrize("training", [True, False])
def test_a_source_without_a_real_token_gives_no_nan(attn_implementation, training):
    model = small_model(attn_implementation=attn_implementation).train(training)
    source = torch.stack(sentences(4, 4))
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    labels = torch.stack(sentences(3, 3, seed=1))
    output = model(input_ids=source, attention_mask=mask, labels=labels, skip_logits=False)
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def to_add(allowed):
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("attn_implementation", ATTENTIONS, indirect=True)
@pytest.mark.parametrize("mask_of", [torch.Tensor.bool, torch.Tensor.long, to_add])
def test_masks_of_four_dimensions(attn_implementation, mask_of):
    """Masks of who may look where, as booleans, as numbers to add, or as integers, which torch's own refuses."""
    if attn_implementation == "sdpa" and mask_of == torch.Tensor.long:
        return

    model = small_model(attn_implementation=attn_implementation)
    rows, target = sentences(9, 4), torch.stack(sentences(6, 6, seed=1))
    source, real = pad(rows)
    earlier = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    masks = {"attention_mask": mask_of(real.bool()[:, None, None]), "decoder_attention_mask": mask_of(earlier)}
    together = logits_of(model, input_ids=source, decoder_input_ids=target, **masks)
    for index, row in enumerate(rows):
        close(together[index], logits_of(model, input_ids=row[None], decoder_input_ids=target[index : index + 1])[0])
    earlier[..., 3:, 2] = False
    masks["decoder_attention_mask"] = mask_of(earlier)
    changed = target.clone()
    changed[:, 2] = (changed[:, 2] + 1) % VOCAB_SIZE
    before, after = (logits_of(model, input_ids=source, decoder_input_ids=ids, **masks) for ids in (target, changed))
    close(before[:, 3:], after[:, 3:])
    assert not torch.isclose(before[:, 2], after[:, 2]).all(dim=-1).any()
    assert not torch.isclose(before[:, 3:], together[:, 3:]).all(dim=-1).any()


@pytest.mark.parametrize("attn_implementation", [None, "eager"])
def test_a_mask_in_float32_serves_weights_of_16_bits(attn_implementation, batch):
    model = small_model(attn_implementation=attn_implementation).bfloat16()
    mask = {"attention_mask": to_add(batch["attention_mask"].bool()[:, None, None])}
    close(logits_of(model, **{**batch, **mask}).float(), logits_of(small_model(), **{**batch, **mask}), atol=0.1)


@pytest.mark.usefixtures("attentions")
def test_attention_implementations_agree(batch):
    eager = logits_of(small_model(attn_implementation="eager"), **batch)
    for name in ("sdpa", "vanilla_transformer", FLASH):
        close(logits_of(small_model(attn_implementation=name), **batch), eager)


def test_the_implementation_can_be_changed(batch):
    model = small_model(attn_implementation="sdpa")
    model.set_attn_implementation("eager")
    assert torch.equal(logits_of(model, **batch), logits_of(small_model(attn_implementation="eager"), **batch))


@pytest.mark.parametrize("side", ["left", None])
def test_cached_decoding_equals_uncached(attn_implementation, side):
    model = small_model(attn_implementation=attn_implementation)
    source, source_mask = pad(sentences(9, 4))
    target, mask = pad(sentences(7, 4 if side else 7, seed=1), side or "right")
    inputs = {"input_ids": source, "attention_mask": source_mask}
    whole = logits_of(model, **inputs, decoder_input_ids=target, decoder_attention_mask=mask)
    cache, steps = None, []
    for start, end in [(0, 3), (3, 4), (4, 6), (6, 7)]:
        with torch.no_grad():
            output = model(
                **inputs,
                decoder_input_ids=target[:, start:end],
                decoder_attention_mask=mask[:, :end],
                cache=cache,
                use_cache=True,
            )
        cache = output.cache
        steps.append(output.logits)
    real = mask.bool()
    close(torch.cat(steps, dim=1)[real], whole[real])


def test_a_plain_cache_is_taken_too(batch):
    model = small_model()
    output = model(**batch, cache=DynamicCache(config=model.config), use_cache=True)
    assert isinstance(output.cache, EncoderDecoderCache)
    close(output.logits, logits_of(model, **batch))


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_has_two_names(batch, name, recwarn):
    """`past_key_values` before transformers 5.24, `cache` since; with every release callers may use either."""
    model = small_model().eval()
    source = {key: batch[key] for key in ("input_ids", "attention_mask")}
    states = model.get_encoder()(**source).last_hidden_state
    target = batch["decoder_input_ids"][:, :2]
    encoded = {"encoder_hidden_states": states, "encoder_attention_mask": source["attention_mask"]}
    calls = {
        "decoder": lambda cache: model.get_decoder()(target, **encoded, **cache),
        "model": lambda cache: model.model(**source, decoder_input_ids=target, **cache),
        "whole": lambda cache: model(**source, decoder_input_ids=target, **cache),
        "generate": lambda cache: model.generate(
            **source, num_beams=1, max_new_tokens=2, return_dict_in_generate=True, **cache
        ),
    }
    for call in calls.values():
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        assert call({name: cache}).cache is cache
        assert cache.get_seq_length() == 2
    inputs = model.prepare_inputs_for_generation(torch.tensor([[1, 7, 8]]), **{name: cache})
    assert inputs["decoder_input_ids"].tolist() == [[8]]
    assert inputs["cache"] is cache
    # As for transformers' models.
    is_deprecated = name == "past_key_values"
    messages = [
        str(warning.message) for warning in recwarn if "`past_key_values` is deprecated" in str(warning.message)
    ]
    assert len(messages) == (5 if is_deprecated else 0)
    for call in [calls["decoder"], calls["model"], calls["whole"]]:
        with pytest.raises(ValueError, match="cache and past_key_values are two names of one argument"):
            call({"cache": cache, "past_key_values": cache})


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_cache_by_a_third_name_is_an_error(batch, monkeypatch, num_beams):
    """As 5.24's name was for code of before: without this, translations are wrong, and nothing says so."""
    model, name = small_model(), "state_of_earlier_tokens"
    prepare = type(model).prepare_inputs_for_generation

    def renamed(self, *args, **kwargs):
        return prepare(self, *args, **{name if key == "cache" else key: value for key, value in kwargs.items()})

    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", renamed)
    with pytest.raises(RuntimeError, match="passes the cache by a name that this code does not know"):
        model.generate(batch["input_ids"], num_beams=num_beams, return_dict_in_generate=True)
    model.generate(batch["input_ids"], num_beams=num_beams, use_cache=False)


@pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES)
@pytest.mark.parametrize(
    "fields", [{}, {"position_embedding_type": "learned"}, IMPORTED], ids=["", "learned", "imported"]
)
def test_save_and_load(tmp_path, batch, vocabulary, fields):
    model = small_model(**vocabulary, **fields)
    batch = {**batch, "input_ids": batch["input_ids"] % 45}
    model.save_pretrained(tmp_path)
    for loaded in (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map="cpu"),
    ):
        assert type(loaded) is VanillaTransformerForConditionalGeneration
        assert torch.equal(logits_of(loaded, **batch), logits_of(model, **batch))


def test_a_bias_that_was_set_by_hand_is_saved(tmp_path, batch):
    model = small_model()
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, VOCAB_SIZE))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, **batch), logits_of(model, **batch))
    assert not torch.equal(logits_of(loaded, **batch), logits_of(small_model(), **batch))


def test_save_and_load_in_bfloat16(tmp_path, batch):
    model = small_model()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    expected = logits_of(small_model().to(torch.bfloat16), **batch)
    assert torch.equal(logits_of(loaded, **batch), expected)
    close(expected.float(), logits_of(model, **batch), atol=0.15)


def test_model_built_on_meta_and_loaded_by_torch(batch):
    model = small_model()
    with torch.device("meta"):
        empty = VanillaTransformerForConditionalGeneration(model.config).eval()
    empty.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(logits_of(empty, **batch), logits_of(model, **batch))


def test_auto_model_loads_the_body(tmp_path, batch):
    model = small_model()
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    assert type(body) is VanillaTransformerModel
    assert torch.equal(body(**batch).last_hidden_state, model.model(**batch).last_hidden_state)


@pytest.mark.parametrize(
    ("vocabulary", "names"),
    [
        ("one matrix", ["model.shared.weight"]),
        (
            "untied",
            ["lm_head.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"],
        ),
        ("two vocabularies", ["model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"]),
    ],
)
def test_embeddings_on_disk(tmp_path, vocabulary, names):
    from safetensors import safe_open

    small_model(**VOCABULARIES[vocabulary]).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert [name for name in sorted(file.keys()) if ".layers." not in name] == names


def test_a_configuration_changed_later_is_checked_again():
    config = small_config(d_k=None, d_v=None)
    config.num_heads = 3
    with pytest.raises(ValueError, match=r"d_model \(32\) is not divisible by num_heads \(3\)"):
        VanillaTransformerForConditionalGeneration(config)


def test_one_matrix_three_uses():
    model = small_model()
    shared = model.model.shared.weight
    assert model.lm_head.weight is shared
    assert model.model.encoder.embed_tokens.weight is shared
    assert model.model.decoder.embed_tokens.weight is shared


def test_two_vocabularies():
    model = small_model(source_vocab_size=45)
    assert model.model.encoder.embed_tokens.weight.shape == (45, 32)
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    assert model.lm_head.weight.shape == (VOCAB_SIZE, 32)


@pytest.mark.parametrize("vocabulary", [name for name in VOCABULARIES if name != "one matrix"])
def test_another_embedding_of_the_source_is_not_the_target_s(batch, vocabulary):
    model, embedding = small_model(**VOCABULARIES[vocabulary]), torch.nn.Embedding(VOCAB_SIZE, 32)
    inputs = {**batch, "inputs_embeds": embedding(batch["input_ids"])}
    del inputs["input_ids"]
    expected = logits_of(model, **inputs)
    model.set_input_embeddings(embedding)
    close(logits_of(model, **batch), expected)
    assert model.get_input_embeddings() is embedding


@pytest.mark.parametrize("tied", [True, False])
def test_resizing(tied):
    model = small_model(tie_word_embeddings=tied)
    model.resize_token_embeddings(VOCAB_SIZE + 4)
    ids = torch.tensor([[VOCAB_SIZE + 3, 5]])
    assert logits_of(model, input_ids=ids, decoder_input_ids=ids).shape == (1, 2, VOCAB_SIZE + 4)
    assert (model.lm_head.weight is model.model.encoder.embed_tokens.weight) == tied
    assert (model.model.decoder.embed_tokens.weight is model.model.encoder.embed_tokens.weight) == tied


def test_resizing_keeps_what_untied_embeddings_knew():
    model = small_model(tie_word_embeddings=False)
    target_embedding = model.model.decoder.embed_tokens.weight.clone()
    model.resize_token_embeddings(VOCAB_SIZE + 4)
    assert torch.equal(model.model.decoder.embed_tokens.weight[:VOCAB_SIZE], target_embedding)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_hooks_on_the_input_embeddings_run(batch, vocabulary):
    """Those of NEFTune and captum are of this kind."""
    model, seen, batch = small_model(**VOCABULARIES[vocabulary]), [], {**batch, "input_ids": batch["input_ids"] % 45}
    expected = logits_of(model, **batch)
    embedding = model.get_input_embeddings()
    assert embedding is model.model.get_input_embeddings() is model.get_encoder().get_input_embeddings()
    hook = embedding.register_forward_hook(lambda module, args, output: seen.append(output) or output * 2)
    assert not torch.equal(logits_of(model, **batch), expected)
    assert [tuple(states.shape) for states in seen] == [(*batch["input_ids"].shape, 32)]
    hook.remove()
    assert torch.equal(logits_of(model, **batch), expected)


def test_learned_positions_grow(batch, tmp_path):
    model = small_model(position_embedding_type="learned", max_position_embeddings=16)
    expected = logits_of(model, **batch)
    with pytest.raises(ValueError, match="16 positions"):
        model(input_ids=torch.ones(1, 40, dtype=torch.long), decoder_input_ids=batch["input_ids"])
    model.resize_position_embeddings(40)
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    for tied_model in (model, loaded):
        assert torch.equal(logits_of(tied_model, **batch), expected)
        logits_of(tied_model, input_ids=torch.ones(1, 40, dtype=torch.long), decoder_input_ids=batch["input_ids"][:1])
    assert loaded.config.max_position_embeddings == 40
    new = model.get_encoder().embed_positions.weight[16:]
    assert new.std().item() == pytest.approx(32**-0.5, rel=0.1)


def test_sinusoids_need_no_resizing(batch):
    model = small_model()
    expected = logits_of(model, **batch)
    model.resize_position_embeddings(5000)
    assert torch.equal(logits_of(model, **batch), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("skip_logits", [True, False])
def test_another_label_may_mean_no_target(batch, training, skip_logits):
    model = small_model(dropout=0.0).train(training)
    labels = batch["decoder_input_ids"].clone()
    labels[1, 3:] = -100
    other = labels.masked_fill(labels == -100, 0)
    inputs = {**batch, "num_items_in_batch": 7, "skip_logits": skip_logits}
    expected, output = model(**inputs, labels=labels), model(**inputs, labels=other, ignore_index=0)
    assert torch.equal(output.loss, expected.loss)
    assert not torch.equal(output.loss, model(**inputs, labels=other).loss)
    if skip_logits:
        assert torch.equal(output.token_sums, expected.token_sums)
    del inputs["decoder_input_ids"]
    other = labels.masked_fill(labels == -100, -1)
    expected, output = model(**inputs, labels=labels), model(**inputs, labels=other, ignore_index=-1)
    assert torch.equal(output.loss, expected.loss)


@torch.no_grad()
def test_torch_may_have_another_default_device(batch):
    model = small_model()
    expected = model(**batch).logits
    with torch.device("meta"):
        assert torch.equal(model(**batch).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("padding", [True, False])
def test_a_static_cache_may_be_longer_than_the_source(batch, padding):
    model, ids = small_model(), batch["input_ids"]
    mask = batch["attention_mask"] if padding else None
    source = {"encoder_outputs": model.get_encoder()(ids, mask), "attention_mask": mask}
    target = torch.randint(3, VOCAB_SIZE, (len(ids), 5))
    expected = model(decoder_input_ids=target, **source).logits
    cache = EncoderDecoderCache(*(StaticCache(model.config, max_cache_len=length) for length in (9, ids.shape[1] + 7)))
    steps = [model(decoder_input_ids=tokens, cache=cache, **source).logits for tokens in target.split([2, 1, 2], dim=1)]
    close(torch.cat(steps, dim=1), expected)


def test_resizing_two_vocabularies_is_refused():
    with pytest.raises(ValueError, match="source and target have separate vocabularies"):
        small_model(source_vocab_size=45).resize_token_embeddings(50)


def test_initialization():
    torch.manual_seed(0)
    config = VanillaTransformerConfig(vocab_size=2000, d_model=256, d_ff=512, encoder_layers=1, decoder_layers=1)
    model = VanillaTransformerForConditionalGeneration(config)
    assert model.model.shared.weight.std().item() == pytest.approx(256**-0.5, rel=0.01)
    layer = model.model.decoder.layers[0]
    bound = math.sqrt(6 / (256 + 512))
    assert layer.fc1.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert layer.fc1.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert not layer.fc1.bias.any()
    assert (layer.final_layer_norm.weight == 1).all()


def test_the_initial_weights_of_branches_have_a_factor():
    """Values, outputs and feed-forward networks; queries and keys set no scale of a layer's output."""
    models = []
    for factor in (1.0, 0.25):
        torch.manual_seed(0)
        models.append(small_model(initializer_factor=factor))
    plain, scaled = (dict(model.named_parameters()) for model in models)
    for name, weight in plain.items():
        is_of_branch = any(part in name for part in ("v_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight"))
        torch.testing.assert_close(scaled[name], weight * (0.25 if is_of_branch else 1.0))


def test_an_untied_softmax_begins_like_an_embedding():
    torch.manual_seed(0)
    model = small_model(vocab_size=4000, tie_word_embeddings=False)
    assert model.lm_head.weight.std().item() == pytest.approx(32**-0.5, rel=0.02)


def test_dropout_only_where_the_paper_has_it(monkeypatch, batch):
    rates = []

    def record(x, rate, training=True):
        rates.append(rate)
        return drop(x, rate, training)

    for name in ("acceleration.attention", "model.modeling_vanilla_transformer"):
        monkeypatch.setattr(f"hf_vanilla_transformer.{name}.drop", record)
    model = small_model(dropout=0.25).train()
    model(**batch)
    # The embeddings of two stacks, 2 sub-layers in each of 2 encoder layers, 3 in each of 3 decoder layers.
    assert rates.count(0.25) == 2 + 2 * 2 + 3 * 3
    assert set(rates) == {0.25, 0.0}


def test_where_dropout_is():
    """A rate of 1 leaves nothing, so it shows what it is a rate of (section 5.4)."""
    x, states = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    model = small_model(dropout=1.0).train()
    encoder, decoder = model.model.encoder, model.model.decoder
    of_encoder, of_decoder = encoder.layers[0], decoder.layers[0]
    norm, cross_norm = of_encoder.self_attn_layer_norm, of_decoder.encoder_attn_layer_norm
    assert torch.equal(of_encoder(x), of_encoder.final_layer_norm(norm(x)))
    expected = of_decoder.final_layer_norm(cross_norm(of_decoder.self_attn_layer_norm(x)))
    assert torch.equal(of_decoder(x, states), expected)
    for stack in (encoder, decoder):
        assert not stack.add_positions(x, torch.arange(5)[None]).any()
    layer = small_model(activation_dropout=1.0).train().model.encoder.layers[0]
    assert torch.equal(layer.feed_forward(x), layer.fc2.bias.expand_as(x))
    for name in ATTENTIONS:
        layer = small_model(attention_dropout=1.0, attn_implementation=name).train().model.decoder.layers[0]
        for attention, arguments in ((layer.self_attn, (x,)), (layer.encoder_attn, (x, states))):
            close(attention(*arguments)[0], attention.out_proj.bias.expand_as(x), atol=1e-6)


def test_sinusoids_have_no_limit():
    long = sentences(1500)[0][None]
    inputs = {"input_ids": long, "decoder_input_ids": long[:, :5]}
    few, many = (logits_of(small_model(max_position_embeddings=count), **inputs) for count in (4, 1500))
    assert torch.equal(few, many)


def test_sinusoids_stay_exact_under_compilation_and_bfloat16():
    positions = torch.tensor([[0, 99_999, 100_000]])
    expected = sinusoidal_positions(positions, 64)
    compiled = torch.compile(sinusoidal_positions, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(positions, 64), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sinusoidal_positions(positions, 64), expected)


def test_a_learned_table_is_a_limit():
    model = small_model(position_embedding_type="learned", max_position_embeddings=8)
    source = torch.stack(sentences(8))
    assert logits_of(model, input_ids=source, decoder_input_ids=source).isfinite().all()
    longer = torch.stack(sentences(9))
    with pytest.raises(ValueError, match=r"9 tokens was given, but this model has learned 8 positions"):
        model(input_ids=source, decoder_input_ids=longer)
    with pytest.raises(ValueError, match=r"9 tokens was given, but this model has learned 8 positions"):
        model(input_ids=longer, decoder_input_ids=source)


def test_attentions_whatever_the_implementation(batch, attn_implementation):
    model = small_model(attn_implementation=attn_implementation)
    with torch.no_grad():
        output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert [weights.shape for weights in output.encoder_attentions] == [(2, 4, 9, 9)] * 2
    assert [weights.shape for weights in output.decoder_attentions] == [(2, 4, 6, 6)] * 3
    assert [weights.shape for weights in output.cross_attentions] == [(2, 4, 6, 9)] * 3
    assert len(output.encoder_hidden_states) == 3
    assert len(output.decoder_hidden_states) == 4
    for weights in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert not torch.stack(output.cross_attentions)[:, 1, :, :, 4:].any()
    assert not torch.stack(output.decoder_attentions).triu(diagonal=1).any()
    close(output.logits, logits_of(model, **batch))


def test_inputs_embeds(batch):
    model = small_model()
    embed = model.get_input_embeddings()
    expected = logits_of(model, **batch)
    embeds = {"inputs_embeds": embed(batch["input_ids"]), "attention_mask": batch["attention_mask"]}
    close(logits_of(model, **embeds, decoder_inputs_embeds=embed(batch["decoder_input_ids"])), expected)


def test_encoder_outputs_instead_of_a_source(batch):
    model = small_model()
    memory = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    inputs = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
    expected = logits_of(model, **batch)
    assert torch.equal(logits_of(model, **inputs, encoder_outputs=memory), expected)
    assert torch.equal(logits_of(model, **inputs, encoder_outputs=(memory[0],)), expected)


def test_logits_to_keep(batch):
    model = small_model()
    whole = logits_of(model, **batch)
    close(logits_of(model, **batch, logits_to_keep=2), whole[:, -2:])
    close(logits_of(model, **batch, logits_to_keep=torch.tensor([0, 3])), whole[:, [0, 3]])


def test_tuple_output(batch):
    model = small_model()
    expected = model(**batch).logits
    assert torch.equal(model(**batch, return_dict=False)[0], expected)
    model.config.return_dict = False
    assert torch.equal(model(**batch)[0], expected)
    assert torch.equal(model(**batch, return_dict=True).logits, expected)


@pytest.mark.parametrize("has_avx512", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing(batch, use_reentrant, rate, has_avx512, monkeypatch):
    patch_everywhere(monkeypatch, "has_avx512", lambda: has_avx512)

    def gradients(checkpointing):
        model = small_model(dropout=rate, attention_dropout=rate, activation_dropout=rate).train()
        torch.manual_seed(0)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model(**batch, labels=batch["decoder_input_ids"]).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    expected = gradients(False)
    calls = []
    forward = VanillaTransformerLayer.feed_forward
    monkeypatch.setattr(VanillaTransformerLayer, "feed_forward", lambda self, x: calls.append(0) or forward(self, x))
    actual = gradients(True)
    # Once forward, and once more for the gradients; of 2 encoder layers and 3 decoder layers.
    assert len(calls) == 2 * (2 + 3)
    for name, gradient in actual.items():
        close(gradient, expected[name], atol=1e-6)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_and_a_cache(batch, use_reentrant):
    """Computing a layer again for its gradients would extend the cache again."""
    model = small_model(dropout=0.0)
    expected = model.eval().generate(batch["input_ids"], use_cache=False)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert torch.equal(model.train().generate(batch["input_ids"]), expected)
    with pytest.raises(ValueError, match="gradient checkpointing computes each layer twice"):
        model(**batch, cache=DynamicCache(config=model.config))
    assert model(**batch, use_cache=True).cache is None


def test_a_model_unpickled_in_another_process_needs_no_optional_library(batch, run_in_fork, tmp_path):
    model = small_model()
    optional = ["num2words", "matplotlib", "datasets", "evaluate", "sacrebleu", "peft"]
    torch.save((model, batch), tmp_path / "model.pt")
    code = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
model, batch = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
with torch.no_grad():
    torch.save((model(**batch).logits, model.generate(batch["input_ids"])), {str(tmp_path / "output.pt")!r})
print([name for name in {optional!r} if name in sys.modules])
"""
    (tmp_path / "program.py").write_text(code)
    child = run_in_fork(tmp_path / "program.py", environment=dict(os.environ), folder=tmp_path)
    assert child.stdout.strip() == "[]"
    logits, translations = torch.load(tmp_path / "output.pt")
    close(logits, logits_of(model, **batch))
    assert torch.equal(translations, model.generate(batch["input_ids"]))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_bias_before_the_softmax_is_in_the_loss(batch, label_smoothing):
    """Of a replaced LM head."""
    model = small_model(dropout=0.0, label_smoothing=label_smoothing, tie_word_embeddings=False).train()
    model.set_output_embeddings(torch.nn.Linear(32, VOCAB_SIZE))
    labels = batch["decoder_input_ids"]
    loss = model(**batch, labels=labels, skip_logits=True).loss
    logits = model(**batch).logits
    close(
        loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=label_smoothing)
    )
    loss.backward()
    assert model.lm_head.bias.grad.any()


def test_gradients_of_each_sentence(batch):
    """Checks that look into labels leave tensors of torch.func alone."""
    model = small_model()
    weights = dict(model.named_parameters())

    def loss(weights, source, labels):
        inputs = {"input_ids": source[None], "labels": labels[None]}
        return torch.func.functional_call(model, weights, (), inputs).loss

    source = torch.stack(sentences(6, 6))
    labels = batch["decoder_input_ids"]
    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, source, labels)
    for row in range(2):
        loss(weights, source[row], labels[row]).backward()
        for name, gradient in of_each.items():
            close(gradient[row], weights[name].grad)
        model.zero_grad()


def test_shapes_without_numbers(batch):
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(small_config()).eval()
    inputs = {name: tensor.to("meta") for name, tensor in batch.items() if name != "attention_mask"}
    assert model(**inputs).logits.shape == (2, 6, VOCAB_SIZE)
    assert model(**inputs, labels=inputs["decoder_input_ids"]).loss.shape == ()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_traced_layer_does_not_depend_on_the_length(name):
    layer = small_model(dropout=0.0, attn_implementation=name).train().model.encoder.layers[0]
    # Below and above what is fast in one way and in the other.
    short, long = torch.randn(1, 7, 32), torch.randn(1, 100, 32)
    traced = torch.jit.trace(layer, short, check_trace=False)
    for x in (short, long):
        close(traced(x), layer(x))


def test_labels_and_masks_of_another_length(batch):
    labels = batch["decoder_input_ids"]
    for model in (small_model(), small_model().train()):
        with pytest.raises(ValueError, match=r"labels have shape \(2, 5\), .* inputs have shape \(2, 6\)"):
            model(**batch, labels=labels[:, 1:])
    encoded = model.get_encoder()(batch["input_ids"])
    with pytest.raises(
        ValueError, match="the source's mask has length 8, but the encoder's output has length 9; give the"
    ):
        model(encoder_outputs=encoded, attention_mask=batch["attention_mask"][:, 1:], decoder_input_ids=labels)
    for num_beams in (1, 4):
        with pytest.raises(ValueError, match="the source's mask has length 8, but the encoder's output has length 9"):
            small_model().generate(encoder_outputs=encoded, attention_mask=torch.ones(2, 8), num_beams=num_beams)


def test_encoder_outputs_of_any_kind(batch):
    model = small_model()
    states = model.get_encoder()(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    expected = logits_of(model, **batch)
    other_inputs = {name: tensor for name, tensor in batch.items() if name != "input_ids"}
    mask = batch["attention_mask"]
    translations = model.generate(batch["input_ids"], attention_mask=mask)
    pooled = BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states[:, 0])
    for encoded in (pooled, {"last_hidden_state": states}, (states,), BaseModelOutput(last_hidden_state=states)):
        close(logits_of(model, encoder_outputs=encoded, **other_inputs), expected)
        assert torch.equal(model.generate(encoder_outputs=encoded, attention_mask=mask), translations)


def test_attentions_that_the_configuration_asks_for(batch, tmp_path):
    model = small_model(output_attentions=True)
    expected = small_model(attn_implementation="eager")(**batch, output_attentions=True)
    output = model(**batch)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        for weights, of_eager in zip(output[name], expected[name], strict=True):
            close(weights, of_eager)
    model.save_pretrained(tmp_path)
    assert len(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)(**batch).encoder_attentions) == 2


def test_offloaded_keys_and_values_are_fetched(batch, monkeypatch):
    """A cache may have put those of the source on another device."""
    fetched = []
    monkeypatch.setattr(DynamicLayer, "prefetch", lambda self: fetched.append(self))
    model = small_model()
    cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for _ in range(2):
        model(**inputs, decoder_input_ids=batch["decoder_input_ids"][:, :1], cache=cache)
    assert fetched == list(cache.cross_attention_cache.layers)


def test_compiles_to_one_graph_for_all_shapes(batch):
    model = small_model(encoder_layers=1, decoder_layers=1)
    graphs = CompileCounter()
    compiled = torch.compile(model, backend=graphs, fullgraph=True, dynamic=True)
    for lengths in [(9, 4), (11, 5), (6, 6)]:
        source, mask = pad(sentences(*lengths))
        labels = torch.stack(sentences(7, 7, seed=2))
        expected = model(input_ids=source, attention_mask=mask, labels=labels)
        actual = compiled(input_ids=source, attention_mask=mask, labels=labels)
        close(actual.loss, expected.loss)
        close(actual.logits, expected.logits)
    assert graphs.frame_count == 1


def test_loss_is_divided_by_num_items_in_batch(batch):
    model = small_model()
    labels = batch["decoder_input_ids"].clone()
    labels[1, 4:] = -100
    mean = model(**batch, labels=labels).loss
    close(model(**batch, labels=labels, num_items_in_batch=torch.tensor(40)).loss, mean * 10 / 40)
    close(model(**batch, labels=labels, num_items_in_batch=40).loss, mean * 10 / 40)


def test_loss_equals_torch_cross_entropy():
    logits, labels = torch.randn(2, 5, 11), torch.randint(0, 11, (2, 5))
    labels[0, 3:] = -100
    actual = label_smoothed_cross_entropy(logits, labels, 11, label_smoothing=0.1)
    expected = torch.nn.functional.cross_entropy(logits.view(-1, 11), labels.view(-1), label_smoothing=0.1)
    close(actual, expected, atol=1e-6)


def test_loss_of_a_batch_without_targets_is_zero():
    logits, labels = torch.randn(1, 2, 11), torch.full((1, 2), -100)
    assert label_smoothed_cross_entropy(logits, labels, 11).item() == 0
    assert label_smoothed_cross_entropy(logits, labels, 11, num_items_in_batch=torch.tensor(0)).item() == 0


def test_labels_are_shifted_once(batch):
    model = small_model()
    labels = pad(sentences(6, 4, seed=3))[0]
    labels[1, 4:] = -100
    shifted = model.prepare_decoder_input_ids_from_labels(labels)
    assert shifted[:, 0].tolist() == [1, 1]
    assert torch.equal(shifted[0, 1:], labels[0, :-1])
    assert shifted[1].tolist() == [1, *labels[1, :4].tolist(), 0]
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    explicit = model(**source, decoder_input_ids=shifted, labels=labels).loss
    assert torch.equal(model(**source, labels=labels).loss, explicit)


@pytest.mark.parametrize("name", ["pad_token_id", "decoder_start_token_id"])
def test_labels_need_padding_and_a_first_token(batch, name):
    model = small_model()
    setattr(model.config, name, None)
    with pytest.raises(ValueError, match=f"{name} is None.*training needs both"):
        model(input_ids=batch["input_ids"], labels=batch["decoder_input_ids"])


def test_ids_outside_the_vocabulary(batch):
    model = small_model()
    for ids in (torch.tensor([[3, 60]]), torch.tensor([[3, -1]])):
        with pytest.raises(
            ValueError, match=r"token ids range from .* but the vocabulary of VanillaTransformerEncoder"
        ):
            model(input_ids=ids, decoder_input_ids=batch["decoder_input_ids"][:1])
        with pytest.raises(
            ValueError, match=r"token ids range from .* but the vocabulary of VanillaTransformerDecoder"
        ):
            model(input_ids=batch["input_ids"][:1], decoder_input_ids=ids)


def test_a_label_outside_the_vocabulary(batch):
    labels = batch["decoder_input_ids"].clone()
    labels[0, -1] = 60
    with pytest.raises(ValueError, match=r"labels range from \d+ to 60, but the target vocabulary has ids 0 to 59"):
        small_model()(**batch, labels=labels)


def test_labels_padded_on_the_left(batch):
    labels = batch["decoder_input_ids"].clone()
    labels[1, :2] = -100
    with pytest.raises(ValueError, match="labels are padded on the left or have gaps; pad targets on the right"):
        small_model()(input_ids=batch["input_ids"], labels=labels)


def test_nothing_to_decode(batch):
    with pytest.raises(ValueError, match=r"were given to VanillaTransformerDecoder; give one .* call its generate"):
        small_model()(input_ids=batch["input_ids"])


def test_ids_and_embeddings_together_or_neither(batch):
    encoder = small_model().get_encoder()
    with pytest.raises(ValueError, match="token ids and embeddings were both given"):
        encoder(batch["input_ids"], inputs_embeds=torch.zeros(2, 9, 32))
    with pytest.raises(ValueError, match="neither token ids nor embeddings were given"):
        encoder()


def test_a_mask_of_another_length(batch):
    with pytest.raises(ValueError, match="the mask has 8 columns, but there are 0 tokens in the cache and 9 new"):
        small_model()(**{**batch, "attention_mask": batch["attention_mask"][:, :8]})
    with pytest.raises(ValueError, match="the mask has 7 columns, but there are 0 tokens in the cache and 6 new"):
        small_model()(**batch, decoder_attention_mask=torch.ones(2, 7))


def test_a_decoder_without_a_source(batch):
    with pytest.raises(ValueError, match="give it as encoder_hidden_states"):
        small_model().get_decoder()(batch["decoder_input_ids"])


@pytest.mark.parametrize("by_position", [True, False])
def test_a_model_that_is_untied_later_loads_as_it_was(tmp_path, by_position):
    model = small_model()
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[1, 8]])}
    expected = model(**inputs).logits
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path, *((True, model.state_dict()) if by_position else ()))
    untied = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(untied(**inputs).logits, expected)
    assert untied.lm_head.weight is not untied.model.decoder.embed_tokens.weight


def test_sequences_without_tokens_are_named(batch):
    empty = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"token ids of shape \(2, 0\) have no token; give at least one token"):
        small_model()(input_ids=empty, decoder_input_ids=batch["input_ids"])
    with pytest.raises(ValueError, match=r"token ids of shape \(2, 0\) have no token; give at least one token"):
        small_model()(input_ids=batch["input_ids"], decoder_input_ids=empty)


def test_any_number_but_zero_marks_a_real_token():
    """Masks of packed sentences number them from 1."""
    model = small_model().eval()
    source = torch.randint(FIRST_WORD_ID, VOCAB_SIZE, (2, 300), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(source)
    expected = model(source, attention_mask=mask, decoder_input_ids=source, decoder_attention_mask=mask).logits
    logits = model(source, attention_mask=5 * mask, decoder_input_ids=source, decoder_attention_mask=5 * mask).logits
    assert torch.equal(logits, expected)
