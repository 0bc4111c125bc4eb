"""Collect the server's metrics in Prometheus format, and count requests with an ASGI middleware."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .batcher import BatchFigures


# Upper bounds of the histogram buckets: for durations in seconds, and for numbers of texts or tokens.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_POWERS_OF_TWO = tuple(2.0**power for power in range(14))


class Metrics:
    """The Prometheus metrics of one server, including the memory, the CPU time, and the open files of its process.

    Attributes:
        in_flight (`Gauge`): the number of texts that are waiting or being translated.
    """

    def __init__(self) -> None:
        # Each server has a separate registry, because the metrics of two servers in one process must not be added up.
        self._registry = CollectorRegistry()
        # The constructor adds the collector to the registry, which keeps it.
        ProcessCollector(registry=self._registry)
        self._requests = Histogram(
            "translation_request_seconds",
            "Seconds from the arrival of a request's headers to its response.",
            ("route", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._texts = Counter("translation_texts", "Texts that were translated.", registry=self._registry)
        self.in_flight = Gauge(
            "translation_texts_in_flight", "Texts that are waiting or being translated.", registry=self._registry
        )
        self._batch_texts = Histogram(
            "translation_batch_texts", "Texts in a batch.", buckets=_POWERS_OF_TWO, registry=self._registry
        )
        self._batch_tokens = Histogram(
            "translation_batch_tokens",
            "Source tokens in a batch, including padding.",
            buckets=_POWERS_OF_TWO,
            registry=self._registry,
        )
        self._batch_seconds = Histogram(
            "translation_batch_seconds",
            "Seconds that the translation of a batch takes.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._waiting_seconds = Histogram(
            "translation_wait_seconds",
            "Seconds that a text waits for its batch.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Record the duration of a request, separately for each route and status.

        Args:
            route (`str`): the path of the request's route, such as "/translate"; "other" if no route matches.
            status (`int`): the HTTP status of the response.
            seconds (`float`): how long the request took.
        """
        self._requests.labels(route, str(status)).observe(seconds)

    def count_batch(self, batch: BatchFigures) -> None:
        """Record the statistics of a translated batch in the metrics."""
        self._texts.inc(batch.texts)
        self._batch_texts.observe(batch.texts)
        self._batch_tokens.observe(batch.padded_tokens)
        self._batch_seconds.observe(batch.seconds)
        for seconds in batch.waiting_seconds:
            self._waiting_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return the values of all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class CountRequests:
    """ASGI middleware that records the route, the status, and the duration of each request in the metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, and record it in the metrics when it has ended."""
        # ASGI servers also call the app for WebSockets, and when they start and shut down ("lifespan").
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        started = time.perf_counter()
        try:
            await self._app(scope, receive, response.send)
        finally:
            seconds = time.perf_counter() - started
            # The app adds the route to `scope` while it handles the request, so the route is known only now.
            self._metrics.count_request(_route_of_request(scope), response.status, seconds)


class _Response:
    """Sends the messages of a response on to the server, and notes its status.

    Attributes:
        status: the status; 500 until the app sends one, in case it fails before that.
    """

    def __init__(self, send: Send):
        self._send = send
        self.status = 500

    async def send(self, message: Message) -> None:
        """Send a message. Only the first message of a response contains the status."""
        self.status = message.get("status", self.status)
        await self._send(message)


def _route_of_request(scope: Scope) -> str:
    """Return the path of the route that has handled a request, such as "/translate"; "other" if no route matched.

    Requests for unknown paths are all recorded as "other", because clients can send any number of different paths, and
    each value would become a separate time series.
    """
    # Starlette's router sets these items: "route" is the route that matches the request, and "root_path" is the path
    # under which the app with this route is mounted, for example "/page".
    if "route" not in scope:
        return "other"
    return scope.get("root_path", "") + scope["route"].path
