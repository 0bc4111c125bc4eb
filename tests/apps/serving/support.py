"""A server in a thread of the test, and what tests send to it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import uvicorn

from hf_vanilla_transformer.apps.serving.http.routes import build_app
from hf_vanilla_transformer.apps.serving.http.uvicorn_server import configuration, listen
from hf_vanilla_transformer.apps.serving.service import Service
from hf_vanilla_transformer.translation.translation_details import Translation


def translation_of(text: str) -> Translation:
    """A translation without details."""
    return Translation(text, 0.0, [], [], None)


@contextmanager
def serving(service: Service, app: Any = None) -> Iterator[tuple[str, int]]:
    """Serve on a free port of loopback, and shut down at the end."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(configuration(app or build_app(service), service.settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        address = listener.getsockname()
        wait_until(lambda: server.started or not thread.is_alive())
        yield address
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def wait_until(condition: Any, seconds: float = 30) -> None:
    """Wait for something that other threads do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def call(address: tuple[str, int], method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and body of a response; a body of the request that is not bytes is sent as JSON."""
    connection = HTTPConnection(*address, timeout=60)
    try:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, response.headers, json.loads(text) if is_json else text.decode()
    finally:
        connection.close()


def exchange(address: tuple[str, int], *parts: bytes, pause: float = 0.0, seconds: float = 30) -> bytes:
    """Send bytes as they are, part by part, and read until the server closes the connection."""
    with socket.create_connection(address, timeout=seconds) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        received = b""
        while arrived := connection.recv(65536):
            received += arrived
        return received
