"""HTTP for the test Hub: requests, responses, the Hub's errors, and a handler that can drop the connection."""

import json
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit


if TYPE_CHECKING:
    from tests.hub.server import Hub


@dataclass
class Fault:
    """An error in the next `times` requests of a method whose path has the pattern in it.

    With `status` they are refused; without, the connection is cut after so many bytes of what the client sends (PUT,
    POST) or is sent (GET). `times=math.inf` is always.
    """

    method: str
    pattern: str
    status: int | None = None
    cut_after: int = 0
    times: float = 1


@dataclass(frozen=True)
class Request:
    """A request and the status of its response (0 if the connection was dropped)."""

    method: str
    path: str
    query: dict[str, list[str]]
    token: str | None
    range: str | None
    accept: str
    body: bytes = b""
    status: int = 0

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """Status, body and headers of a response."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class RefusedError(Exception):
    """An error of the Hub, with the headers by which the client recognises it."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str):
        super().__init__(message)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self.answer = Answer(status, {"error": message}, headers)


def part_of(content: bytes, byte_range: str | None, headers: dict[str, str]) -> Answer:
    """The bytes of a `Range` header, or all bytes."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", byte_range or "")
    if match is None:
        return Answer(200, content, headers)
    start, end = int(match[1]), min(int(match[2] or len(content) - 1), len(content) - 1)
    if start >= len(content):
        raise RefusedError(416, "the file is shorter", Content_Range=f"bytes */{len(content)}")
    return Answer(206, content[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(content)}"})


class Handler(BaseHTTPRequestHandler):
    """Reads a request from the socket and writes the response, or drops the connection."""

    protocol_version = "HTTP/1.1"
    hub: "Hub"

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def _handle(self) -> None:
        address = urlsplit(self.path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        byte_range = self.headers.get("Range")
        accept = self.headers.get("Accept", "")
        request = Request(self.command, address.path, parse_qs(address.query), token, byte_range, accept)
        fault = self.hub.fault_of(request)
        length = int(self.headers.get("Content-Length") or 0)
        cuts = fault is not None and fault.status is None
        if fault is not None and cuts and self.command != "GET":
            self.rfile.read(min(length, fault.cut_after))
            self.hub.requests.append(request)
            self._cut()
            return
        request = replace(request, body=self._read_body(length))
        answer = Answer(fault.status, {"error": "refused"}) if fault and fault.status else self.hub.answer(request)
        self.hub.requests.append(replace(request, status=0 if cuts else answer.status))
        content = answer.content()
        self.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault is not None and cuts:
            self.wfile.write(content[: fault.cut_after])
            self._cut()
        elif self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815

    def _read_body(self, length: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(length)
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: object) -> None:
        """Log nothing."""
