"""Int8 weights: a layer against its formula in float64, and models that are loaded, saved and used so."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartModel,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
)

from hf_vanilla_transformer import Int8Config, PaperTrainingArguments, translate
from hf_vanilla_transformer.acceleration import prepacked_weights
from hf_vanilla_transformer.acceleration.int8_quantization import Int8Linear, Int8Quantizer
from hf_vanilla_transformer.acceleration.prepacked_weights import Int8PackedLinear, pack
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.generation.test_step import (
    SENTENCES,
    assert_rounding_explains,
    assert_steps_equal_the_modules,
    ending_model,
    takes_steps,
    three_ways,
)
from tests.invariants.killed import exit_code, start
from tests.models import IMPORTED, pad, sentences, small_model
from tests.rounding import explained, rms


pytestmark = pytest.mark.processor

EXPECTED = json.loads((FIXTURE / "translations.json").read_text(encoding="utf-8"))
IDS, MASK = pad(sentences(5, 9, 3))
# Number of values that the inputs of an int8 matmul are rounded to; see `Int8Linear`.
LEVELS = 256 if torch.cpu._is_vnni_supported() else 128


def layer(in_features=24, out_features=10, bias=True, seed=0):
    torch.manual_seed(seed)
    new = nn.Linear(in_features, out_features, bias=bias)
    nn.init.normal_(new.weight)
    return new


def float64(tensor):
    return tensor.detach().double().numpy()


def by_the_formula(quantised, x):
    """x (s W)^T + b, and for each number how far it may be from it when x is rounded to one of so many numbers."""
    weight = float64(quantised.weight) * float64(quantised.weight_scale)[:, None]
    bias = 0 if quantised.bias is None else float64(quantised.bias)
    x = float64(x)
    step = (max(x.max(), 0) - min(x.min(), 0)) / (LEVELS - 1)
    return x @ weight.T + bias, 0.501 * step * np.abs(weight).sum(axis=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_linear_rounds_to_the_nearest_integer(dtype):
    exact = layer().to(dtype)
    with torch.no_grad():
        exact.weight[3] = 0
    quantised = Int8Linear.from_linear(exact)
    assert quantised.weight.dtype == torch.int8
    assert quantised.weight_scale.dtype == dtype
    assert quantised.bias is exact.bias
    scale = float64(quantised.weight_scale)[:, None]
    # Half a step; in bfloat16 the largest number may be more than 127 of the rounded steps.
    allowed = 0.501 if dtype == torch.float32 else 1
    assert (np.abs(float64(quantised.weight) * scale - float64(exact.weight)) <= allowed * scale).all()
    largest = np.abs(quantised.weight.numpy().astype(int)).max(axis=1)
    assert largest[3] == 0
    assert set(np.delete(largest, 3)) <= ({127} if dtype == torch.float32 else {126, 127})


@pytest.mark.skipif(
    not Int8PackedLinear.can_compute([Int8Linear.from_linear(layer())]), reason="no int8 products on this machine"
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3)], ids=str)
def test_inputs_are_quantized_only_without_gradients(shape, bias):
    quantised, x = Int8Linear.from_linear(layer(bias=bias)), 3 * torch.randn(*shape, 24)
    expected, allowed = by_the_formula(quantised, x)
    np.testing.assert_allclose(float64(quantised(x)), expected, atol=1e-5)
    with torch.no_grad():
        output = float64(quantised(x))
    assert output.shape == expected.shape
    assert (np.abs(output - expected) <= allowed).all()
    assert np.abs(output - expected).max() > 1e-4


@torch.no_grad()
def test_pack_several_layers():
    layers = [Int8Linear.from_linear(layer(out_features=size, seed=size)) for size in (8, 3, 5)]
    x = torch.randn(4, 24)
    together = pack(*layers)
    assert torch.equal(together(x), torch.cat([quantised(x) for quantised in layers], dim=-1))
    assert torch.equal(together.relu(x), together(x).clamp(min=0))
    residual = torch.randn(4, 16)
    assert torch.equal(together.plus(x, residual), residual + together(x))


@torch.no_grad()
def test_bfloat16_stays_bfloat16():
    quantised, x = Int8Linear.from_linear(layer().bfloat16()), torch.randn(5, 24).bfloat16()
    expected, allowed = by_the_formula(quantised, x)
    output = quantised(x)
    assert output.dtype == torch.bfloat16
    assert (np.abs(float64(output) - expected) <= allowed + 2**-8 * np.abs(expected)).all()
    assert torch.equal(pack(quantised).relu(x), output.clamp(min=0))


@pytest.mark.parametrize("part", ["weight", "weight_scale", "bias"])
@torch.no_grad()
def test_write_through_data_changes_the_output(part):
    quantised, x = Int8Linear.from_linear(layer()), torch.randn(3, 24)
    before = quantised(x)
    getattr(quantised, part).data[4] *= -1
    after = quantised(x)
    expected, allowed = by_the_formula(quantised, x)
    assert (np.abs(float64(after) - expected) <= allowed).all()
    changed = (before != after).any(dim=0)
    assert changed.tolist() == [place == 4 for place in range(10)]


@torch.no_grad()
def test_copy_is_independent():
    quantised, x = Int8Linear.from_linear(layer()), torch.randn(3, 24)
    before, duplicate = quantised(x), copy.deepcopy(quantised)
    duplicate.weight.zero_()
    assert torch.equal(duplicate(x), duplicate.bias.expand(3, -1))
    assert torch.equal(quantised(x), before)


@torch.no_grad()
def test_cpu_without_int8_matmuls_computes_the_formula(monkeypatch):
    monkeypatch.setattr(prepacked_weights, "_INT8_ENGINES", ())
    quantised, x = Int8Linear.from_linear(layer()), torch.randn(3, 24)
    expected, _ = by_the_formula(quantised, x)
    np.testing.assert_allclose(float64(quantised(x)), expected, atol=1e-5)
    np.testing.assert_allclose(float64(pack(quantised)(x)), expected, atol=1e-5)
    half = copy.deepcopy(quantised).bfloat16()
    assert half(x.bfloat16()).dtype == pack(half)(x.bfloat16()).dtype == torch.bfloat16


@torch.no_grad()
def test_row_of_zeros_gives_its_bias():
    exact, x = layer(), torch.randn(3, 24)
    exact.weight[3] = 0
    assert torch.equal(Int8Linear.from_linear(exact)(x)[:, 3], exact.bias[3].expand(3))


@torch.no_grad()
@pytest.mark.compiles
def test_compiled_layer_computes_the_formula():
    quantised, x = Int8Linear.from_linear(layer()), torch.randn(3, 24)
    expected, _ = by_the_formula(quantised, x)
    compiled = torch.compile(quantised, backend="eager", fullgraph=True)
    np.testing.assert_allclose(float64(compiled(x)), expected, atol=1e-5)


def quantise_where_warnings_are_errors():
    warnings.simplefilter("error")
    torch.set_grad_enabled(False)
    Int8Linear.from_linear(nn.Linear(8, 8))(torch.ones(1, 8))


def test_quantizing_logs_no_warning(tmp_path):
    # In a process of its own, because torch warns once.
    log = tmp_path / "log"
    assert exit_code(start(quantise_where_warnings_are_errors, log=log)) == 0, log.read_text()


def load(folder=FIXTURE, model_class=AutoModelForSeq2SeqLM, **kwargs):
    return model_class.from_pretrained(folder, quantization_config=Int8Config(), **kwargs)


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS).logits


def linear_layers(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_all_matrices_but_the_embeddings_are_int8():
    exact, model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), load()
    assert linear_layers(model).keys() == linear_layers(exact).keys()
    for name, module in linear_layers(model).items():
        expected = Int8Linear.from_linear(exact.get_submodule(name))
        assert type(module) is Int8Linear
        for part, weight in expected.state_dict().items():
            assert torch.equal(module.state_dict()[part], weight), (name, part)
    integers = {f"{name}.weight" for name in linear_layers(model)}
    for name, weight in exact.state_dict().items():
        assert name in integers or torch.equal(model.state_dict()[name], weight), name
    assert model.model.shared.weight is model.model.encoder.embed_tokens.weight


@pytest.mark.parametrize("num_beams", [1, 4])
def test_int8_model_translates_like_float32(num_beams):
    expected = EXPECTED[f"{num_beams} beams"]
    output = translate(load(), AutoTokenizer.from_pretrained(FIXTURE), list(expected), num_beams=num_beams)
    equal = sum(ours == theirs for ours, theirs in zip(output, expected.values(), strict=True))
    assert equal >= 0.97 * len(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_int8_model_is_loaded_unchanged(tmp_path, dtype):
    model = load(dtype=dtype)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["quant_method"] == (
        "vanilla_transformer_int8"
    )
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.dtype == dtype
    assert all(type(module) is Int8Linear for module in linear_layers(loaded).values())
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
    full = (FIXTURE / "model.safetensors").stat().st_size
    assert (tmp_path / "model.safetensors").stat().st_size < (0.6 if dtype == torch.float32 else 0.45) * full
    trained = {name for name, weight in loaded.named_parameters() if weight.requires_grad}
    assert trained == {name for name, weight in model.named_parameters() if weight.requires_grad}
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")), logits(model))
    base = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        states = base(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS).last_hidden_state
        assert torch.equal(model.lm_head(states), logits(model))


def test_loading_reports_no_missing_and_no_unexpected_keys(tmp_path):
    load().save_pretrained(tmp_path)
    _, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize(
    "shape",
    [{"tie_word_embeddings": False}, {"source_vocab_size": 70}, {"attention_bias": False}, {"d_model": 20}, IMPORTED],
)
def test_models_of_any_shape(tmp_path, shape):
    small_model(**shape).save_pretrained(tmp_path)
    model = load(tmp_path)
    model.save_pretrained(tmp_path / "int8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    assert torch.equal(logits(loaded), logits(model))
    exact = logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path))
    assert (logits(model) - exact).square().mean() < 0.01 * exact.square().mean()


def test_dequantize():
    exact, model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), load()
    again = model.dequantize()
    assert not any(type(module) is Int8Linear for module in again.modules())
    assert again.lm_head.weight is again.model.shared.weight
    assert "quantization_config" not in again.config.to_dict()
    difference = (logits(again) - logits(exact)).square().mean()
    assert 0 < difference < 0.01 * logits(exact).square().mean()


def test_dequantize_a_loaded_model(tmp_path):
    load().save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "copy")
    again = model.dequantize()
    assert again.all_tied_weights_keys == AutoModelForSeq2SeqLM.from_pretrained(FIXTURE).all_tied_weights_keys
    again.save_pretrained(tmp_path / "float")
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "float")), logits(again))


@pytest.fixture
def int8_model(tmp_path):
    ending_model().save_pretrained(tmp_path / "float")
    return load(tmp_path / "float")


def in_float64(model):
    """The same weights, the product of integers and scales included, in float64."""
    return copy.deepcopy(model).double().dequantize(torch.float64)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_explains_the_errors_of_steps_and_modules(int8_model, dtype, num_beams, monkeypatch):
    model = int8_model.to(dtype)
    assert takes_steps(model, monkeypatch, num_beams=num_beams)
    lengths = (7, 3, 5, 6, 4, 8) if num_beams == 1 else (7, 3, 5)
    assert_rounding_explains(*three_ways(model, in_float64(model), lengths, num_beams, LEVELS))


@pytest.mark.parametrize("num_beams", [1, 3])
def test_steps_without_int8_matmuls_equal_the_modules(int8_model, num_beams, monkeypatch):
    monkeypatch.setattr(prepacked_weights, "_INT8_ENGINES", ())
    assert_steps_equal_the_modules(int8_model, (7, 3, 5), num_beams)


def test_steps_read_weights_written_after_packing(int8_model):
    *_, before, rounded = three_ways(int8_model, in_float64(int8_model), levels=LEVELS)
    int8_model.model.decoder.layers[0].fc1.weight.data[:, :4] = 127
    results = three_ways(int8_model, in_float64(int8_model), levels=LEVELS)
    # The states of the encoder, which is unchanged, are the same.
    assert rms(results[2] - before) > 4 * rms(rounded - before)
    # Steps that read the old weights would be further away than rounding explains.
    assert not explained(before, *results[2:])
    assert_rounding_explains(*results)


def test_int8_model_is_not_trained_without_adapters(int8_model, tmp_path):
    with pytest.raises(ValueError, match="purely quantized"):
        Seq2SeqTrainer(int8_model, PaperTrainingArguments(output_dir=str(tmp_path / "run")))


def test_adapters_on_int8_model_are_trained(int8_model, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(int8_model, peft.LoraConfig(target_modules=["q_proj", "v_proj", "fc2"]))
    arguments = {"max_steps": 12, "learning_rate": 0.02, "lr_scheduler_type": "constant", "logging_steps": 1}
    args = PaperTrainingArguments(output_dir=str(tmp_path / "run"), save_strategy="no", use_cpu=True, **arguments)
    data = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in SENTENCES]
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    collator = DataCollatorForSeq2Seq(tokenizer, model=int8_model)
    trainer = Seq2SeqTrainer(adapted, args, train_dataset=data, data_collator=collator)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]
    assert not takes_steps(adapted.eval(), monkeypatch)


@pytest.mark.parametrize("safe_merge", [False, True])
def test_adapters_are_merged_after_dequantize(int8_model, safe_merge):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj", "fc2"], init_lora_weights=False)
    before = logits(int8_model)
    adapted = peft.get_peft_model(int8_model, settings).eval()
    adapted.dequantize()
    expected = logits(adapted)
    assert not torch.isclose(expected, before, atol=0.1).all()
    merged = adapted.merge_and_unload(safe_merge=safe_merge)
    assert not any(isinstance(module, Int8Linear) for module in merged.modules())
    torch.testing.assert_close(logits(merged), expected, atol=1e-4, rtol=1e-4)


def test_peft_still_cannot_merge_adapters_into_integers(int8_model):
    """Or else the page says too much."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["q_proj", "v_proj", "fc2"], init_lora_weights=False)
    before = logits(int8_model)
    adapted = peft.get_peft_model(int8_model, settings).eval()
    expected = logits(adapted)
    with pytest.raises(RuntimeError):
        adapted.merge_adapter()
    merged = logits(adapted.merge_and_unload(safe_merge=True))
    assert (merged - before).abs().mean() < 0.1 * (expected - before).abs().mean()


