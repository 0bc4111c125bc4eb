"""Texts without letters, such as numbers: copied or translated, as the training pairs of the model did."""

import copy
from importlib.util import find_spec

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Ensemble, Glossary, Translation, TranslationPipeline, translate, translate_documents
from hf_vanilla_transformer.apps.cli import translate as translate_command
from tests.constant_engine import ConstantEngine
from tests.ecosystem.documentation import FIXTURE


needs_documents = pytest.mark.skipif(find_spec("selectolax") is None, reason="the extra documents is not installed")
needs_text = pytest.mark.skipif(find_spec("sentencex") is None, reason="the extra text is not installed")
LETTERLESS = [
    *("5", "2024", "1.250,00", "+49 30 123456", "10:45", "12+30", "19.", "?", "---", "…", "«»", "♪", "🙂", "👩‍🚀", "€"),
    *("00:00:01,000 --> 00:00:04,000", "٣", "५", "\N{ROMAN NUMERAL TWELVE}", "½", "①", "\u0301", "5\u20e3"),
]
WITH_LETTERS = ["5 a", "º", "日", "β", "\u0e01"]


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def tokenizer():
    """Of a folder that does not say what its training pairs did with texts without letters."""
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def tokenizer_with_share(tokenizer):
    """The tokenizer of a folder whose training pairs translated a share of such texts."""

    def with_share(share):
        tokenizer_of_folder = copy.deepcopy(tokenizer)
        tokenizer_of_folder.init_kwargs["translated_letterless_share"] = share
        return tokenizer_of_folder

    return with_share


@pytest.mark.parametrize("share", [0, 0.0, 0.0099])
def test_translate_copies_letterless_texts_of_a_low_share(model, tokenizer_with_share, share):
    tokenizer = tokenizer_with_share(share)
    assert translate(model, tokenizer, [*LETTERLESS, "forty-two"]) == [*LETTERLESS, "zweiundvierzig"]
    assert not set(translate(model, tokenizer, WITH_LETTERS)) & set(WITH_LETTERS)


@pytest.mark.parametrize("share", [0.01, 0.5, 1, None, "0", True])
def test_translate_letterless_texts_of_a_high_or_unknown_share(model, tokenizer, tokenizer_with_share, share):
    expected = translate(model, tokenizer, LETTERLESS)
    assert not set(expected) & set(LETTERLESS)
    assert translate(model, tokenizer_with_share(share), LETTERLESS) == expected


def test_pipeline_follows_the_translated_share(model, tokenizer, tokenizer_with_share):
    texts = ["2024", "forty-two", "♪"]
    copied = TranslationPipeline(model, tokenizer_with_share(0.0), device="cpu")
    for batch_size in (1, 3):
        translations = copied(texts, batch_size=batch_size)
        assert translations == [{"translation_text": text} for text in ("2024", "zweiundvierzig", "♪")]
    assert copied("2024", return_tensors=True)[0]["translation_token_ids"].tolist() == []
    for other in (tokenizer, tokenizer_with_share(1.0)):
        translations = TranslationPipeline(model, other, device="cpu")(texts)
        assert [output["translation_text"] for output in translations] == translate(model, tokenizer, texts)
        assert translations[0]["translation_text"] != "2024"


@needs_documents
def test_translate_documents_copies_letterless_texts(model, tokenizer, tokenizer_with_share):
    page = '<table><tr><td title="5">2024</td><td><b>19</b>. + 3</td></tr></table><p>forty-two</p>'
    copied = '<table><tbody><tr><td title="5">2024</td><td><b>19</b>. + 3</td></tr></tbody></table>'
    expected = [f"{copied}<p>zweiundvierzig</p>"]
    assert translate_documents(model, tokenizer, [page], format="html") == expected
    assert translate_documents(model, tokenizer_with_share(0.0), [page], format="html") == expected
    (translation,) = translate_documents(model, tokenizer_with_share(1.0), [page], format="html")
    assert "2024" not in translation
    assert 'title="5"' not in translation
    xml = "<row><cell>2024</cell><cell>forty-two</cell></row>"
    assert translate_documents(model, tokenizer, [xml], format="xml") == [xml.replace("forty-two", "zweiundvierzig")]


@needs_text
def test_translate_copies_letterless_sentences_of_a_text(model, tokenizer_with_share):
    text = "2024\n\nforty-two\n- - -\n"
    expected = "2024\n\nzweiundvierzig\n- - -\n"
    assert translate(model, tokenizer_with_share(0.0), [text], split_sentences=True) == [expected]


def test_translate_gives_no_copied_texts_to_the_model(model, tokenizer_with_share):
    tokenizer = tokenizer_with_share(0.0)
    for translating in (Ensemble([model, model]), ConstantEngine(tokenizer)):
        assert translate(translating, tokenizer, ["5", "nine"]) == ["5", "neun"]
    # An ensemble gives no alignments to place tags by, and a copied text needs none.
    assert translate_documents(Ensemble([model]), tokenizer, ["<b>5</b> 6"], format="xml") == ["<b>5</b> 6"]


def test_translate_details_of_a_copied_text(model, tokenizer_with_share):
    options = {"return_details": True, "num_return_sequences": 2}
    (copied,) = translate(model, tokenizer_with_share(0.0), ["10:45 - 12"], **options)
    assert copied == Translation("10:45 - 12", 0.0, [], [], [(0, 0), (1, 1), (2, 2)])


def test_translate_copy_letterless_overrides_the_share(model, tokenizer, tokenizer_with_share):
    assert translate(model, tokenizer, ["2024"], copy_letterless=True) == ["2024"]
    assert translate(model, tokenizer_with_share(0.0), ["2024"], copy_letterless=False) != ["2024"]
    assert translate_documents(model, tokenizer, ["<p>2024</p>"], format="xml", copy_letterless=False) != [
        "<p>2024</p>"
    ]


def test_translate_letterless_terms_of_a_glossary(model, tokenizer_with_share):
    tokenizer = tokenizer_with_share(0.0)
    translations = translate(model, tokenizer, ["24/7", "24"], glossary=Glossary({"24/7": "immer"}, tokenizer))
    assert "immer" in translations[0]
    assert translations[1] == "24"


@pytest.mark.parametrize(("name", "is_copied"), [("film.srt", True), ("Film.VTT", True), ("film.txt", False)])
def test_translate_documents_copies_letterless_subtitles(tmp_path, name, is_copied):
    lines = ["1", "00:00:01,000 --> 00:00:04,000", "forty-two", "", "2", "00:00:05,000 --> 00:00:06,000", "♪", ""]
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    command = ["--model_name_or_path", str(FIXTURE), "--input", str(tmp_path / name)]
    translate_command.main([*command, "--output", str(tmp_path / "translated")])
    translations = (tmp_path / "translated").read_text(encoding="utf-8").split("\n")
    expected = ["zweiundvierzig" if line == "forty-two" else line for line in lines]
    assert (translations == expected) == is_copied
