"""Models of several target languages: each piece that the model reads begins with the code of its language.

The pieces are observed where they reach the model: in the ids that `generate()` or the forward pass gets.
"""

import json
from importlib.util import find_spec

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer, pipeline

from hf_vanilla_transformer import Ensemble, Glossary, align, score, train_tokenizer, translate, translate_documents
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.data.target_language import TargetCodes, codes_of, find_code, short_name
from hf_vanilla_transformer.evaluation.evaluate import evaluate
from hf_vanilla_transformer.translation.sentence_splitting import split_into_pieces
from hf_vanilla_transformer.translation.translation_details import DetailLevel
from hf_vanilla_transformer.translation.words_of_tokens import WORDS_AND_LETTERS, TokenTexts
from tests.apps.conversion.opus_mt import convert_several, write_opus_mt


pytest.importorskip("sentencepiece")
pytest.importorskip("sacremoses")

SEARCH = {"num_beams": 1, "max_new_tokens": 3}
SENTENCES = ["The house is small.", "Two men play.", "Why did you not tell me?"]
TEXT = " ".join(SENTENCES)
PAGE = "<h1>The house</h1>\n<p>A dog <b>runs</b>. Two men play.</p><img alt='the old town'>"
PIECES_OF_PAGE = ["The house", "A dog runs.", "Two men play.", "the old town"]
LONG = "A dog runs, two men play, the house is small, a dog runs, two men play, the house is small, a dog runs"
NEEDS_A_LANGUAGE = r"--target_lang.* one of >>de<<, >>fr<<"
needs_sentencex = pytest.mark.skipif(find_spec("sentencex") is None, reason="needs sentencex")
needs_selectolax = pytest.mark.skipif(find_spec("selectolax") is None, reason="needs selectolax")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The model in the layout of OPUS-MT, and its conversion."""
    return convert_several(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def tokenizer(folders):
    return AutoTokenizer.from_pretrained(folders[1])


@pytest.fixture(scope="module")
def model(folders):
    return AutoModelForSeq2SeqLM.from_pretrained(folders[1])


@pytest.fixture(scope="module")
def coded(folders):
    """The ids of sentences that begin with a code, by transformers' tokenizer, sorted."""
    stock_tokenizer = MarianTokenizer.from_pretrained(folders[0])

    def ids(code: str, sentences: list[str]) -> list[list[int]]:
        return sorted(stock_tokenizer([f">>{code}<< {sentence}" for sentence in sentences]).input_ids)

    return ids


