"""Terms are found as whole words, and their translations occur as whole words."""

import re
import unicodedata

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import Metaspace
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, TokenizersBackend

from hf_vanilla_transformer import TwoVocabularyTokenizer, train_tokenizer, translate
from hf_vanilla_transformer.apps.terms.glossary import (
    Glossary,
    PhraseSizes,
    letter_edges,
    phrases_of,
    read_terms,
    tokenizations,
)
from hf_vanilla_transformer.translation.translate import _split_by_phrases
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
    found = tokenizations(any_tokenizer, text)
    sentences = [text, f"ein {text}", f"ein {text} und"]
    if name != "words at spaces":  # Such a tokenizer has tokens of words with their punctuation.
        sentences += [f"({text})", f"Hausboot-{text}, klein"]
        assert len(found) > 1
    for sentence in sentences:
        ids = any_tokenizer(text_target=sentence, add_special_tokens=False).input_ids
        assert any(ids[start : start + len(each)] == each for each in found for start in range(len(ids))), sentence
    assert all(any_tokenizer.decode(ids).strip() == text for ids in found)
    assert len(found) == len(set(map(tuple, found)))


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
    assert phrases == [tokenizations(any_tokenizer, text) for text in FOUND[sentence]]


def test_terms_in_another_normal_form(any_tokenizer):
    (decomposed,) = Glossary({unicodedata.normalize("NFD", "café"): "zwei"}, any_tokenizer).phrases("a café")
    assert decomposed == tokenizations(any_tokenizer, "zwei")


def test_several_forms_are_alternatives(any_tokenizer):
    (phrase,) = Glossary({"house": ["Haus", "Häuser"]}, any_tokenizer).phrases("two house")
    assert phrase == [*tokenizations(any_tokenizer, "Haus"), *tokenizations(any_tokenizer, "Häuser")]


def test_no_terms(tokenizer):
    assert Glossary({}, tokenizer).phrases("a house") == []


def test_what_the_vocabulary_lacks():
    with pytest.raises(ValueError, match="the vocabulary has no tokens for 'Ωmega'; choose another translation"):
        Glossary({"a": "Ωmega"}, sentence_pieces())


