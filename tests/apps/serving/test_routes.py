"""The routes over a real model, on loopback, and what no request may do to others."""

import gzip
import html
import re
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from urllib.parse import quote

import pytest

from hf_vanilla_transformer import Glossary, translate, translate_documents


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)
FORM = "application/x-www-form-urlencoded"
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


class TestHub:
    def test_a_text(self, call):
        status, _, body = call("POST", "/", {"inputs": "forty-two"})
        assert (status, body) == (200, [{"translation_text": "zweiundvierzig"}])

    def test_texts_and_languages_that_the_model_does_not_state(self, call):
        parameters = {"src_lang": "tlh", "tgt_lang": "Quenya"}
        _, _, body = call("POST", "/", {"inputs": ["nine", "", "seven"], "parameters": parameters})
        assert [answer["translation_text"] for answer in body] == ["neun", "", "sieben"]

    def test_settings_of_the_search(self, call, model, tokenizer):
        for options in ({"num_beams": 1, "max_new_tokens": 2}, {"num_beams": 2, "length_penalty": 5.0}):
            body = call("POST", "/", {"inputs": "forty-two", "parameters": {"generate_parameters": options}})[2]
            assert [answer["translation_text"] for answer in body] == translate(
                model, tokenizer, ["forty-two"], **options
            )

    def test_flags(self, call, model, tokenizer):
        parameters = {"generate_parameters": {"max_new_tokens": 2}}
        body = call("POST", "/", {"inputs": ["forty-two", "", "nine"], "parameters": parameters})[2]
        cut, whole = translate(model, tokenizer, ["forty-two", "nine"], max_new_tokens=2)
        assert whole == "neun"
        assert body[0] == {"translation_text": cut, "flags": ["truncated"]}
        assert body[1:] == [{"translation_text": ""}, {"translation_text": "neun"}]

    def test_texts_without_visible_characters_are_their_translations(self, call):
        texts = ["\u200b", " \ufeff\n", "nine", "\u00ad"]
        body = call("POST", "/", {"inputs": texts})[2]
        assert [answer["translation_text"] for answer in body] == ["\u200b", " \ufeff\n", "neun", "\u00ad"]

    def test_terms(self, call, service_of, model, tokenizer):
        from tests.apps.serving.support import call as call_at
        from tests.apps.serving.support import serving

        request = {"inputs": "nine", "parameters": {"generate_parameters": {"glossary": {"nine": ["zehn", "elf"]}}}}
        (expected,) = translate(model, tokenizer, ["nine"], glossary=Glossary({"nine": ["zehn", "elf"]}, tokenizer))
        assert call("POST", "/", request)[2] == [{"translation_text": expected}] != [{"translation_text": "neun"}]
        request["parameters"]["generate_parameters"]["num_beams"] = 1
        status, _, body = call("POST", "/", request)
        assert status == 422
        assert "glossaries need beam search, but num_beams is 1" in body["error"]
        # Those of the server are for requests that have none.
        service = service_of()
        service._generate_kwargs = {"glossary": Glossary({"nine": "sieben"}, tokenizer)}
        with serving(service) as address:
            assert "sieben" in call_at(address, "POST", "/", {"inputs": "nine"})[2][0]["translation_text"]
            del request["parameters"]["generate_parameters"]["num_beams"]
            assert call_at(address, "POST", "/", request)[2] == [{"translation_text": expected}]

    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            (b'{"inputs": "\xff"}', 400, "the body is not JSON in UTF-8 ('utf-8' codec can't decode byte 0xff"),
            (b'{"inputs": ', 400, "JSON decode error"),
            (b"[" * 9000, 400, ""),
            (b"", 422, "Field required"),
            ({"inputs": 3}, 422, "inputs"),
            ({"inputs": "\ud800"}, 422, ""),
            ({"inputs": ["nine", "\udfff"]}, 422, ""),
            ({"inputs": "nine", "parameters": {"\ud800": 1}}, 422, "body.parameters: Input should be a valid string"),
            ({"inputs": "nine", "parameters": {"truncation": "only_first"}}, 422, "parameters.truncation: Extra"),
            ({"inputs": "nine", "parameters": {"generate_parameters": {"num_beams": 99}}}, 422, "less than or equal"),
            ({"inputs": "nine " * 50}, 413, "tokens; split it into texts of at most 40"),
            ({"inputs": ["nine"] * 9}, 413, "the request has 9 texts; send at most 8"),
            ({"inputs": "n" * 10_001}, 413, "the body has more than 10,000 bytes"),
        ],
    )
    def test_answers_errors(self, call, body, status, message):
        answered_status, _, answer = call("POST", "/", body)
        assert answered_status == status
        assert message in answer["error"]

    @pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", FORM, ""])
    def test_rejects_other_content_types(self, call, content_type):
        status, _, answer = call("POST", "/", b'{"inputs": "nine"}', **{"Content-Type": content_type})
        assert status == 415
        assert answer == {"error": f"the Content-Type is {content_type.partition(';')[0]!r}; send application/json."}

    def test_answers_errors_of_engines(self, service_of, monkeypatch):
        from hf_vanilla_transformer.apps.serving import service
        from tests.apps.serving.support import call, serving

        def refuse(*arguments, **options):
            raise ValueError("early_stopping is False, but CTranslate2 cannot.")

        monkeypatch.setattr(service, "translate", refuse)
        with serving(service_of()) as address:
            status, _, body = call(address, "POST", "/", {"inputs": "nine"})
            assert (status, body) == (422, {"error": "early_stopping is False, but CTranslate2 cannot."})
            assert call(address, "GET", "/health")[2]["status"] == "ok"