def test_model_that_is_untied_later_is_saved_whole(tmp_path):
    model = load()
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)), logits(model))


def test_missing_matrix_raises(tmp_path):
    load(model_class=AutoModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lacks int8 matrices"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_the_vocabulary_of_int8_weights_keeps_its_size():
    model = load()
    with pytest.raises(ValueError, match="int8; call dequantize"):
        model.resize_token_embeddings(100)
    model.dequantize().resize_token_embeddings(100)
    assert model.lm_head.out_features == 100


def test_several_devices_raise(tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    model.hf_device_map = {"model": "cpu", "lm_head": "disk"}
    with pytest.raises(ValueError, match="device_map spreads the model"):
        Int8Quantizer(Int8Config(), pre_quantized=False).postprocess_model(model)


def test_other_models_raise(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    BartModel(BartConfig(vocab_size=20, max_position_embeddings=20, **sizes, **heads)).save_pretrained(tmp_path)
    load()  # From here on transformers knows the configuration.
    with pytest.raises(ValueError, match="BartModel is not one"):
        load(tmp_path, BartModel)


def test_documented_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run(blocks("int8", page="precision_and_memory.md")[0])
    assert "['zweiundvierzig', 'sieben']" in capsys.readouterr().out
    assert type(names["model"].lm_head) is Int8Linear
