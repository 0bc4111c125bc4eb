"""A server of a model with several target languages: requests name one of them, and every sentence gets its code."""

from importlib.util import find_spec

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.serving.limits import ServingSettings
from hf_vanilla_transformer.apps.serving.model_card_facts import read_card
from tests.apps.conversion.opus_mt import convert_several


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel", "sentencex")),
    reason="the extra serve is not installed",
)
pytest.importorskip("sentencepiece")
pytest.importorskip("sacremoses")

SEARCH = {"num_beams": 1, "max_new_tokens": 3}
SENTENCES = ["The house is small.", "Two men play."]
TEXT = "The house is small.\nTwo men play."
PAGE = "<p>The house is small. Two men play.</p>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return convert_several(tmp_path_factory.mktemp("several"))[1]


@pytest.fixture(scope="module")
def loaded(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def read(loaded, monkeypatch):
    """The texts that reach the model, sorted, each with its code."""
    model, tokenizer = loaded
    texts = []
    generate = model.generate

    def watched(input_ids, attention_mask, **kwargs):
        for row, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True):
            tokens = tokenizer.convert_ids_to_tokens(
                [token for token, is_real in zip(row, mask, strict=True) if is_real]
            )
            texts.append("".join(tokens).replace("\u2581", " ").removesuffix("</s>"))
        texts.sort()
        return generate(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    monkeypatch.setattr(model, "generate", watched)
    return texts


@pytest.fixture
def service_of(folder, loaded):
    from hf_vanilla_transformer.apps.serving.service import Service

    def service(settings=None, **generate_kwargs):
        options = {"split_sentences": True, **SEARCH, **generate_kwargs}
        return Service(*loaded, ServingSettings(**(settings or {})), read_card(str(folder)), options)

    return service


@pytest.fixture
def call(service_of):
    from tests.apps.serving.support import call, serving

    with serving(service_of()) as address:
        yield lambda *arguments, **headers: call(address, *arguments, **headers)


def coded(code: str) -> list[str]:
    return sorted(f">>{code}<< {sentence}" for sentence in SENTENCES)


class TestRequests:
    @pytest.mark.parametrize(
        "body",
        [
            {"q": TEXT, "source": "en", "target": "fr"},
            {"q": TEXT, "source": "auto", "target": "fra_Latn"},
            {"q": [TEXT], "source": "en", "target": "fr"},
            {"q": PAGE, "source": "en", "target": "fr", "format": "html"},
            {"q": f">>fr<< {TEXT}", "source": "en", "target": "de"},
            {"q": f">>fr<< {PAGE}", "source": "en", "target": "auto", "format": "html"},
        ],
    )
    def test_libre_translate(self, call, read, body):
        if "format" in body:
            pytest.importorskip("selectolax")
        status, _, answer = call("POST", "/translate", body)
        assert status == 200, answer
        assert read == coded("fr")
        assert ">>" not in str(answer)

    @pytest.mark.parametrize(
        "body",
        [
            {"inputs": TEXT, "parameters": {"tgt_lang": "fr"}},
            {"inputs": f">>fr<< {TEXT}"},
            {"inputs": [f">>fr<<{TEXT}"], "parameters": {"tgt_lang": "de"}},
        ],
    )
    def test_hub(self, call, read, loaded, body):
        status, _, answer = call("POST", "/", body)
        assert status == 200, answer
        assert read == coded("fr")
        (expected,) = translate(*loaded, [TEXT], target_lang="fr", split_sentences=True, **SEARCH)
        assert answer[0]["translation_text"] == expected

    def test_service_requests_of_two_languages(self, call, read):
        for code in ("de", "fr"):
            call("POST", "/translate", {"q": TEXT, "source": "en", "target": code})
        assert read == sorted(coded("de") + coded("fr"))

    def test_service_rejects_a_language_that_the_model_lacks(self, call):
        status, _, answer = call("POST", "/translate", {"q": TEXT, "source": "en", "target": "it"})
        assert status == 400
        assert 'is "it"' in answer["error"]
        assert ">>de<<, >>fr<<" in answer["error"]

    def test_service_source_language_of_the_tokenizer(self, call):
        """The card has one language, or more than two."""
        status, _, answer = call("POST", "/translate", {"q": "2024", "source": "da", "target": "fr"})
        assert status == 400
        assert '"da"' in answer["error"]
        assert '"en"' in answer["error"]
        answer = call("POST", "/translate", {"q": "2024", "source": "auto", "target": "fr"})[2]
        assert answer["detectedLanguage"]["language"] == "en"

    @pytest.mark.parametrize("markup", [{}, {"format": "html"}])
    def test_service_without_a_language(self, call, markup):
        if markup:
            pytest.importorskip("selectolax")
        status, _, answer = call("POST", "/translate", {"q": TEXT, "source": "en", "target": "auto", **markup})
        assert status == 422
        assert "give target or tgt_lang" in answer["error"]
        assert ">>de<<, >>fr<<" in answer["error"]
        # Texts that are copied need no language.
        for text in (" ", "2024"):
            answer = call("POST", "/translate", {"q": text, "source": "en", "target": "auto", **markup})[2]
            assert answer == {"translatedText": text}

    def test_service_target_lang(self, service_of, read):
        from tests.apps.serving.support import call, serving

        with serving(service_of(target_lang="fr")) as address:
            call(address, "POST", "/", {"inputs": TEXT})
            assert read == coded("fr")
            read.clear()
            call(address, "POST", "/translate", {"q": TEXT, "source": "en", "target": "de"})
            assert read == coded("de")

    def test_service_counts_the_code_as_a_token(self, service_of, loaded):
        from tests.apps.serving.support import call, serving

        most = len(loaded[1](SENTENCES[0]).input_ids)
        for limit, status in ((most, 413), (most + 1, 200)):
            with serving(service_of({"max_source_tokens": limit}, split_sentences=False)) as address:
                body = {"q": SENTENCES[0], "source": "en", "target": "fr"}
                assert call(address, "POST", "/translate", body)[0] == status

    def test_languages(self, call):
        assert call("GET", "/languages")[2] == [
            {"code": "en", "name": "English", "targets": ["de", "fr"]},
            {"code": "de", "name": "German", "targets": []},
            {"code": "fr", "name": "French", "targets": []},
        ]


class TestCommand:
    def test_serve_target_lang_needs_a_multilingual_model(self, folder, monkeypatch):
        from hf_vanilla_transformer.apps.serving.http import uvicorn_server
        from tests.ecosystem.documentation import FIXTURE

        apps = []
        monkeypatch.setattr(uvicorn_server, "run", lambda app, *arguments: apps.append(app))
        main(["serve", "--model_name_or_path", str(folder), "--target_lang", "fr", "--port", "0"])
        assert len(apps) == 1
        with pytest.raises(SystemExit, match=r'target_lang is "it".* >>de<<, >>fr<<|"it".*>>de<<, >>fr<<'):
            main(["serve", "--model_name_or_path", str(folder), "--target_lang", "it", "--port", "0"])
        with pytest.raises(SystemExit, match="one of source_lang and target_lang is missing"):
            main(["serve", "--model_name_or_path", str(FIXTURE), "--target_lang", "de", "--port", "0"])


def test_page_menu_of_languages(service_of):
    pytest.importorskip("gradio")
    from hf_vanilla_transformer.apps.serving.page.gradio_page import build_page

    page = build_page(service_of(target_lang="fr"))
    (menu,) = (block for block in page.blocks.values() if getattr(block, "label", None) == "Into")
    assert menu.choices == [("de", ">>de<<"), ("fr", ">>fr<<")]
    assert menu.value == ">>fr<<"
