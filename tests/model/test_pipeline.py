"""`pipeline("translation")` on a trained model, against `translate` and `generate`."""

import enum
import json
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas
import pytest
import regex
import torch
from datasets import DatasetDict
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from hf_vanilla_transformer import TranslationPipeline, VanillaTransformerModel, registration, translate
from hf_vanilla_transformer.data.target_language import check_language
from hf_vanilla_transformer.model.input_checks import has_letters, is_blank
from hf_vanilla_transformer.translation.concurrent_use import evaluating
from tests.models import small_config, small_model


FOLDER = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
WORDS = ["forty-two", "seven", "one hundred and one", "three thousand, five hundred and eleven", "twenty"]


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def translator(model, tokenizer):
    return TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")


@pytest.fixture(scope="module")
def expected(model, tokenizer):
    return [{"translation_text": text} for text in translate(model, tokenizer, WORDS)]


def test_every_way_of_making_one(model, tokenizer, expected):
    pipelines = [
        pipeline("translation", model=str(FOLDER), device="cpu"),
        pipeline("translation", model=FOLDER, num_beams=4, device="cpu"),
        pipeline("translation", model=model, tokenizer=tokenizer, device="cpu"),
        pipeline("translation", model=str(FOLDER), trust_remote_code=True, device="cpu"),
        TranslationPipeline(model, tokenizer, device="cpu"),
    ]
    for translator in pipelines:
        assert type(translator) is TranslationPipeline
        assert translator(WORDS[0]) == expected[:1] == [{"translation_text": "zweiundvierzig"}]


def test_a_model_has_one_direction_and_is_named(translator):
    with pytest.raises(KeyError, match="translation_en_to_de"):
        pipeline("translation_en_to_de", model=translator.model, tokenizer=translator.tokenizer)
    assert "default" not in PIPELINE_REGISTRY.supported_tasks["translation"]


def test_a_saved_pipeline_loads(translator, expected, tmp_path):
    translator.save_pretrained(tmp_path)
    assert "custom_pipelines" in json.loads((tmp_path / "config.json").read_text())
    again = pipeline("translation", model=str(tmp_path), device="cpu")
    assert type(again) is TranslationPipeline
    assert again(WORDS) == expected


@pytest.mark.parametrize("batch_size", [1, 2, 5, 16])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_batches(model, expected, batch_size, padding_side):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, padding_side=padding_side)
    translator = TranslationPipeline(model, tokenizer, device="cpu", batch_size=batch_size)
    assert translator(WORDS) == translator(WORDS, batch_size=3) == translator(tuple(WORDS)) == expected


def test_iterators_are_read_as_translations_are_asked_for(translator, expected):
    read = []

    def sentences():
        for word in WORDS:
            read.append(word)
            yield word

    translations = translator(sentences(), batch_size=1)
    assert next(iter(translations)) == expected[0]
    assert len(read) < len(WORDS)
    assert list(translator(iter(WORDS), batch_size=2)) == expected
    assert list(translator(map(str, WORDS))) == expected


def test_data_sets(translator, expected):
    from transformers.pipelines.pt_utils import KeyDataset

    class Words(Dataset):
        def __len__(self):
            return len(WORDS)

        def __getitem__(self, index):
            return WORDS[index]

    table = datasets.Dataset.from_dict({"source": WORDS})
    assert list(translator(Words(), batch_size=2)) == expected
    assert list(translator(KeyDataset(table, "source"))) == expected
    assert translator(table["source"]) == expected


BLANK = ["", " \n", "\u200b", "\ufeff", "\xad \u2060\x07", "\N{HANGUL FILLER}"]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_sentences_without_visible_characters_are_their_own_translations(translator, expected, batch_size):
    blank = [{"translation_text": text} for text in BLANK]
    assert [translator(text) for text in BLANK] == [[translation] for translation in blank]
    translations = translator([WORDS[0], *BLANK, WORDS[1]], batch_size=batch_size)
    assert translations == [expected[0], *blank, expected[1]]
    assert translator(BLANK[1], num_return_sequences=2) == [blank[1]] * 2
    assert translator(BLANK[1], return_tensors=True)[0]["translation_token_ids"].tolist() == []
    assert translator([]) == []


def test_visible_characters_are_those_of_unicode():
    blank = regex.compile(r"[\p{White_Space}\p{Default_Ignorable_Code_Point}\p{Cc}]")
    for character in map(chr, range(sys.maxunicode + 1)):
        assert is_blank(character) == bool(blank.fullmatch(character)), hex(ord(character))


def test_letters_are_those_of_unicode():
    letter = regex.compile(r"\p{L}")
    for character in map(chr, range(sys.maxunicode + 1)):
        # regex has a newer version of Unicode than some releases of Python.
        if unicodedata.category(character) != "Cn":
            assert has_letters(f"5{character}") == bool(letter.search(character)), hex(ord(character))