class TestLibreTranslate:
    def test_json(self, call):
        status, _, body = call("POST", "/translate", {"q": "forty-two", "source": "en", "target": "de"})
        assert (status, body) == (200, {"translatedText": "zweiundvierzig"})

    @pytest.mark.parametrize("headers", [{}, {"Content-Type": FORM}, {"Content-Type": "application/json"}])
    def test_parameters_in_the_query(self, exchange, headers):
        """As deep_translator sends them, without a body."""
        head = b"POST /translate?q=forty-two&source=en&target=de&format= HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        answer = exchange(head + lines.encode() + b"Content-Length: 0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"translatedText":"zweiundvierzig"}')

    def test_parameters_in_the_query_and_the_body(self, call):
        path = "/translate?q=nine&q=seven&source=en&target=fr&format=html"
        body = call("POST", path, {"target": "de"})[2]
        assert body == {"translatedText": ["neun", "sieben"]}
        body = call("POST", path, b"target=de&q=six", **{"Content-Type": FORM})[2]
        assert body == {"translatedText": "sechs"}
        status, _, answer = call("POST", "/translate?q=%ff", {})
        assert (status, answer) == (400, {"error": "the query of the address cannot be read; send UTF-8."})

    @pytest.mark.parametrize("value", [None, ""])
    def test_optional_parameters_without_a_value(self, call, value):
        names = ("format", "alternatives", "glossary", "return_scores", "api_key")
        body = {"q": "nine", "source": "en", "target": "de", **dict.fromkeys(names, value)}
        assert call("POST", "/translate", body)[2] == {"translatedText": "neun"}
        form = "&".join(f"{name}={field or ''}" for name, field in body.items()).encode()
        assert call("POST", "/translate", form, **{"Content-Type": FORM})[2] == {"translatedText": "neun"}

    def test_the_language_of_a_text_whose_language_is_not_named(self, call, service_of):
        from tests.apps.serving.support import call as call_at
        from tests.apps.serving.support import serving

        english = {"confidence": 100.0, "language": "en"}
        body = {"q": "nine", "source": "auto", "target": "de"}
        assert call("POST", "/translate", body)[2] == {"translatedText": "neun", "detectedLanguage": english}
        answer = call("POST", "/translate", {**body, "q": ["nine", "six"]})[2]
        assert answer == {"translatedText": ["neun", "sechs"], "detectedLanguage": [english] * 2}
        service = service_of()
        service.card = service.card._replace(source_language=None)
        with serving(service) as address:
            assert call_at(address, "POST", "/translate", body)[2] == {"translatedText": "neun"}

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ([], "q: the list is empty; give a text, or a list with at least one text."),
            (3, "q: 3 is no text; give a text, or a list of texts."),
            (None, "q: null is no text; give a text, or a list of texts."),
            (["nine", 3], "q: item 1 of the list, 3, is no text; give a text, or a list of texts."),
        ],
    )
    def test_rejects_values_that_are_no_texts(self, call, texts, message):
        status, _, answer = call("POST", "/translate", {"q": texts, "source": "en", "target": "de"})
        assert (status, answer) == (422, {"error": message})

    def test_rejects_json_that_is_no_object(self, call):
        status, _, answer = call("POST", "/translate", ["nine"])
        assert (status, answer) == (422, {"error": "the body is JSON of another kind; send an object, {...}."})

    def test_a_list_with_alternatives(self, call, model, tokenizer):
        body = call("POST", "/translate", {"q": ["nine", ""], "source": "auto", "target": "de", "alternatives": 2})[2]
        expected = translate(model, tokenizer, ["nine"], return_details=True, num_return_sequences=3)[0]
        assert body["translatedText"] == [expected.text, ""] == ["neun", ""]
        assert body["alternatives"] == [[alternative.text for alternative in expected.alternatives], []]

    def test_more_alternatives_than_beams(self, call):
        body = call("POST", "/translate", {"q": "nine", "source": "en", "target": "de", "alternatives": 7})[2]
        assert len(body["alternatives"]) == 7

    def test_scores(self, call, model, tokenizer):
        nine, forty_two = translate(model, tokenizer, ["nine", "forty-two"], return_details=True)
        body = {"q": ["nine", ""], "source": "en", "target": "de", "return_scores": True}
        answer = call("POST", "/translate", body)[2]
        assert answer == {"translatedText": ["neun", ""], "score": [pytest.approx(nine.score, rel=1e-4), None]}
        parameters = {"generate_parameters": {"return_scores": True}}
        (answer,) = call("POST", "/", {"inputs": "forty-two", "parameters": parameters})[2]
        assert answer == {"translation_text": forty_two.text, "score": pytest.approx(forty_two.score, rel=1e-4)}

    def test_terms(self, call, model, tokenizer):
        (expected,) = translate(model, tokenizer, ["nine"], glossary=Glossary({"nine": "elf"}, tokenizer))
        assert "elf" in expected
        body = {"q": "nine", "source": "en", "target": "de", "glossary": {"nine": "elf"}}
        assert call("POST", "/translate", body)[2] == {"translatedText": expected}
        form = b"q=nine&source=en&target=de&glossary=" + quote('{"nine": "elf"}').encode()
        assert call("POST", "/translate", form, **{"Content-Type": FORM})[2] == {"translatedText": expected}
        status, _, answer = call("POST", "/translate", {**body, "glossary": {"nine": "x" * 201}})
        assert status == 422
        assert "at most 200 characters" in answer["error"]

    def test_pages_of_other_origins(self, call):
        preflight = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
        status, headers, _ = call(
            "OPTIONS", "/translate", **preflight, **{"Access-Control-Request-Headers": "content-type"}
        )
        assert status == 200
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert "POST" in headers["Access-Control-Allow-Methods"]
        assert headers["Access-Control-Allow-Headers"] == "content-type"
        body = {"q": "nine", "source": "en", "target": "de"}
        assert call("POST", "/translate", body, Origin="https://example.org")[1]["Access-Control-Allow-Origin"] == "*"
        # Errors can be read, too, and nothing but translations.
        assert call("POST", "/translate", b"{", Origin="https://example.org")[1]["Access-Control-Allow-Origin"] == "*"
        for path in ("/metrics", "/health"):
            assert "Access-Control-Allow-Origin" not in call("GET", path, Origin="https://example.org")[1]

    def test_forms(self, call):
        form = {"Content-Type": FORM}
        body = call("POST", "/translate", b"q=forty-two&source=en&target=de", **form)[2]
        assert body == {"translatedText": "zweiundvierzig"}
        body = call("POST", "/translate", b"q=nine&q=seven&source=en&target=de&format=text&api_key=", **form)[2]
        assert body == {"translatedText": ["neun", "sieben"]}
        fields = [("q", "nine"), ("source", "en"), ("target", "de"), ("api_key", "")]
        parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
        body = call("POST", "/translate", ("".join(parts) + "--x--\r\n").encode(), **MULTIPART)[2]
        assert body == {"translatedText": "neun"}

    @pytest.mark.parametrize(
        ("body", "content_type", "status", "message"),
        [
            (b"q=%ff&source=en&target=de", FORM, 400, "send UTF-8"),
            (b"q=\xff&source=en&target=de", FORM, 400, "send UTF-8"),
            (b"q=nine", FORM, 422, "source: Field required"),
            (b"q=nine&source=en&target=de&format=xml", FORM, 422, "format: Input should be 'text' or 'html'"),
            (b"q=<p>" + b"nine " * 50 + b"&source=en&target=de&format=html", FORM, 413, "tokens"),
            (b"q=<b" + b" " * 2000 + b"&source=en&target=de&format=html", FORM, 413, "2,002 characters with its tags"),
            (b'{"q": "\xff"}', "application/json", 400, "Invalid JSON"),
            (b"{", "application/json", 400, "Invalid JSON: EOF while parsing an object at line 1 column 1."),
            (
                b"q=nine",
                "text/plain",
                415,
                "the Content-Type is 'text/plain'; send application/json, application/x-www",
            ),
            (b"--x", "multipart/form-data", 400, "boundary"),
            (
                b'--x\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\nnine\r\n--x--\r\n',
                "multipart/form-data; boundary=x",
                400,
                "Too many files",
            ),
            (b"--x\xff", "multipart/form-data; boundary=x", 400, "send UTF-8"),
            (b'{"q": "nine", "source": "en", "target": "de", "alternatives": 99}', "application/json", 422, "altern"),
        ],
    )
    def test_answers_errors(self, call, body, content_type, status, message):
        answered_status, _, answer = call("POST", "/translate", body, **{"Content-Type": content_type})
        assert answered_status == status
        assert message in answer["error"]
        assert "\n" not in answer["error"]
        assert "LibreRequest" not in answer["error"]

    def test_html(self, call, model, tokenizer):
        text = "<b>forty-two</b> &amp; <i>nine</i>"
        body = {"q": [text, "nine"], "source": "en", "target": "de", "format": "html"}
        expected = translate_documents(model, tokenizer, body["q"], format="html")
        assert "<b>" in expected[0]
        assert call("POST", "/translate", body)[2] == {"translatedText": expected}
        answer = call("POST", "/translate", {**body, "alternatives": 1})[2]
        options = {"return_details": True, "num_return_sequences": 2}
        details = translate_documents(model, tokenizer, body["q"], format="html", **options)
        assert answer["alternatives"] == [[translation.alternatives[0].text] for translation in details]
        # Tags of a text are text.
        plain = call("POST", "/translate", {**body, "format": "text"})[2]["translatedText"]
        assert plain == translate(model, tokenizer, body["q"])

    def test_rejects_tags_that_are_too_deep(self, service_of):
        from tests.apps.serving.support import call, serving

        with serving(service_of()) as address:
            body = {"q": "<b>" * 250 + "x", "source": "en", "target": "de", "format": "html"}
            status, _, answer = call(address, "POST", "/translate", body)
            assert status == 422
            assert "more than 200 tags are inside each other" in answer["error"]
            assert call(address, "GET", "/health")[0] == 200

    def test_blank_texts_of_a_server_that_splits(self, service_of):
        pytest.importorskip("sentencex")
        from tests.apps.serving.support import call, serving

        service = service_of()
        service._generate_kwargs = {"split_sentences": True}
        with serving(service) as address:
            body = {"q": ["", "nine\nsix"], "source": "en", "target": "de", "alternatives": 1}
            answer = call(address, "POST", "/translate", body)[2]
            assert answer["translatedText"] == ["", "neun\nsechs"]
            assert [len(alternatives) for alternatives in answer["alternatives"]] == [0, 1]

    def test_blank_html(self, call):
        body = {"q": ["&#8203;", "<b>&#65279;</b>", "<p> </p>"], "source": "en", "target": "de", "format": "html"}
        texts = call("POST", "/translate", body)[2]["translatedText"]
        assert [re.sub("<.*?>", "", html.unescape(text)).strip(" \u200b\ufeff") for text in texts] == ["", "", ""]

    @pytest.mark.parametrize("share", [None, 0.0, 1.0])
    def test_numbers_are_copied_unless_the_training_pairs_translate_them(
        self, service_of, model, tokenizer, monkeypatch, share
    ):
        from tests.apps.serving.support import call, serving

        if share is not None:
            monkeypatch.setitem(tokenizer.init_kwargs, "translated_letterless_share", share)
        expected = translate(model, tokenizer, ["5", "10:45"], copy_letterless=False) if share else ["5", "10:45"]
        with serving(service_of()) as address:
            body = {"q": ["5", "nine", "10:45"], "source": "en", "target": "de"}
            translated = call(address, "POST", "/translate", body)[2]["translatedText"]
            assert translated == [expected[0], "neun", expected[1]]
            (translated,) = call(address, "POST", "/", {"inputs": "5"})[2]
            assert translated["translation_text"] == expected[0]
            page = {**body, "q": "<td>5</td><td>nine</td>", "format": "html"}
            translated = call(address, "POST", "/translate", page)[2]["translatedText"]
            assert translated == f"<td>{expected[0]}</td><td>neun</td>"

    def test_flags(self, service_of):
        from tests.apps.serving.support import call, serving

        service = service_of()
        service._generate_kwargs = {"max_new_tokens": 2}
        with serving(service) as address:
            for options in ({}, {"format": "html"}, {"alternatives": 1}):
                body = {"q": ["forty-two", "", "nine"], "source": "en", "target": "de", **options}
                answer = call(address, "POST", "/translate", body)[2]
                assert answer["flags"] == [["truncated"], [], []]
                answer = call(address, "POST", "/translate", {**body, "q": "forty-two"})[2]
                assert answer["flags"] == ["truncated"]
                answer = call(address, "POST", "/translate", {**body, "q": "nine"})[2]
                assert "flags" not in answer

    def test_languages(self, call, service_of):
        from tests.apps.serving.support import call as call_at
        from tests.apps.serving.support import serving

        english, german = call("GET", "/languages")[2]
        assert english == {"code": "en", "name": "English", "targets": ["de"]}
        assert german == {"code": "de", "name": "German", "targets": []}
        service = service_of()
        service.card = service.card._replace(source_language=None)
        with serving(service) as address:
            assert call_at(address, "GET", "/languages")[2] == []


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("PUT", "/translate", 405)])
def test_unknown_routes(call, method, path, status):
    answered_status, _, body = call(method, path)
    assert answered_status == status
    assert body["error"]


