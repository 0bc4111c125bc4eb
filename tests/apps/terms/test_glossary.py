"""Terms are found as whole words, and their translations occur as whole words."""

import re
import unicodedata

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import Metaspace
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, TokenizersBackend

from hf_vanilla_transformer import (
    ForcedPhrases,
    TwoVocabularyTokenizer,
    train_tokenizer,
    translate,
    translate_documents,
)
from hf_vanilla_transformer.apps.terms.glossary import (
    Glossary,
    letter_edges,
    read_terms,
    tokenize_in_contexts,
)
from tests.ecosystem.documentation import FIXTURE
from tests.models import decisive_model, normalizer


TEXTS = ["ein kleines Haus", "zwei kleine Häuser", "Boot", "(Haus) und Hausboot-Haus, Häuser!", "a small house"] * 5


def sentence_pieces() -> TokenizersBackend:
    """A tokenizer that marks spaces by ▁, and has unknown characters."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), Metaspace()
    specials = ["<pad>", "<s>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=specials, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return TokenizersBackend(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def two_vocabularies() -> TwoVocabularyTokenizer:
    sources = train_tokenizer(["house small boat"] * 4, vocab_size=270, show_progress=False)
    return TwoVocabularyTokenizer.of(sources, train_tokenizer(TEXTS, vocab_size=290, show_progress=False))


def normalizing() -> TokenizersBackend:
    """Trained on bytes, and without invisible characters and runs of spaces."""
    tokenizer = train_tokenizer(TEXTS, vocab_size=290, show_progress=False)
    tokenizer.backend_tokenizer.normalizer = normalizer()
    return tokenizer


TOKENIZERS = {
    "normalized": normalizing,
    "bytes": lambda: train_tokenizer(TEXTS, vocab_size=290, show_progress=False),
    "words at spaces": lambda: train_tokenizer(TEXTS, vocab_size=290, show_progress=False, whitespace_words=True),
    "sentence pieces": sentence_pieces,
    "two vocabularies": two_vocabularies,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def any_tokenizer(name):
    return TOKENIZERS[name]()


@pytest.mark.parametrize("text", ["Haus", "Häuser", "kleines Haus"])
def test_each_tokenization_is_one_of_the_text(name, any_tokenizer, text):
    alternatives = tokenize_in_contexts(any_tokenizer, text)
    sentences = [text, f"ein {text}", f"ein {text} und"]
    if name != "words at spaces":  # Such a tokenizer has tokens of words with their punctuation.
        sentences += [f"({text})", f"Hausboot-{text}, klein"]
        assert len(alternatives) > 1
    for sentence in sentences:
        ids = any_tokenizer(text_target=sentence, add_special_tokens=False).input_ids
        assert any(
            ids[start : start + len(alternative)] == alternative
            for alternative in alternatives
            for start in range(len(ids))
        ), sentence
    assert all(any_tokenizer.decode(ids).strip() == text for ids in alternatives)
    assert len(alternatives) == len(set(map(tuple, alternatives)))


def test_edges_of_tokens(any_tokenizer):
    target = getattr(any_tokenizer, "target_tokenizer", any_tokenizer)
    begins, ends, silent = letter_edges(any_tokenizer, len(target) + 3).tolist()
    for token, text in enumerate(target.convert_ids_to_tokens(range(len(target)))):
        if token in target.all_special_ids:
            assert (begins[token], ends[token]) == (False, False)
        elif text.removeprefix("Ġ").removeprefix("▁").isascii():
            first, last = ("" if edge in "Ġ▁" else edge for edge in (text[0], text[-1]))
            assert (begins[token], ends[token]) == (first.isalnum() or first == "_", last.isalnum() or last == "_")
    assert begins[len(target) :] == ends[len(target) :] == [False] * 3
    assert silent[len(target) :] == [True] * 3
    specials = {*target.all_special_ids, target.convert_tokens_to_ids("<s>")}
    assert {token for token in range(len(target)) if silent[token]} == specials
    assert 0 < sum(begins) < sum(ends)


TERMS = {
    "machine": "Haus",
    "washing machine": "kleines Haus",
    "machine learning model": "Hausboot",
    "C++": "kleine",
    "café": "zwei",
    "हिन": "Boot",
    "機械": "Häuser",
    "straße": "ein",
    "x.y": "und",
    "don’t": "Boote",  # noqa: RUF001
    "컴퓨터": "Haus",
    "GPU": "Haus",
}
FOUND = {
    "machine": ["Haus"],
    "Machine": [],
    "machines": [],
    "übermachine": [],
    "machinè": [],
    "machine2 machine_": [],
    "machine's (machine) machine-made": ["Haus"] * 3,
    "a washing machine, machine": ["kleines Haus", "Haus"],
    "washing \t\u00a0machine": ["kleines Haus"],
    "washing machines": [],
    "washing machine washing": ["kleines Haus"],
    "machine learning models": ["Haus"],
    "machine learning model": ["Hausboot"],
    "C++ and xC++": ["kleine"],
    "cafe\u0301": ["zwei"],
    "cafe\u0301s caf\u00e9s": [],
    "हिन्दी": [],
    "機械翻訳": ["Häuser"],
    "straße straßen": ["ein"],
    "xxy x.y": ["und"],
    "": [],
    "don't, don\u2019t": ["Boote"] * 2,
    "ma\u00adchine \ufeffwashing\u200b machine": ["Haus", "kleines Haus"],
    "wash\x1fing machine": ["kleines Haus"],
    "컴퓨터는 컴퓨터, 컴퓨터에서도 컴퓨터로부터": ["Haus"] * 4,
    "슈퍼컴퓨터는 컴퓨터실": [],
    "GPU를 GPU이나이나이나이나이나이나이나이나이나이나x": ["Haus"],
}


@pytest.mark.parametrize("sentence", FOUND)
def test_terms_are_whole_words(any_tokenizer, sentence):
    phrases = Glossary(TERMS, any_tokenizer).phrases(sentence)
    assert phrases == [tokenize_in_contexts(any_tokenizer, text) for text in FOUND[sentence]]


def test_terms_in_another_normal_form(any_tokenizer):
    (decomposed,) = Glossary({unicodedata.normalize("NFD", "café"): "zwei"}, any_tokenizer).phrases("a café")
    assert decomposed == tokenize_in_contexts(any_tokenizer, "zwei")


def test_several_forms_are_alternatives(any_tokenizer):
    (phrase,) = Glossary({"house": ["Haus", "Häuser"]}, any_tokenizer).phrases("two house")
    assert phrase == [*tokenize_in_contexts(any_tokenizer, "Haus"), *tokenize_in_contexts(any_tokenizer, "Häuser")]


def test_no_terms(tokenizer):
    assert Glossary({}, tokenizer).phrases("a house") == []


def test_what_the_vocabulary_lacks():
    with pytest.raises(ValueError, match="the vocabulary has no tokens for 'Ωmega'; choose another translation"):
        Glossary({"a": "Ωmega"}, sentence_pieces())


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        (["a"], TypeError, "glossary is of type list; give a mapping"),
        ({"a": 5}, TypeError, "glossary has 5 for 'a'; give texts"),
        ({5: "a"}, TypeError, "glossary has 'a' for 5; give texts"),
        ({"a": ""}, ValueError, "glossary has '' for 'a'; give texts"),
        ({" ": "a"}, ValueError, "glossary has 'a' for ' '; give texts"),
        ({"a": []}, ValueError, "glossary has [] for 'a'; give texts"),
        ({"a  b": "x", "a b": "y"}, ValueError, "glossary has 'a b' twice; "),
    ],
)
def test_wrong_terms(tokenizer, terms, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Glossary(terms, tokenizer)


def test_reading_terms(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeffmachine\tMaschine\r\n\n washing machine \tWaschmaschine\tWaschmaschinen\n".encode())
    assert read_terms(path) == {"machine": ["Maschine"], "washing machine": ["Waschmaschine", "Waschmaschinen"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("machine Maschine", "line 2: 'machine Maschine'; write a term, a tab, and its translation."),
        ("machine\t", "line 2: 'machine\\t'; write a term, a tab"),
        ("\tMaschine", "line 2: '\\tMaschine'; write a term, a tab"),
        ("a\tb\t\tc", "line 2: 'a\\tb\\t\\tc'; write a term, a tab"),
        ("house\tHäuser", "line 2: 'house' has an earlier line; write all translations in one."),
    ],
)
def test_wrong_lines(tmp_path, line, message):
    path = tmp_path / "terms.tsv"
    path.write_text(f"house\tHaus\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}, {message}")):
        read_terms(path)


SENTENCES = ["a small house", "  ", "two", "two houses and a house, a house"]
HOUSES = {"house": ["Haus", "Häuser"], "two": "zwei"}


def said(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.fixture(scope="module")
def model(tokenizer):
    model = decisive_model(vocab_size=len(tokenizer))
    model.generation_config.max_length_offset = 20
    return model


@pytest.mark.parametrize("tokens_per_batch", [1, 4096])
def test_translations_have_the_terms_as_whole_words(model, tokenizer, tokens_per_batch):
    free = translate(model, tokenizer, SENTENCES, tokens_per_batch)
    translations = translate(model, tokenizer, SENTENCES, tokens_per_batch, glossary=Glossary(HOUSES, tokenizer))
    assert not {"Haus", "Häuser", "zwei"} & set(said(" ".join(free)))
    assert {"Haus", "Häuser"} & set(said(translations[0]))
    assert translations[1] == SENTENCES[1]
    assert "zwei" in said(translations[2])
    assert "zwei" in said(translations[3])
    assert sum(word in HOUSES["house"] for word in said(translations[3])) >= 2
    other = Glossary({"houses": "Häuser"}, tokenizer)
    assert translate(model, tokenizer, SENTENCES, tokens_per_batch, glossary=other)[:3] == free[:3]


def test_details_of_forced_translations(model, tokenizer):
    options = {"glossary": Glossary(HOUSES, tokenizer), "num_return_sequences": 2}
    translations = translate(model, tokenizer, SENTENCES, return_details=True, **options)
    assert [translation.text for translation in translations] == translate(model, tokenizer, SENTENCES, **options)


def test_terms_of_documents(model, tokenizer):
    glossary = Glossary(HOUSES, tokenizer)
    documents = ["<r>two <b>house</b></r>", "<r>two</r>"]
    both_documents, second_document = translate_documents(model, tokenizer, documents, "xml", glossary=glossary)
    assert "zwei" in said(both_documents)
    assert {"Haus", "Häuser"} & set(said(both_documents))
    assert "zwei" in said(second_document)


@pytest.mark.parametrize("function", [translate, translate_documents])
def test_arguments_of_earlier_versions_name_the_new_way(model, tokenizer, function):
    with pytest.raises(ValueError, match=r"glossary .*dict.*Glossary\(terms, tokenizer\)"):
        function(model, tokenizer, ["two"], glossary={"two": "zwei"})
    with pytest.raises(ValueError, match=r"forced_phrases.*Glossary\(terms, tokenizer\).*ForcedPhrases\(phrases\)"):
        function(model, tokenizer, ["two"], forced_phrases=[[[5]]])
    for markup in ("html", None):
        with pytest.raises(ValueError, match=r"markup.* translate_documents\("):
            function(model, tokenizer, ["two"], markup=markup)


def test_two_searches_are_refused(model, tokenizer):
    glossary = Glossary(HOUSES, tokenizer)
    with pytest.raises(ValueError, match="glossary and custom_generate"):
        translate(model, tokenizer, ["two"], glossary=glossary, custom_generate=ForcedPhrases([[[5]]]))


def test_translations_end_at_stop_strings(model, tokenizer):
    glossary = Glossary({"two": "zwei"}, tokenizer)
    (translation,) = translate(model, tokenizer, ["two"], glossary=glossary, stop_strings=["zwei"])
    assert translation.endswith("zwei")


def test_models_that_cannot_be_forced(model, tokenizer):
    config = MarianConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    config.update({"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None})
    marian = MarianMTModel(config).eval()
    # Also where no term occurs, so that the error does not come in the middle of a file.
    glossary = Glossary(HOUSES, tokenizer)
    for sentences in ["two"], ["a"], []:
        with pytest.raises(ValueError, match='do not work with a model of the type "marian"; leave them out'):
            translate(marian, tokenizer, sentences, glossary=glossary, max_new_tokens=3)
        with pytest.raises(ValueError, match="forced phrases and glossaries need beam search, but num_beams is 1"):
            translate(model, tokenizer, sentences, glossary=glossary, num_beams=1)
        with pytest.raises(ValueError, match="forced phrases and glossaries need beam search, but do_sample is True"):
            translate(model, tokenizer, sentences, glossary=glossary, do_sample=True)


def test_special_tokens_do_not_make_words_whole():
    """Decoding removes them, so that what stands before and after them is one word."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    sentences = ["seven", "two hundred", "one hundred and four"]
    glossary = Glossary({"seven": "Quux", "hundred": "Hundert"}, tokenizer)
    translations = translate(model, tokenizer, sentences, glossary=glossary, num_beams=10)
    for sentence, term in zip(translations, ["Quux", "Hundert", "Hundert"], strict=True):
        assert re.search(rf"(?<!\w){term}(?!\w)", sentence), sentence


