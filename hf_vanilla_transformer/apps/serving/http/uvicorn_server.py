"""Run an app with uvicorn, with limits of time, and finish the requests in work before it ends."""

import contextlib
import socket

import uvicorn
from fastapi import FastAPI

from ..limits import ServingSettings
from .header_and_body_limits import MOST_HEADER_BYTES, protocol_with_time_limit


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise OSError if the address is in use or does not belong to this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port} ({error}); choose another --host or --port.") from error
    # Connections inherit this option. asyncio sets it only for sockets that were made with the number of a protocol.
    # Without it, the body of a response waits about 40 ms until the client has acknowledged the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return listener


def configuration(app: FastAPI, settings: ServingSettings) -> uvicorn.Config:
    """Return the settings of uvicorn: limits of time, no WebSockets, and a log of errors only."""
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
    """Serve until SIGTERM or Ctrl-C, and then finish the requests that have arrived."""
    # When uvicorn has finished, it raises the signal again for the handler that was installed before its own.
    with contextlib.suppress(KeyboardInterrupt):
        _Server(app, configuration(app, settings)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A uvicorn server that ends the streams of open pages on shutdown, because it would wait for them otherwise.

    The state of the app has the function `end_streams` for this.
    """

    def __init__(self, app: FastAPI, config: uvicorn.Config):
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams of open pages, and shut down as uvicorn does."""
        self._app.state.end_streams()
        await super().shutdown(sockets)
