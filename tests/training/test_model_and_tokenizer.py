"""The model and the tokenizer of a run: new ones, and those of an existing model."""

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoConfig

from hf_vanilla_transformer.model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from hf_vanilla_transformer.training import model_and_tokenizer
from hf_vanilla_transformer.training.model_and_tokenizer import load_existing_model, make_tokenizer, train_new_tokenizer
from hf_vanilla_transformer.training.model_arguments import ModelArguments
from tests.models import small_model


SOURCES = ["a dog sees a cat", "a cat sees a dog", "dogs see cats"] * 20
TARGETS = ["ein Hund sieht eine Katze", "eine Katze sieht einen Hund", "Hunde sehen Katzen"] * 20


@pytest.fixture
def pairs() -> DatasetDict:
    return DatasetDict(train=Dataset.from_dict({"source": SOURCES, "target": TARGETS}))


@pytest.fixture
def model_folder(tmp_path, tokenizer) -> Path:
    """A saved model of this package, with its tokenizer."""
    folder = tmp_path / "model"
    small_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tokenizer_type", ["bpe", "char"])
def test_train_new_tokenizer_with_a_joint_vocabulary(pairs, tokenizer_type):
    tokenizer = train_new_tokenizer(ModelArguments(tokenizer_type=tokenizer_type, vocab_size=400), pairs)
    for sentence in (SOURCES[0], TARGETS[0]):
        assert tokenizer.decode(tokenizer(sentence).input_ids, skip_special_tokens=True) == sentence
    has_words = len(tokenizer(SOURCES[0], add_special_tokens=False).input_ids) < len(SOURCES[0])
    assert has_words == (tokenizer_type == "bpe")


def test_train_new_tokenizer_with_two_vocabularies(pairs):
    tokenizer = train_new_tokenizer(ModelArguments(joint_vocabulary=False, vocab_size=400), pairs)
    assert isinstance(tokenizer, TwoVocabularyTokenizer)
    assert any("Katze" in token for token in tokenizer.target_tokenizer.get_vocab())
    assert not any("Katze" in token for token in tokenizer.source_tokenizer.get_vocab())


def test_make_tokenizer_loads_the_one_that_is_named(pairs, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    loaded = make_tokenizer(ModelArguments(tokenizer_name=str(tmp_path)), pairs)
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_make_tokenizer_trains_one_if_none_is_named(pairs):
    arguments = ModelArguments(vocab_size=400)
    assert make_tokenizer(arguments, pairs).get_vocab() == train_new_tokenizer(arguments, pairs).get_vocab()


def test_load_existing_model_to_fine_tune(model_folder, tokenizer, caplog):
    caplog.set_level("INFO")
    arguments = ModelArguments(model_name_or_path=str(model_folder), dropout=0.25)
    loaded_tokenizer, model = load_existing_model(arguments, None)
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert model.config.dropout == 0.25
    assert caplog.messages == [f"fine-tuning {model_folder}, with its sizes and its tokenizer"]


def test_load_existing_model_from_a_checkpoint(model_folder, tokenizer, caplog):
    caplog.set_level("INFO")
    loaded_tokenizer, _model = load_existing_model(ModelArguments(), model_folder)
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert not caplog.messages


def test_load_existing_model_of_a_different_system_is_converted(tmp_path, model_folder, monkeypatch, caplog):
    caplog.set_level("INFO")
    original = tmp_path / "original"
    original.mkdir()
    (original / "config.json").write_text('{"model_type": "marian"}')
    (original / "tokenizer_config.json").write_text("{}")
    requests = []

    def convert(name, revision=None, token=None):
        requests.append((name, revision, token))
        return model_folder

    monkeypatch.setattr(model_and_tokenizer, "native_folder", convert)
    arguments = ModelArguments(model_name_or_path=str(original), revision="main", token="hf_mine")
    _tokenizer, model = load_existing_model(arguments, None)
    assert requests == [(str(original), "main", "hf_mine")]
    assert model.config.d_model == AutoConfig.from_pretrained(model_folder).d_model
    assert caplog.messages == [
        f"fine-tuning {original}, converted into a model of this package, with its sizes and its tokenizer"
    ]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ('{"model_type": "t5"}', {}, "is a t5 model; this command trains vanilla_transformer"),
        (None, {"d_model": 7}, "d_model is 7"),
    ],
)
def test_load_existing_model_rejects_other_models(model_folder, content, arguments, message):
    if content is not None:
        (model_folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_existing_model(ModelArguments(model_name_or_path=str(model_folder), **arguments), None)