def test_edges_are_those_of_the_model(model):
    search = ForcedPhrases([[[5]]], letter_edges=torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=re.escape(f"give a bool tensor of shape (3, {model.config.vocab_size})")):
        model.generate(torch.tensor([[5, 2]]), custom_generate=search)


def test_terms_of_texts_that_are_split(model, tokenizer):
    pytest.importorskip("sentencex")
    (text,) = translate(
        model, tokenizer, ["two.\n\na"], split_sentences=True, glossary=Glossary({"two": "zwei"}, tokenizer)
    )
    assert "zwei" in said(text.partition("\n\n")[0])


@pytest.mark.parametrize("tokens_per_batch", [30, 4096])
def test_split_batches_give_the_same_translations(model, tokenizer, tokens_per_batch):
    sentences = ["one", "two", "nine", "forty-two", "nine nine", "seven"]
    terms = {"nine": ["zehn", "x" * 60, "y" * 60], "two": "elf", "forty": "vier"}
    glossary = Glossary(terms, tokenizer)
    together = translate(model, tokenizer, sentences, tokens_per_batch, glossary=glossary)
    alone = [translate(model, tokenizer, [sentence], glossary=glossary)[0] for sentence in sentences]
    assert together == alone


def test_sizes_are_those_of_the_phrases(tokenizer):
    terms = {"machine": ["Haus", "kleines Haus"], "C++": "Boot", "two words": "ein"}
    glossary = Glossary(terms, tokenizer)
    for sentence in ("a machine", "C++ machine", "two words, two words", "nothing"):
        phrases = glossary.phrases(sentence)
        alternatives = [tokens for phrase in phrases for tokens in phrase]
        sizes = glossary.sizes(sentence)
        assert sizes.positions == sum(map(len, alternatives))
        assert sizes.phrases == len({str(phrase) for phrase in phrases})
        assert sizes.tokens >= len({token for tokens in alternatives for token in tokens})
