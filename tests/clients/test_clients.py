"""The server by the clients that people have."""

import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest


def test_serve_answers_hub_client(url):
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    client = InferenceClient(model=url)
    assert client.translation("forty-two").translation_text == "zweiundvierzig"
    answer = client.translation("nine", src_lang="xx", tgt_lang="yy", generate_parameters={"num_beams": 1})
    assert answer.translation_text == "neun"
    with pytest.raises(HfHubHTTPError, match="413"):
        client.translation("nine " * 40_000)


def test_serve_answers_libretranslate_client(url):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(url)
    assert client.translate("one hundred and three", "en", "de") == "einhundertdrei"
    assert client.translate("nine & ünï", "xx", "yy")
    assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
    with pytest.raises(HTTPError) as caught:
        client.translate("nine " * 40_000, "en", "de")
    assert caught.value.code == 413
    with pytest.raises(HTTPError) as caught:
        client.translate("nine", "en", "es")
    assert caught.value.code == 400


def test_serve_reads_parameters_in_query(url):
    from deep_translator import LibreTranslator

    client = LibreTranslator(source="auto", target="de", custom_url=f"{url}/", api_key="none")
    assert client.translate("forty-two") == "zweiundvierzig"
    assert client.translate_batch(["nine", "six"]) == ["neun", "sechs"]


@pytest.mark.parametrize("path", ["/health", "/languages", "/metrics"])
def test_serve_answers_head_requests(url, path):
    with urllib.request.urlopen(urllib.request.Request(url + path, method="HEAD")) as response:
        assert response.status == 200
        assert response.read() == b""


def test_serve_behind_proxy(url):
    """A client that takes the server for a proxy names the whole address in its request."""
    import requests

    data = {"q": "nine", "source": "en", "target": "de"}
    answer = requests.post("http://translation.example/translate", data, proxies={"http": url}, timeout=30)
    assert answer.json() == {"translatedText": "neun"}


def test_add_page_refuses_to_store_files(url):
    """By the routes of gradio that store."""
    from gradio import routes

    source = Path(routes.__file__).read_text(encoding="utf-8")
    part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nnine\r\n--x--\r\n'
    for path in ("upload", "upload/", "process_recording", "deep_link?session_hash=a", "component_server"):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        with pytest.raises(HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(f"{url}/page/gradio_api/{path}", part, headers))
        assert caught.value.code == 403
        assert f"/{path.strip('/').partition('?')[0]}" in source
    with pytest.raises(HTTPError) as caught:
        urllib.request.urlopen(f"{url}/page/gradio_api/deep_link?session_hash=a")
    assert caught.value.code == 403


def test_metrics_are_read_by_prometheus_parser(url):
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
    assert families["translation_request_seconds"].type == "histogram"
    assert families["translation_texts"].type == "counter"
    assert families["process_resident_memory_bytes"].samples[0].value > 1e7


def test_serve_answers_random_requests(url):
    """Whatever fits or breaks the description gets an answer that the description has, and never a status of 5xx."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} == {"/", "/translate", "/languages", "/health", "/metrics"}
    limits = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    named = (checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance)

    def check(case):
        # Limits of length are not in the description, so a request that fits it may get 413.
        case.call_and_validate(checks=[not_a_server_error, *named])

    for operation in operations:
        limits(given(case=operation.as_strategy())(check))()
