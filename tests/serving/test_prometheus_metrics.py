"""Metrics of a server."""

from importlib.util import find_spec

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
