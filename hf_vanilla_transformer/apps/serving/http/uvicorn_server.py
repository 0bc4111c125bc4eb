"""uvicorn with limits of time, which finishes what runs before it ends."""

import contextlib
import socket

import uvicorn
from fastapi import FastAPI

from ..limits import ServingSettings
from .header_and_body_limits import MOST_HEADER_BYTES, protocol_with


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; OSError if the address is in use or not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port} ({error}); choose another --host or --port.") from error
    # Connections inherit it. asyncio does not set it for sockets that name no protocol, as this one; without it the
    # body of an answer waits some 40 ms for the acknowledgment of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return listener


def configuration(app: FastAPI, settings: ServingSettings) -> uvicorn.Config:
    """uvicorn's settings: limits of time, no WebSockets, and a log of errors only."""
    return uvicorn.Config(
        app,
        http=protocol_with(settings.arrival_seconds),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )


def run(app: FastAPI, settings: ServingSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests that have arrived."""
    # Having finished, uvicorn raises the signal again for the handler of before.
    with contextlib.suppress(KeyboardInterrupt):
        _Server(app, configuration(app, settings)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's, which first ends the streams of the page on shutdown, by `end_streams` of the app's state."""

    def __init__(self, app: FastAPI, config: uvicorn.Config):
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.end_streams()
        await super().shutdown(sockets)
