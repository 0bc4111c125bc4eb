"""Run an app with the web server uvicorn, with time limits for requests and a graceful shutdown."""

import contextlib
import socket

import uvicorn
from fastapi import FastAPI

from ..limits import ServingSettings
from .header_and_body_limits import MOST_HEADER_BYTES, protocol_with_time_limit


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the given host and port.

    Raises:
        OSError: if the address is in use, or does not belong to this machine.
    """
    # Only IPv6 addresses contain a colon, as in "::1".
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The backlog is uvicorn's default.
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port} ({error}); choose another --host or --port.") from error
    # Connections inherit this option. asyncio sets it only for sockets that were created with a protocol number.
    # Without it, the body of a response is delayed by about 40 ms, until the client has acknowledged the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return listener


def configuration(app: FastAPI, settings: ServingSettings) -> uvicorn.Config:
    """Return the uvicorn configuration of the server.

    It sets time limits and a limit on the headers, and disables WebSockets and the access log.
    """
    return uvicorn.Config(
        app,
        http=protocol_with_time_limit(settings.arrival_seconds),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )


def run(app: FastAPI, settings: ServingSettings, listener: socket.socket) -> None:
    """Serve the app until SIGTERM or Ctrl-C, and then finish the requests that have already arrived."""
    # When uvicorn has finished, it raises the signal again for the handler that was installed earlier. For Ctrl-C, this
    # is Python's own handler, which raises KeyboardInterrupt.
    with contextlib.suppress(KeyboardInterrupt):
        _Server(app, configuration(app, settings)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that ends the streams of open web pages on shutdown.

    Otherwise, uvicorn would wait until all pages are closed. The server calls the function `end_streams` of the app's
    state.
    """

    def __init__(self, app: FastAPI, config: uvicorn.Config):
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams of open web pages, and then shut down in uvicorn's usual way."""
        # This must come first, because uvicorn waits for responses that are not complete, such as these streams.
        self._app.state.end_streams()
        await super().shutdown(sockets)