@pytest.fixture
def read(monkeypatch):
    """Lists the ids, without padding, with which a method of a model is called."""

    def watch(model, method: str = "generate"):
        rows = []
        original = getattr(model, method)

        def watched(input_ids, attention_mask, **kwargs):
            for row, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True):
                rows.append([token for token, is_real in zip(row, mask, strict=True) if is_real])
            rows.sort()
            return original(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

        monkeypatch.setattr(model, method, watched)
        return rows

    return watch


class TestCodes:
    @pytest.mark.parametrize(
        ("codes", "language", "code"),
        [
            (["de", "fr"], "fr", "fr"),
            (["de", "fr"], "fra", "fr"),
            (["de", "fr"], "fr_FR", "fr"),
            (["de", "fr"], "FR", "fr"),
            (["de", "fr"], ">>fr<<", "fr"),
            (["deu", "fra"], "fr", "fra"),
            (["pt", "pt_br"], "pt", "pt"),
            (["pt", "pt_br"], "por", "pt"),
            (["pt", "pt_br"], "pt-BR", "pt_br"),
            (["pt_br", "pt_BR"], "pt_BR", "pt_BR"),
            (["cmn_Hans", "cmn_Hant"], "zh_Hant", "cmn_Hant"),
            (["cmn_Hans", "lzh"], "zh", "cmn_Hans"),
            (["ast", "xx1"], "xx1", "xx1"),
            (["pt", "pt_br", "fr"], "pt_PT", "pt"),
            (["fr", "fr_CA", "de"], "fr-BE", "fr"),
        ],
    )
    def test_find_code(self, codes, language, code):
        codes = [f">>{name}<<" for name in codes]
        assert find_code(codes, language) == f">>{code}<<"

    @pytest.mark.parametrize(
        ("codes", "language", "named"),
        [
            (["cmn_Hans", "cmn_Hant", "fr"], "zh", ">>cmn_Hans<<, >>cmn_Hant<<"),
            (["pt_br", "pt_BR"], "pt-br", ">>pt_br<<, >>pt_BR<<"),
        ],
    )
    def test_find_code_of_several(self, codes, language, named):
        codes = [f">>{name}<<" for name in codes]
        with pytest.raises(ValueError, match=f'"{language}".* several codes.* {named}\\.$'):
            find_code(codes, language)

    @pytest.mark.parametrize("language", ["it", "", ">>it<<", "f"])
    def test_find_code_of_none(self, language):
        with pytest.raises(ValueError, match=f'"{language}".* one of >>de<<, >>fr<<'):
            find_code([">>de<<", ">>fr<<"], language)

    def test_short_name(self):
        codes = [">>fra<<", ">>cmn_Hans<<", ">>cmn_Hant<<", ">>pt<<", ">>pt_br<<"]
        assert [short_name(codes, code) for code in codes] == ["fr", "cmn_Hans", "cmn_Hant", "pt", "pt_br"]

    @pytest.mark.parametrize(
        ("text", "source"),
        [
            (">>fr<< Two men", ("Two men", ">>fr<<")),
            (">>fr<<Two men", ("Two men", ">>fr<<")),
            ("\n >>fr<<\tTwo men", ("Two men", ">>fr<<")),
            (">>fr<< >>de<< Two men", (">>de<< Two men", ">>fr<<")),
            (">>it<< Two men", (">>it<< Two men", ">>de<<")),
            ("Two >>fr<< men", ("Two >>fr<< men", ">>de<<")),
            ("", ("", ">>de<<")),
        ],
    )
    def test_read(self, tokenizer, text, source):
        assert TargetCodes(tokenizer, "de").read(text) == (*source, text)

    def test_codes_that_were_added_after_the_first_use(self, folders):
        tokenizer = AutoTokenizer.from_pretrained(folders[1])
        assert TargetCodes(tokenizer).codes == (">>de<<", ">>fr<<")
        tokenizer.add_tokens([">>it<<"])
        assert TargetCodes(tokenizer, "it").default == ">>it<<"

    def test_a_language_that_is_no_text(self, tokenizer):
        with pytest.raises(TypeError, match="target_lang is of type list"):
            TargetCodes(tokenizer, ["fr"])


class TestTranslate:
    def test_sentences(self, model, tokenizer, read, coded):
        rows = read(model)
        translate(model, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        assert rows == coded("fr", SENTENCES)

    def test_equals_transformers_with_the_codes_in_the_sentences(self, folders, model, tokenizer):
        stock, stock_tokenizer = MarianMTModel.from_pretrained(folders[0]), MarianTokenizer.from_pretrained(folders[0])
        for code in ("de", "fr"):
            expected = []
            for sentence in SENTENCES:
                inputs = stock_tokenizer(f">>{code}<< {sentence}", return_tensors="pt")
                expected += stock_tokenizer.batch_decode(stock.generate(**inputs, **SEARCH), skip_special_tokens=True)
            assert translate(model, tokenizer, SENTENCES, target_lang=code, **SEARCH) == expected

    def test_a_code_in_a_sentence_goes_before_target_lang(self, model, tokenizer, read, coded):
        rows = read(model)
        translate(model, tokenizer, [f">>de<< {SENTENCES[0]}", SENTENCES[1]], target_lang="fr", **SEARCH)
        assert rows == sorted(coded("de", SENTENCES[:1]) + coded("fr", SENTENCES[1:2]))

    @needs_sentencex
    def test_split_texts(self, model, tokenizer, read, coded):
        rows = read(model)
        translate(model, tokenizer, [TEXT], target_lang="fr", split_sentences=True, **SEARCH)
        assert rows == coded("fr", SENTENCES)

    @needs_sentencex
    @pytest.mark.parametrize("text", [f">>fr<< {TEXT}", f"\n>>fr<<\n{TEXT}"])
    def test_a_split_text_keeps_its_code(self, model, tokenizer, read, coded, text):
        rows = read(model)
        (translation,) = translate(model, tokenizer, [text], split_sentences=True, **SEARCH)
        assert rows == coded("fr", SENTENCES)
        assert ">>" not in translation
        assert translation.startswith("\n") == text.startswith("\n")

    @needs_sentencex
    def test_parts_of_a_long_sentence(self, folders, model, read):
        tokenizer = AutoTokenizer.from_pretrained(folders[1], longest_training_source=20)
        rows = read(model)
        for text, options in ((LONG, {"target_lang": "fr"}), (f">>fr<< {LONG}", {})):
            rows.clear()
            (translation,) = translate(
                model, tokenizer, [text], split_sentences=True, return_details=DetailLevel.FLAGS, **options, **SEARCH
            )
            assert "split" in translation.flags
            assert "longer_than_training" not in translation.flags
            assert len(rows) > 3
            assert {row[0] for row in rows} == {tokenizer.convert_tokens_to_ids(">>fr<<")}
            # The code is one of the tokens that a part may have.
            assert max(map(len, rows)) <= 20

    @needs_sentencex
    def test_the_code_counts_as_a_token_of_a_piece(self, tokenizer):
        most = len(tokenizer("The house is small.").input_ids)
        assert len(split_into_pieces(tokenizer, "The house is small.", max_tokens=most)) == 1
        assert len(split_into_pieces(tokenizer, "The house is small.", max_tokens=most, code=">>fr<<")) == 2

    @needs_sentencex
    @needs_selectolax
    @pytest.mark.parametrize(
        ("page", "options"),
        [
            (PAGE, {"target_lang": "fr"}),
            (f">>fr<< {PAGE}", {}),
            (f">>fr<<{PAGE}", {"target_lang": "de"}),
            (PAGE.replace("<h1>", "<h1>&gt;&gt;fr&lt;&lt; "), {}),
        ],
    )
    def test_blocks_of_a_document(self, model, tokenizer, read, coded, page, options):
        rows = read(model)
        (translated,) = translate_documents(
            model, tokenizer, [page], format="html", split_sentences=True, **options, **SEARCH
        )
        assert rows == coded("fr", PIECES_OF_PAGE)
        assert not {">>", "&gt;&gt;"}.intersection(translated.split())
        assert translated.count("<b>") == 1

    @needs_sentencex
    def test_xml_with_a_code_before_its_tags(self, model, tokenizer, read, coded):
        rows = read(model)
        (translated,) = translate_documents(model, tokenizer, [">>fr<< <p>Two men play.</p>"], format="xml", **SEARCH)
        assert rows == coded("fr", ["Two men play."])
        assert translated.startswith("<p>")

    @needs_selectolax
    def test_a_block_with_a_code_of_its_own(self, model, tokenizer, read, coded):
        rows = read(model)
        page = "<p>Two men play.</p><p>&gt;&gt;de&lt;&lt; The house is small.</p>"
        translate_documents(model, tokenizer, [page], format="html", target_lang="fr", **SEARCH)
        assert rows == sorted(coded("fr", ["Two men play."]) + coded("de", ["The house is small."]))

    def test_an_ensemble(self, model, tokenizer, read, coded):
        ensemble = Ensemble([model, model])
        rows = read(ensemble)
        translate(ensemble, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        assert rows == coded("fr", SENTENCES)

    def test_ctranslate2(self, folders, tokenizer, read, coded, monkeypatch, tmp_path):
        pytest.importorskip("ctranslate2")
        from hf_vanilla_transformer import load_engine
        from hf_vanilla_transformer.hub import user_cache

        monkeypatch.setattr(user_cache, "CACHE", tmp_path)
        engine = load_engine(str(folders[1]), "ctranslate2")
        rows = read(engine)
        translations = translate(engine, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        assert rows == coded("fr", SENTENCES)
        assert translations == translate(engine, tokenizer, [f">>fr<< {sentence}" for sentence in SENTENCES], **SEARCH)
        scores = score(engine, tokenizer, SENTENCES, SENTENCES, target_lang="fr")
        assert scores == score(engine, tokenizer, [f">>fr<< {sentence}" for sentence in SENTENCES], SENTENCES)
        assert scores != score(engine, tokenizer, SENTENCES, SENTENCES, target_lang="de")

    def test_a_glossary_does_not_find_terms_in_codes(self, model, tokenizer):
        glossary = Glossary({"fr": "la"}, tokenizer)
        plain, with_glossary = (
            translate(model, tokenizer, SENTENCES[:1], target_lang="fr", num_beams=4, max_new_tokens=4, glossary=terms)
            for terms in (None, glossary)
        )
        assert plain == with_glossary

    def test_blank_texts_need_no_language(self, model, tokenizer):
        assert translate(model, tokenizer, ["", " \n", "\u200b", ">>fr<< "], **SEARCH) == ["", " \n", "\u200b", ""]

    def test_texts_that_are_copied_need_no_language(self, model, tokenizer):
        texts = ["2024", ">>fr<< 2024 10:45"]
        plain, coded = translate(model, tokenizer, texts, copy_letterless=True, return_details=True)
        assert (plain.text, coded.text) == ("2024", "2024 10:45")
        # Of the words of the text, the first is the code.
        assert (plain.alignment, coded.alignment) == ([(0, 0)], [(1, 0), (2, 1)])

    @pytest.mark.parametrize("options", [{}, {"split_sentences": True}])
    def test_a_model_without_a_language(self, model, tokenizer, options):
        if options.get("split_sentences") and find_spec("sentencex") is None:
            pytest.skip("needs sentencex")
        with pytest.raises(ValueError, match=NEEDS_A_LANGUAGE):
            translate(model, tokenizer, ["<p>Two men play.</p>"], **options, **SEARCH)
        with pytest.raises(ValueError, match=NEEDS_A_LANGUAGE):
            translate_documents(model, tokenizer, ["<p>Two men play.</p>"], "xml", **options, **SEARCH)

    def test_a_language_that_the_model_lacks(self, model, tokenizer):
        with pytest.raises(ValueError, match=r'target_lang is "it".* one of >>de<<, >>fr<<'):
            translate(model, tokenizer, [], target_lang="it")

    def test_a_vocabulary_with_a_single_code_has_no_choice(self):
        tokenizer = train_tokenizer(["a house", "une maison"], vocab_size=280, show_progress=False)
        tokenizer.add_tokens([">>fr<<"])
        assert codes_of(tokenizer) == ()
        assert TargetCodes(tokenizer).put_before("a house") == "a house"
        tokenizer.add_tokens([">>de<<"])
        assert codes_of(tokenizer) == (">>de<<", ">>fr<<")

    def test_a_model_of_one_language(self, tmp_path):
        folder = write_opus_mt(tmp_path / "opus-mt-en-de")
        model, tokenizer = MarianMTModel.from_pretrained(folder), MarianTokenizer.from_pretrained(folder)
        expected = translate(model, tokenizer, SENTENCES, **SEARCH)
        assert translate(model, tokenizer, SENTENCES, target_lang="deu", **SEARCH) == expected
        with pytest.raises(ValueError, match='target_lang is "fr", but the model has "de"'):
            translate(model, tokenizer, SENTENCES, target_lang="fr", **SEARCH)

    def test_the_language_that_was_saved_with_the_tokenizer(self, folders, model, read, coded):
        tokenizer = AutoTokenizer.from_pretrained(folders[1], target_lang="fra")
        rows = read(model)
        translate(model, tokenizer, SENTENCES, **SEARCH)
        assert rows == coded("fr", SENTENCES)
        rows.clear()
        translate(model, tokenizer, SENTENCES, target_lang="de", **SEARCH)
        assert rows == coded("de", SENTENCES)


class TestAlignments:
    @pytest.fixture
    def texts(self, tokenizer):
        return TokenTexts(tokenizer, False)

    def test_words_of_tokens(self, tokenizer, texts):
        ids = tokenizer(">>fr<< fr Two").input_ids
        assert tokenizer.convert_ids_to_tokens(ids)[0] == ">>fr<<"
        without_code = texts.find_words("fr Two", ids)
        assert without_code[0] == []
        assert {word for words in without_code for word in words} == {0, 1}
        shifted = [[word + 1 for word in words] for words in without_code]
        assert texts.find_words(">>fr<< fr Two", ids) == shifted
        assert texts.find_words(">>fr<<fr Two", ids) == without_code
        assert texts.find_words(">>fr<< fr Two", ids, WORDS_AND_LETTERS) == shifted

    def test_align(self, model, tokenizer, read, coded):
        rows = read(model, "forward")
        links = align(model, tokenizer, SENTENCES, ["Ja.", "Oui.", "la vie"], target_lang="fr")
        assert rows == coded("fr", SENTENCES)
        coded_sentences = [f">>fr<< {sentence}" for sentence in SENTENCES]
        links_with_written_code = align(model, tokenizer, coded_sentences, ["Ja.", "Oui.", "la vie"])
        assert links_with_written_code == [[(source + 1, target) for source, target in pair] for pair in links]
        assert any(links)
        for pair, sentence in zip(links, SENTENCES, strict=True):
            assert all(source < len(sentence.split()) for source, _ in pair)

    def test_align_needs_a_language(self, model, tokenizer):
        with pytest.raises(ValueError, match=NEEDS_A_LANGUAGE):
            align(model, tokenizer, SENTENCES[:1], ["Ja."])

    @needs_sentencex
    @pytest.mark.parametrize("split", [False, True])
    def test_details_of_translations(self, model, tokenizer, split):
        settings = {"return_details": True, "split_sentences": split, "num_return_sequences": 2, "num_beams": 4}
        settings["max_new_tokens"] = 8
        (translation,) = translate(model, tokenizer, [TEXT], target_lang="fr", **settings)
        (translation_with_code,) = translate(model, tokenizer, [f">>fr<< {TEXT}"], **settings)
        assert translation.alignment
        hypotheses = (translation, *translation.alternatives)
        hypotheses_with_code = (translation_with_code, *translation_with_code.alternatives)
        for without_code, with_code in zip(hypotheses, hypotheses_with_code, strict=True):
            assert with_code.alignment == [(source + 1, target) for source, target in without_code.alignment]
            changes = {"alignment": None, "alternatives": ()}
            assert with_code._replace(**changes) == without_code._replace(**changes)

    @needs_selectolax
    def test_tags_are_placed_as_in_a_document_without_the_code(self, model, tokenizer):
        inside = "The <b>house</b> is <i>small</i>."
        pages = [f"<p>{inside}</p>", f">>fr<< <p>{inside}</p>", f"<p>&gt;&gt;fr&lt;&lt; {inside}</p>"]
        settings = {"target_lang": "fr", "format": "html", "num_beams": 1, "max_new_tokens": 12}
        plain, raw, escaped = translate_documents(model, tokenizer, pages, **settings)
        assert plain == raw == escaped


class TestOthers:
    def test_score(self, model, tokenizer, read, coded):
        rows = read(model, "forward")
        scores = score(model, tokenizer, SENTENCES, SENTENCES, target_lang="fr")
        assert rows == coded("fr", SENTENCES)
        assert scores == score(model, tokenizer, [f">>fr<< {sentence}" for sentence in SENTENCES], SENTENCES)
        assert scores != score(model, tokenizer, SENTENCES, SENTENCES, target_lang="de")
        with pytest.raises(ValueError, match=NEEDS_A_LANGUAGE):
            score(model, tokenizer, SENTENCES, SENTENCES)

    def test_pipeline(self, folders, tokenizer, read, coded):
        translator = pipeline("translation", model=str(folders[1]), device="cpu")
        rows = read(translator.model)
        translations = translator(SENTENCES, tgt_lang="fr", batch_size=3, **SEARCH)
        assert rows == coded("fr", SENTENCES)
        texts = [translation["translation_text"] for translation in translations]
        assert texts == translate(translator.model, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        with pytest.raises(ValueError, match=r"give tgt_lang, or begin .* >>de<<, >>fr<<"):
            translator(SENTENCES[0])
        with pytest.raises(ValueError, match=r'tgt_lang is "it".* >>de<<, >>fr<<'):
            translator(SENTENCES[0], tgt_lang="it")
        rows.clear()
        translator = pipeline("translation", model=str(folders[1]), device="cpu", tgt_lang="de")
        rows = read(translator.model)
        translator([f">>fr<< {SENTENCES[0]}", SENTENCES[1], " "], **SEARCH)
        assert sorted(rows)[1:] == coded("de", SENTENCES[1:2]) + coded("fr", SENTENCES[:1])

    @pytest.mark.parametrize(
        ("names", "options"),
        [(["test.en", "test.fr"], {}), (["test.en", "test.txt"], {"target_lang": "fr"})],
    )
    def test_evaluate(self, folders, tmp_path, model, tokenizer, read, coded, names, options):
        files = [tmp_path / name for name in names]
        for file in files:
            file.write_text("".join(f"{sentence}\n" for sentence in SENTENCES), encoding="utf-8")
        rows = read(model)
        evaluate(model, files, tokenizer, show_progress=False, **options, **SEARCH)
        assert rows == coded("fr", SENTENCES)

    def test_evaluate_without_a_language(self, tmp_path, model, tokenizer):
        files = [tmp_path / "a.src", tmp_path / "a.tgt"]
        for file in files:
            file.write_text("Two men play.\n", encoding="utf-8")
        with pytest.raises(ValueError, match=NEEDS_A_LANGUAGE):
            evaluate(model, files, tokenizer, show_progress=False)


class TestCommands:
    @pytest.fixture
    def files(self, tmp_path):
        files = [tmp_path / "test.en", tmp_path / "test.fr"]
        for file in files:
            file.write_text("".join(f"{sentence}\n" for sentence in SENTENCES), encoding="utf-8")
        return list(map(str, files))

    def test_translate(self, folders, model, tokenizer, capsys):
        command = ["translate", "--model_name_or_path", str(folders[1]), "--num_beams", "1", "--max_new_tokens", "3"]
        main([*command, "--target_lang", "fr", *SENTENCES])
        expected = translate(model, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        assert capsys.readouterr().out.splitlines() == expected
        with pytest.raises(SystemExit, match=NEEDS_A_LANGUAGE):
            main([*command, *SENTENCES])
        with pytest.raises(SystemExit, match=r'target_lang is "it".* >>de<<, >>fr<<'):
            main([*command, "--target_lang", "it", *SENTENCES])

    @needs_sentencex
    @needs_selectolax
    def test_translate_a_folder_of_documents(self, folders, model, tokenizer, tmp_path):
        pages = tmp_path / "pages"
        pages.mkdir()
        (pages / "page.html").write_text(PAGE)
        command = ["translate", "--model_name_or_path", str(folders[1]), "--num_beams", "1", "--max_new_tokens", "3"]
        main([*command, "--target_lang", "fr", "--input", str(pages), "--output", str(tmp_path / "out")])
        options = {"format": "html", "split_sentences": True, "target_lang": "fr"}
        assert [(tmp_path / "out" / "page.html").read_text()] == translate_documents(
            model, tokenizer, [PAGE], **options, **SEARCH
        )

    @pytest.mark.parametrize("language", [[], ["--target_lang", "fra"]])
    def test_score_and_align(self, folders, model, tokenizer, capsys, files, language):
        """By the names of the files, or as the command line says."""
        arguments = ["--model_name_or_path", str(folders[1]), "--test_file", *files, *language]
        main(["score", *arguments])
        expected = score(model, tokenizer, SENTENCES, SENTENCES, target_lang="fr")
        assert capsys.readouterr().out.split() == [f"{target_score.total:.6f}" for target_score in expected]
        main(["align", *arguments])
        links = align(model, tokenizer, SENTENCES, SENTENCES, target_lang="fr")
        assert capsys.readouterr().out.splitlines() == [" ".join(f"{s}-{t}" for s, t in pair) for pair in links]

    def test_evaluate(self, folders, model, tokenizer, files, tmp_path):
        arguments = ["--model_name_or_path", str(folders[1]), "--against", str(folders[1]), "--test_file", *files]
        arguments += ["--num_beams", "1", "--max_new_tokens", "3", "--translations", str(tmp_path / "out.fr")]
        main(["evaluate", *arguments, "--output", str(tmp_path / "scores.json")])
        expected = translate(model, tokenizer, SENTENCES, target_lang="fr", **SEARCH)
        assert (tmp_path / "out.fr").read_text(encoding="utf-8").splitlines() == expected
        scores = json.loads((tmp_path / "scores.json").read_text())
        assert scores["bleu_against"]["score"] == scores["bleu_against"]["other_score"]
