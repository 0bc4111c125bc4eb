"""Int8 through torchao: what is quantised, that it is saved and loaded the same, and that it still translates."""

import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.models import pad, sentences, small_model


# Imported where it is used: every process reads this file, and one of them runs it.
pytestmark = [
    pytest.mark.torchao,
    pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed"),
]

EXPECTED = json.loads((FIXTURE / "translations.json").read_text(encoding="utf-8"))
WAYS = ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"]
IDS, MASK = pad(sentences(5, 9, 3))


def load(way, folder=FIXTURE):
    from torchao import quantization
    from transformers import TorchAoConfig

    return AutoModelForSeq2SeqLM.from_pretrained(
        folder, quantization_config=TorchAoConfig(getattr(quantization, way)())
    )


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS).logits


def is_int8(weight):
    return hasattr(weight, "qdata") and weight.qdata.dtype == torch.int8


@pytest.mark.parametrize("way", WAYS)
def test_the_projections_are_int8_and_nothing_else(way):
    model = load(way)
    quantised = {name for name, weight in model.named_parameters() if is_int8(weight)}
    projections = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    assert quantised == projections
    assert len(projections) == (4 + 2) + (8 + 2)  # one layer each: attention's four, and the two of Eq. 2
    assert model.lm_head.weight is model.model.shared.weight
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_it_says_what_the_float32_model_says(way, num_beams):
    expected = EXPECTED[f"{num_beams} beams"]
    output = translate(load(way), AutoTokenizer.from_pretrained(FIXTURE), list(expected), num_beams=num_beams)
    equal = sum(ours == theirs for ours, theirs in zip(output, expected.values(), strict=True))
    assert equal >= 0.97 * len(expected)


def test_int8_weights_are_off_by_half_a_step_at_most():
    exact = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE).state_dict()
    for name, weight in load("Int8WeightOnlyConfig").named_parameters():
        if is_int8(weight):
            step = exact[name].abs().amax(dim=1, keepdim=True) / 127
            assert ((weight.dequantize() - exact[name]).abs() <= 0.51 * step).all(), name


@pytest.mark.parametrize("way", WAYS)
def test_a_saved_one_is_loaded_as_it_was(tmp_path, way):
    model = load(way)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert {name for name, weight in loaded.named_parameters() if is_int8(weight)} == {
        name for name, weight in model.named_parameters() if is_int8(weight)
    }
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.lm_head.weight is loaded.model.shared.weight
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
    assert loaded.generation_config.length_penalty_type == "gnmt"
    full = (FIXTURE / "model.safetensors").stat().st_size
    assert (tmp_path / "model.safetensors").stat().st_size < 0.65 * full
    loaded.save_pretrained(tmp_path / "again", save_original_format=False)
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")), logits(model))


@pytest.mark.parametrize("vocabularies", [{"tie_word_embeddings": False}, {"source_vocab_size": 70}], ids=str)
def test_without_one_matrix_the_softmax_stays_float32_too(tmp_path, vocabularies):
    model = small_model(**vocabularies)
    model.save_pretrained(tmp_path)
    quantised = load("Int8WeightOnlyConfig", tmp_path)
    assert torch.equal(quantised.lm_head.weight, model.lm_head.weight)
    for stack, original in (
        (quantised.model.encoder, model.model.encoder),
        (quantised.model.decoder, model.model.decoder),
    ):
        assert torch.equal(stack.embed_tokens.weight, original.embed_tokens.weight)
        assert is_int8(stack.layers[0].fc1.weight)


def test_the_documented_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(blocks("int8 by torchao", page="precision_and_memory.md")[0])
    for model in (names["model"], AutoModelForSeq2SeqLM.from_pretrained("runs/int8_torchao")):
        assert is_int8(model.model.encoder.layers[0].fc1.weight)
