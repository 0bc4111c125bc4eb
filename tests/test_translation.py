import pytest
import torch

from hf_vanilla_transformer import translate
from tests.conftest import small_model


SENTENCES = ["two small houses", "a", "", "a small house a small house", "   ", "two"]


@pytest.fixture(scope="module")
def model(tokenizer):
    return small_model(vocab_size=len(tokenizer))


def alone(model, tokenizer, sentence):
    inputs = tokenizer([sentence], return_tensors="pt")
    return tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)


@pytest.mark.parametrize("batch_tokens", [1, 8, 4096])
def test_order_is_kept_whatever_the_batches(model, tokenizer, batch_tokens):
    expected = [alone(model, tokenizer, sentence) if sentence.strip() else "" for sentence in SENTENCES]
    assert len(set(expected)) > 2
    assert translate(model, tokenizer, SENTENCES, batch_tokens=batch_tokens) == expected


def test_nothing_to_translate(model, tokenizer):
    assert translate(model, tokenizer, []) == []
    assert translate(model, tokenizer, ["", " "]) == ["", ""]


def test_generation_arguments_pass(model, tokenizer):
    options = {"max_new_tokens": 1, "num_beams": 1}
    output = model.generate(**tokenizer(["two small houses"], return_tensors="pt"), **options)
    expected = tokenizer.decode(output[0], skip_special_tokens=True)
    assert translate(model, tokenizer, ["two small houses"], **options) == [expected]
    assert translate(model, tokenizer, ["two small houses"]) != [expected]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_s_mode_is_left_as_it_was(model, tokenizer, training):
    model.train(training)
    try:
        expected = translate(model, tokenizer, SENTENCES)
        assert model.training == training
        torch.manual_seed(3)
        assert translate(model, tokenizer, SENTENCES) == expected
    finally:
        model.eval()


def test_any_iterable(model, tokenizer):
    assert translate(model, tokenizer, (text for text in SENTENCES)) == translate(model, tokenizer, SENTENCES)


def test_something_else_than_strings(model, tokenizer):
    with pytest.raises(TypeError, match="sentences holds None, a NoneType; give strings"):
        translate(model, tokenizer, ["a", None])


@pytest.mark.parametrize("options", [{"num_return_sequences": 2}, {"return_dict_in_generate": True}])
def test_more_than_one_translation_a_sentence(model, tokenizer, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} does not go with one translation a sentence"):
        translate(model, tokenizer, ["a"], **options)


def test_one_string_is_no_list(model, tokenizer):
    with pytest.raises(TypeError, match="sentences is one string; give a list"):
        translate(model, tokenizer, "two")