def test_a_byte_order_mark_before_json(call):
    """As PowerShell and .NET write it."""
    mark = b"\xef\xbb\xbf"
    assert call("POST", "/", mark + b'{"inputs": "nine"}')[2] == [{"translation_text": "neun"}]
    body = mark + b'{"q": "nine", "source": "en", "target": "de"}'
    assert call("POST", "/translate", body)[2] == {"translatedText": "neun"}


@pytest.mark.parametrize("path", ["/health", "/languages", "/metrics", "/openapi.json"])
def test_head_answers_as_get_without_a_body(call, exchange, path):
    status, headers, _ = call("GET", path)
    head = exchange(f"HEAD {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()).decode()
    lines, _, body = head.partition("\r\n\r\n")
    assert status == 200
    assert lines.startswith("HTTP/1.1 200")
    assert f"content-type: {headers['Content-Type']}" in lines
    assert not body


@pytest.mark.parametrize("path", ["/", "/translate"])
def test_compressed_bodies(exchange, path):
    content = gzip.compress(b'{"inputs": "nine", "q": "nine", "source": "en", "target": "de"}')
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Encoding: GZIP\r\n"
    answer = exchange(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content).decode()
    assert answer.startswith("HTTP/1.1 415")
    assert answer.endswith('{"error":"the body has the Content-Encoding \'gzip\'; send it without a compression."}')
    assert "accept-encoding: identity" in answer


def test_bodies_that_are_not_compressed(call):
    assert call("POST", "/", {"inputs": "nine"}, **{"Content-Encoding": "identity"})[0] == 200


@pytest.mark.parametrize("target", ["http://a/translate", "HTTP://a:8000/translate", "https://a/translate?format=text"])
def test_absolute_targets_of_requests(exchange, target):
    """As clients send them to a proxy, and some to a server."""
    content = b'{"q": "nine", "source": "en", "target": "de"}'
    head = f"POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += f"Origin: https://example.org\r\nContent-Length: {len(content)}\r\n\r\n"
    answer = exchange(head.encode() + content).decode()
    assert answer.startswith("HTTP/1.1 200")
    assert answer.endswith('{"translatedText":"neun"}')
    assert "access-control-allow-origin: *" in answer


def test_absolute_targets_without_a_path(exchange):
    content = b'{"inputs": "nine"}'
    head = f"POST http://a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    answer = exchange(f"{head}Content-Type: application/json\r\n\r\n".encode() + content).decode()
    assert answer.startswith("HTTP/1.1 200")


def test_concurrent_requests_get_their_own_answers(call, model, tokenizer):
    texts = ["one", "two", "three", "nine", "forty-two", "one hundred and three", "six", "ninety"]
    expected = dict(zip(texts, translate(model, tokenizer, texts), strict=True))

    def ask(number):
        text = texts[number % len(texts)] if number % 7 else "nine " * 50
        status, _, body = call("POST", "/", {"inputs": text})
        return (status == 413) if number % 7 == 0 else body == [{"translation_text": expected[text]}]

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(112)))


def test_openapi_describes_the_routes(call):
    description = call("GET", "/openapi.json")[2]
    assert set(description["paths"]) == {"/", "/translate", "/languages", "/health", "/metrics"}
    content = description["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", FORM, "multipart/form-data"}
    # Their pages would load scripts from elsewhere.
    assert call("GET", "/docs")[0] == 404