@pytest.mark.parametrize(
    ("terms", "kind", "message"),
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
def test_wrong_terms(tokenizer, terms, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        translate(decisive_model(vocab_size=len(tokenizer)), tokenizer, ["a"], glossary=terms)


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
GLOSSARY = {"house": ["Haus", "Häuser"], "two": "zwei"}


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
    found = translate(model, tokenizer, SENTENCES, tokens_per_batch, glossary=GLOSSARY)
    assert not {"Haus", "Häuser", "zwei"} & set(said(" ".join(free)))
    assert {"Haus", "Häuser"} & set(said(found[0]))
    assert found[1] == SENTENCES[1]
    assert "zwei" in said(found[2])
    assert "zwei" in said(found[3])
    assert sum(word in GLOSSARY["house"] for word in said(found[3])) >= 2
    assert translate(model, tokenizer, SENTENCES, tokens_per_batch, glossary={"houses": "Häuser"})[:3] == free[:3]


def test_details_of_forced_translations(model, tokenizer):
    options = {"glossary": GLOSSARY, "num_return_sequences": 2}
    found = translate(model, tokenizer, SENTENCES, return_details=True, **options)
    assert [each.text for each in found] == translate(model, tokenizer, SENTENCES, **options)


def test_forced_phrases_for_each_sentence(model, tokenizer):
    """They are given in the order of the sentences, and are joined by those of terms."""
    phrases = [[[70]], [[71]], [[72, 73]], []]
    details = translate(
        model, tokenizer, SENTENCES, return_details=True, forced_phrases=phrases, glossary={"two": "zwei"}
    )
    for each, needed in zip(details, ([70], [], [72, 73], []), strict=True):
        tokens = "".join(each.tokens)
        assert "".join(tokenizer.convert_ids_to_tokens(needed)) in tokens
    assert "zwei" in said(details[2].text)
    with pytest.raises(ValueError, match="forced_phrases has 1 lists for 4 sentences; give a list for each"):
        translate(model, tokenizer, SENTENCES, forced_phrases=[[]])
    assert phrases_of(["a"]) == [[]]


def test_models_that_cannot_be_forced(model, tokenizer):
    config = MarianConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    config.update({"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None})
    marian = MarianMTModel(config).eval()
    # Also where no term occurs, so that the error does not come in the middle of a file.
    for sentences in ["two"], ["a"], []:
        with pytest.raises(ValueError, match='do not work with a model of the type "marian"; leave them out'):
            translate(marian, tokenizer, sentences, glossary=GLOSSARY, max_new_tokens=3)
        with pytest.raises(ValueError, match="forced_phrases and glossaries need beam search, but num_beams is 1"):
            translate(model, tokenizer, sentences, glossary=GLOSSARY, num_beams=1)
        with pytest.raises(ValueError, match="forced_phrases and glossaries need beam search, but do_sample is True"):
            translate(model, tokenizer, sentences, glossary=GLOSSARY, do_sample=True)


def test_special_tokens_do_not_make_words_whole():
    """Decoding removes them, so that what stands before and after them is one word."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    sentences = ["seven", "two hundred", "one hundred and four"]
    found = translate(model, tokenizer, sentences, glossary={"seven": "Quux", "hundred": "Hundert"}, num_beams=10)
    for sentence, term in zip(found, ["Quux", "Hundert", "Hundert"], strict=True):
        assert re.search(rf"(?<!\w){term}(?!\w)", sentence), sentence


def test_edges_are_those_of_the_model(model):
    with pytest.raises(ValueError, match=re.escape(f"give a bool tensor of shape (3, {model.config.vocab_size})")):
        model.generate(torch.tensor([[5, 2]]), forced_phrases=[[[5]]], letter_edges=torch.zeros(2, 5, dtype=torch.bool))


def test_terms_of_texts_that_are_split(model, tokenizer):
    pytest.importorskip("sentencex")
    (text,) = translate(model, tokenizer, ["two.\n\na"], split_sentences=True, glossary={"two": "zwei"})
    assert "zwei" in said(text.partition("\n\n")[0])
    with pytest.raises(ValueError, match="forced_phrases is for sentences, not for texts to split; give a glossary"):
        translate(model, tokenizer, ["two."], split_sentences=True, forced_phrases=[[[5]]])


def test_batches_are_split_by_the_sizes_of_phrases():
    """So that memory has a bound, and sentences with small phrases do not pay for those with large ones."""
    small, large, none = PhraseSizes(20, 10, 2), PhraseSizes(9000, 50, 20), PhraseSizes()
    assert _split_by_phrases([3, 1, 0, 2], [none] * 4, 100) == [[3, 1, 0, 2]]
    assert _split_by_phrases([0, 1, 2, 3], [none, small, none, small], 100_000) == [[1, 3, 0, 2]]
    assert _split_by_phrases([0, 1, 2, 3], [small, large, small, none], 100_000) == [[1, 0], [2, 3]]
    assert _split_by_phrases([0, 1, 2, 3], [large, small, large, none], 15_000) == [[0], [2], [1, 3]]


@pytest.mark.parametrize("tokens_per_batch", [30, 4096])
def test_split_batches_give_the_same_translations(model, tokenizer, tokens_per_batch):
    sentences = ["one", "two", "nine", "forty-two", "nine nine", "seven"]
    terms = {"nine": ["zehn", "x" * 60, "y" * 60], "two": "elf", "forty": "vier"}
    together = translate(model, tokenizer, sentences, tokens_per_batch, glossary=terms)
    alone = [translate(model, tokenizer, [sentence], glossary=terms)[0] for sentence in sentences]
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