def test_arguments_of_transformers_4(translator, expected):
    """`ReturnType` of its pipelines was an Enum."""
    return_type = enum.Enum("ReturnType", {"TENSORS": 0, "TEXT": 1})
    for options in ({"return_type": 0}, {"return_type": return_type.TENSORS}, {"return_tensors": True}):
        assert [*translator(WORDS[0], **options)[0]] == ["translation_token_ids"]
    for options in (
        *({"return_type": 1}, {"return_type": return_type.TEXT, "return_tensors": True}, {"return_text": True}),
        *({"clean_up_tokenization_spaces": False}, {"truncation": False}, {"src_lang": "fr", "tgt_lang": "de"}),
    ):
        assert translator(WORDS, **options, batch_size=2) == expected, options
    (both,) = translator(WORDS[0], return_tensors=True, return_text=True)
    assert translator.tokenizer.decode(both["translation_token_ids"], skip_special_tokens=True) == "zweiundvierzig"
    assert both["translation_text"] == "zweiundvierzig"
    with pytest.raises(ValueError, match="return_tensors and return_text are both False"):
        translator(WORDS[0], return_text=False)


def test_truncation_stops_and_languages(model):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, model_max_length=3, source_lang="en", target_lang="de")
    translator = TranslationPipeline(model, tokenizer, device="cpu")
    ids = tokenizer(WORDS[3], truncation=True, return_tensors="pt").input_ids
    assert ids.shape == (1, 3)
    text = tokenizer.decode(model.generate(ids)[0], skip_special_tokens=True)
    assert translator(WORDS[3], truncation=True) == [{"translation_text": text}]
    assert translator(WORDS[3]) != [{"translation_text": text}]
    (stopped,) = translator("forty-two", stop_sequence="und")
    assert stopped["translation_text"] == "zweiund"
    assert translator("forty-two", src_lang="en_XX", tgt_lang="deu_Latn")[0]["translation_text"] == "zweiundvierzig"
    with pytest.raises(ValueError, match='tgt_lang is "fr_XX", but the model has "de"; leave it out'):
        translator("forty-two", tgt_lang="fr_XX")
    with pytest.raises(ValueError, match="stop_sequence is empty"):
        translator("forty-two", stop_sequence="")
    with pytest.raises(ValueError, match="return_type is 7; give 0 for token ids, or 1 for text"):
        translator("forty-two", return_type=7)


@pytest.mark.parametrize(
    ("own", "same", "other_codes"),
    [
        ("de", ("deu_Latn", "ger", "DE", "de-AT", "xx", "bar_Latn"), ("fra_Latn", "eng", "en_US", "zho_Hans")),
        ("zho_Hans", ("cmn", "zh", "zh_TW", "zho_Hant"), ("en", "jpn_Jpan", "yue_Hant")),
        ("no", ("nob_Latn", "nn"), ("da", "swe_Latn")),
        ("fil", ("tgl_Latn", "tl_XX"), ("ceb_Latn",)),
        ("ara", ("arb_Arab", "ar"), ("pes_Arab",)),
        ("gsw", ("de", "gsw"), ()),
        (None, ("de", "fra_Latn"), ()),
    ],
)
def test_codes_of_one_language_and_of_others(own, same, other_codes):
    tokenizer = SimpleNamespace(target_lang=own)
    for code in same:
        check_language(tokenizer, "tgt_lang", code)
    for code in other_codes:
        with pytest.raises(ValueError, match=f'tgt_lang is "{code}", but the model has "{own}"; leave it out'):
            check_language(tokenizer, "tgt_lang", code)


def test_modes_are_restored_when_the_last_thread_leaves():
    model = small_model().train()
    model.model.encoder.eval()
    before = [module.training for module in model.modules()]
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == before


def test_generation_arguments(model, tokenizer, translator):
    inputs = tokenizer(WORDS[3], return_tensors="pt")
    for options in ({"num_beams": 1}, {"num_beams": 3, "length_penalty": 2.0}, {"max_new_tokens": 3}):
        text = tokenizer.decode(model.generate(**inputs, **options)[0], skip_special_tokens=True)
        assert translator(WORDS[3], **options) == [{"translation_text": text}]
        at_the_start = TranslationPipeline(model, tokenizer, device="cpu", **options)
        assert at_the_start(WORDS[3]) == [{"translation_text": text}]
        in_one = TranslationPipeline(model, tokenizer, device="cpu", return_dict_in_generate=True, **options)
        assert in_one(WORDS[3]) == [{"translation_text": text}]


def test_our_own_generation_arguments(translator):
    """The untrained model generates up to its limit."""
    untrained = TranslationPipeline(
        small_model(vocab_size=len(translator.tokenizer)), translator.tokenizer, device="cpu"
    )
    source = untrained.tokenizer("seven").input_ids
    for options in ({}, {"max_length_offset": 4}):
        ids = untrained("seven", return_tensors=True, eos_token_id=None, num_beams=1, **options)[0]
        assert len(ids["translation_token_ids"]) == 1 + len(source) + options.get("max_length_offset", 50)
    with pytest.raises(ValueError, match='length_penalty_type is "google"'):
        untrained("seven", length_penalty_type="google")


