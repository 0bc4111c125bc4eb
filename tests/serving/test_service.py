"""The service over a model that waits, and over one that fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_shutting_down_finishes_what_runs(service_of, model_that_waits):
    from tests.serving.support import call, serving, wait_until

    may_go_on, begun = model_that_waits
    with ThreadPoolExecutor(2) as threads:
        with serving(service_of(tokens_per_batch=1)) as address:
            running = threads.submit(call, address, "POST", "/", {"inputs": ["a", "b"]})
            wait_until(lambda: begun)
            threading.Timer(0.5, may_go_on.set).start()
        # Shut down: b, which waited for its batch, is translated, too.
        assert running.result()[2] == [{"translation_text": "A"}, {"translation_text": "B"}]
        with pytest.raises(ConnectionRefusedError):
            call(address, "GET", "/health")


def test_a_model_that_fails(service_of, monkeypatch):
    from hf_vanilla_transformer.serving import service
    from tests.serving.support import call, serving, translation_of

    def fail(model, tokenizer, texts, tokens_per_batch, **options):
        if "bad" in texts:
            raise RuntimeError("secret path")
        return [translation_of(text) for text in texts]

    monkeypatch.setattr(service, "translate", fail)
    with serving(service_of(max_wait_ms=300)) as address, ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(call, address, "POST", "/", {"inputs": text}) for text in ("a", "bad", "c")]
        assert [each.result()[0] for each in calls] == [200, 500, 200]
        assert calls[1].result()[2] == {"error": "the server failed to translate; its log has the reason."}
        call(address, "POST", "/", {"inputs": "bad"})
        assert call(address, "GET", "/health")[::2] == (
            503,
            {"status": "failing", "model": "numbers_tiny", "engine": "VanillaTransformerForConditionalGeneration"},
        )
        call(address, "POST", "/", {"inputs": "a"})
        assert call(address, "GET", "/health")[0] == 200
