"""Metrics of a server."""

import asyncio
from importlib.util import find_spec
from types import SimpleNamespace

import pytest


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_metrics(call):
    call("POST", "/", {"inputs": ["nine", "seven"]})
    call("GET", "/x" * 100)
    text = call("GET", "/metrics")[2]
    for part in (
        'translation_request_seconds_count{route="/",status="200"}',
        'translation_request_seconds_count{route="other",status="404"}',
        "translation_batch_texts_bucket",
        "translation_wait_seconds_count",
        "process_resident_memory_bytes",
    ):
        assert part in text
    assert "/x/x" not in text


def test_routes_of_a_mounted_app_have_its_path():
    from fastapi import FastAPI

    from hf_vanilla_transformer.apps.serving.prometheus_metrics import CountRequests, Metrics

    async def page(scope, receive, send):
        scope["route"] = SimpleNamespace(path="/")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ignore(message):
        pass

    app, metrics = FastAPI(), Metrics()
    app.mount("/page", page)
    scope = {"type": "http", "method": "GET", "path": "/page/", "headers": [], "query_string": b""}
    asyncio.run(CountRequests(app, metrics)(scope, None, ignore))
    assert 'translation_request_seconds_count{route="/page/",status="200"} 1.0' in metrics.text().decode()
