"""Limits of headers and bodies: bytes, and seconds to arrive."""

import socket
import time
from importlib.util import find_spec

import pytest


pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client", "babel")),
    reason="the extra serve is not installed",
)


def test_request_limits_slow_body_and_headers(exchange):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    assert exchange(head, b"{").startswith(b"HTTP/1.1 408 ")
    answer = exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n", b"X-Slow: 1\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    # Also on a connection that had a request before.
    answer = exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /health HT", pause=0.3)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


@pytest.mark.parametrize(("request_line", "status"), [(b"GET /health", 200), (b"POST /x", 404), (b"PUT /", 405)])
def test_protocol_slow_body_that_no_route_reads(address, request_line, status):
    """A byte at a time, which would keep a connection of uvicorn's open."""
    head = request_line + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)
        connection.settimeout(0.1)
        started, is_open = time.monotonic(), True
        while is_open and time.monotonic() < started + 20:
            try:
                connection.sendall(b"x")
                is_open = bool(connection.recv(65536))
            except TimeoutError:
                pass
            except ConnectionError:
                is_open = False
        assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
        b"\xff\xfe\r\n\r\n",
    ],
)
def test_protocol_invalid_headers(exchange, head):
    assert exchange(head).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("headers", [b"X: " + b"x" * 20_000 + b"\r\n", b"X: 1\r\n" * 10_000])
def test_request_limits_long_headers(exchange, headers):
    answer = exchange(b"GET /health HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_request_limits_wrong_content_length(exchange):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    assert exchange(head, b"x" * 20_000).startswith(b"HTTP/1.1 413 ")


def test_listen_sends_answers_at_once():
    """Not after the acknowledgment of its head, for which clients that keep a connection take 40 ms."""
    from hf_vanilla_transformer.apps.serving.http.uvicorn_server import listen

    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