@pytest.mark.parametrize("batch_size", [1, 2])
def test_several_translations_a_sentence(model, tokenizer, translator, batch_size):
    translations = translator(WORDS, num_return_sequences=3, batch_size=batch_size)
    assert [len(of_one) for of_one in translations] == [3] * len(WORDS)
    for word, of_one in zip(WORDS, translations, strict=True):
        output = model.generate(**tokenizer(word, return_tensors="pt"), num_return_sequences=3)
        texts = tokenizer.batch_decode(output, skip_special_tokens=True)
        assert [translation["translation_text"] for translation in of_one] == texts
    assert translator(WORDS[0], num_return_sequences=3) == translations[0]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_return_tensors(model, tokenizer, translator, batch_size):
    for word, output in zip(WORDS, translator(WORDS, return_tensors=True, batch_size=batch_size), strict=True):
        assert list(output) == ["translation_token_ids"]
        ids = model.generate(**tokenizer(word, return_tensors="pt"))[0]
        assert torch.equal(output["translation_token_ids"], ids)
    always = TranslationPipeline(model, tokenizer, device="cpu", return_tensors=True)
    assert "translation_token_ids" in always(WORDS)[0]
    assert always(WORDS[0], return_tensors=False) == [{"translation_text": "zweiundvierzig"}]


def test_long_inputs_are_not_cut(translator, monkeypatch):
    read = []
    model_class = type(translator.model)
    generate = model_class.generate
    long = "seven " * 400

    def note(model, **kwargs):
        read.append(kwargs["input_ids"].tolist())
        return generate(model, **kwargs)

    monkeypatch.setattr(model_class, "generate", note)
    translator(long, num_beams=1, max_new_tokens=5)
    assert read == [[translator.tokenizer(long).input_ids]]
    assert len(read[0][0]) > 512


def test_a_sentence_longer_than_learned_positions_is_refused(translator):
    learned = small_model(
        vocab_size=len(translator.tokenizer), position_embedding_type="learned", max_position_embeddings=8
    )
    with pytest.raises(ValueError, match="max_position_embeddings"):
        TranslationPipeline(learned, translator.tokenizer, device="cpu")("seven " * 20)


@pytest.mark.parametrize(
    ("wrong", "type_name"),
    [
        (7, "int"),
        (None, "NoneType"),
        (b"seven", "bytes"),
        (["seven", 7], "int"),
        ([["seven"]], "list"),
        ([{"source": "seven"}], "dict"),
        ({"source": "seven"}, "dict"),
        (DatasetDict(test=datasets.Dataset.from_dict({"source": ["seven"]})), "DatasetDict"),
        (datasets.Dataset.from_dict({"source": ["seven"]}), "dict"),
        (pandas.DataFrame({"source": ["seven"]}), "DataFrame"),
    ],
)
def test_what_is_no_sentence_is_named(translator, wrong, type_name):
    with pytest.raises(TypeError, match=f"the input is of type {type_name}; give strings"):
        translator(wrong)


def test_what_cannot_translate_is_refused(translator):
    with pytest.raises(ValueError, match="tokenizer"):
        TranslationPipeline(translator.model, device="cpu")
    with pytest.raises(ValueError, match=r"VanillaTransformerModel has no generate\(\)"):
        TranslationPipeline(VanillaTransformerModel(small_config()), translator.tokenizer, device="cpu")


def test_the_model_s_mode_and_settings_are_left_alone(model, translator, monkeypatch):
    before = model.generation_config.to_dict()
    expected = translator(WORDS, num_beams=2, max_new_tokens=3)
    assert model.generation_config.to_dict() == before
    # As a Trainer leaves it, but for a layer.
    monkeypatch.setattr(model.config, "dropout", 0.9)
    model.train()
    model.lm_head.eval()
    modes = [module.training for module in model.modules()]
    try:
        assert translator(WORDS, num_beams=2, max_new_tokens=3) == expected
        assert [module.training for module in model.modules()] == modes
    finally:
        model.eval()


def test_other_models_translate_too(tokenizer, translator):
    torch.manual_seed(0)
    size = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    marian = MarianMTModel(MarianConfig(**size, **heads, **tokens, forced_eos_token_id=None)).eval()
    translator = pipeline("translation", model=marian, tokenizer=tokenizer, device="cpu", max_new_tokens=6, num_beams=1)
    output = marian.generate(**tokenizer("seven", return_tensors="pt"), max_new_tokens=6, num_beams=1)
    assert translator("seven") == [{"translation_text": tokenizer.decode(output[0], skip_special_tokens=True)}]


def test_what_others_registered_stays(monkeypatch):
    class Other:
        pass

    theirs = {"impl": Other, "pt": (), "type": "text"}
    monkeypatch.setitem(PIPELINE_REGISTRY.supported_tasks, "translation", theirs)
    registration.register()
    assert PIPELINE_REGISTRY.supported_tasks["translation"] is theirs


def test_lone_surrogates_are_named(translator):
    with pytest.raises(ValueError, match=r"the input is '\\udcff', which is not UTF-8 text; decode it"):
        translator(["seven", "\udcff"])
