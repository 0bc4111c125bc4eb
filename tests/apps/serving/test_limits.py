"""Limits of texts in flight, and of the time to answer."""

import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from hf_vanilla_transformer.apps.serving.limits import ServingSettings


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_limits_full_server_sends_retry_after(service_of, model_that_waits):
    from tests.apps.serving.support import call, serving, wait_until

    may_go_on, begun = model_that_waits
    service = service_of(max_in_flight=3, max_texts=2)
    with serving(service) as address, ThreadPoolExecutor(3) as threads:
        first = threads.submit(call, address, "POST", "/", {"inputs": ["a", "b"]})
        wait_until(lambda: begun)
        status, headers, body = call(address, "POST", "/", {"inputs": ["c", "d"]})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "the server has 2 texts in flight, and takes 3" in body["error"]
        # Health and metrics are answered meanwhile, because the event loop is free.
        assert call(address, "GET", "/health")[0] == 200
        assert "translation_texts_in_flight 2.0" in call(address, "GET", "/metrics")[2]
        last = threads.submit(call, address, "POST", "/", {"inputs": "c"})
        wait_until(lambda: service._limits.in_flight == 3)
        may_go_on.set()
        assert first.result()[2] == [{"translation_text": "A"}, {"translation_text": "B"}]
        assert last.result()[2] == [{"translation_text": "C"}]


def test_limits_disconnected_client_frees_its_place(service_of, model_that_waits):
    import socket

    from tests.apps.serving.support import call, serving, wait_until

    may_go_on, begun = model_that_waits
    service = service_of(max_in_flight=2, max_texts=2)
    body = json.dumps({"inputs": ["x", "y"]}).encode()
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(service) as address, ThreadPoolExecutor(1) as threads:
        with socket.create_connection(address) as leaver:
            leaver.sendall(head + body)
            wait_until(lambda: begun)
        wait_until(lambda: service._limits.in_flight == 0)
        stayer = threads.submit(call, address, "POST", "/", {"inputs": ["a", "b"]})
        wait_until(lambda: service._limits.in_flight == 2)
        may_go_on.set()
        assert [answer["translation_text"] for answer in stayer.result()[2]] == ["A", "B"]


def test_limits_request_seconds(service_of, model_that_waits):
    from tests.apps.serving.support import call, serving

    may_go_on, _ = model_that_waits
    with serving(service_of(request_seconds=1)) as address:
        status, headers, body = call(address, "POST", "/", {"inputs": "a"})
        assert (status, headers["Retry-After"]) == (503, "5")
        assert "the translation took more than 1 seconds" in body["error"]
        may_go_on.set()


def test_serving_settings_reject_contradictions():
    with pytest.raises(ValueError, match="max_texts is 9, but max_in_flight 8"):
        ServingSettings(max_texts=9, max_in_flight=8)
    with pytest.raises(ValueError, match="arrival_seconds is 0"):
        ServingSettings(arrival_seconds=0)
