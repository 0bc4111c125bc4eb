"""Metrics of the server in the format of Prometheus, and the middleware that counts requests."""

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from .batcher import Batch


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_POWERS_OF_TWO = tuple(2.0**power for power in range(14))


class Metrics:
    """Counters of one server, and those of its process: memory, CPU time, open files."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        text = "Seconds from a request's headers to its response."
        self._requests = histogram("translation_request_seconds", text, _SECONDS, ("route", "status"))
        self._texts = Counter("translation_texts", "Texts that were translated.", registry=registry)
        self.in_flight = Gauge("translation_texts_in_flight", "Texts that wait or are translated.", registry=registry)
        self._batch_texts = histogram("translation_batch_texts", "Texts of a batch.", _POWERS_OF_TWO)
        text = "Source tokens of a batch, padding included."
        self._batch_tokens = histogram("translation_batch_tokens", text, _POWERS_OF_TWO)
        text = "Seconds in which a batch is translated."
        self._batch_seconds = histogram("translation_batch_seconds", text, _SECONDS)
        self._waited = histogram("translation_wait_seconds", "Seconds that a text waits for its batch.", _SECONDS)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).observe(seconds)

    def count_batch(self, batch: Batch) -> None:
        self._texts.inc(batch.texts)
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.tokens)
        self._batch_seconds.observe(batch.seconds)
        for seconds in batch.waited:
            self._waited.observe(seconds)

    def text(self) -> bytes:
        """All values, as Prometheus reads them."""
        return generate_latest(self._registry)


class CountRequests:
    """ASGI middleware: counts each request with its route, status and seconds."""

    def __init__(self, app: Any, metrics: Metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def remember(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, remember)
        finally:
            # The path of an unknown route may be anything.
            route = scope.get("root_path", "") + scope["route"].path if "route" in scope else "other"
            self._metrics.count_request(route, status, time.perf_counter() - started)
