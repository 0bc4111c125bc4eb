"""Limit the size of request headers and bodies, and the time in which they must arrive.

uvicorn and FastAPI do not have these limits themselves.
"""

import asyncio
from collections.abc import Iterable
from typing import ClassVar, cast

import h11
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


MOST_HEADER_BYTES = 16_384
# The server closes the connection after these errors; it would otherwise read the rest of the body as a new request.
_CLOSE_CONNECTION = {"Connection": "close"}
_TIMEOUT_RESPONSE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error":"the headers of the request did not arrive in time."}'
)
# Error messages quote at most this many characters of a Content-Encoding.
_MOST_CHARACTERS_OF_ENCODING = 100


def protocol_with_time_limit(seconds: float) -> type[H11Protocol]:
    """Return a protocol class for uvicorn that closes the connections of slow clients.

    The headers of a request must arrive within `seconds`, and its body within one more second. If a route reads the
    body, [`RequestLimits`] applies the shorter limit of `seconds`. The additional second allows it to answer with
    status 408 before the connection is closed.
    """

    class ProtocolWithTimeLimit(_TimeLimitedProtocol):
        """A protocol that enforces the time limits of `protocol_with_time_limit`.

        The limits are an attribute of the class, because uvicorn creates the protocols, and passes no such argument.
        """

        seconds_in_state: ClassVar = {h11.IDLE: seconds, h11.SEND_BODY: seconds + 1}

    return ProtocolWithTimeLimit


class _TimeLimitedProtocol(H11Protocol):
    """The protocol of one connection, with a timer for the headers or the body that the client is sending.

    Attributes:
        seconds_in_state: the time limit in each of the client's states, as h11 tracks them. Before a request and in its
            headers, the state is `h11.IDLE`. States without a limit are those in which the client sends nothing.
    """

    seconds_in_state: ClassVar[dict[type, float]]
    _timer: asyncio.TimerHandle | None = None
    # The client's state, and uvicorn's object for the current request, when `_update_timer` was last called.
    _timed_state: type | None = None
    _timed_request: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer for the headers of the first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._update_timer(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Restart the timer if the received data has moved the client to a new state, such as sending a body."""
        # This passes the data to h11, which updates `self.conn.their_state`, the client's state.
        super().data_received(data)
        if self.transport.is_closing():
            self._update_timer(None)
        else:
            self._update_timer(self.conn.their_state)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer when the connection has ended."""
        self._update_timer(None)
        super().connection_lost(exc)

    def _update_timer(self, state: type | None) -> None:
        """Start the timer for a state of the client, or stop it if the state has no time limit.

        When the timer expires, it closes the connection. This method is called whenever the client has connected, sent
        data or disconnected. If neither the state nor the request has changed since the last call, a running timer
        continues, so that a client cannot extend its time by sending single bytes.

        Args:
            state (`type`, *optional*): a state of h11, such as `h11.IDLE`; None if the connection has ended.
        """
        is_same_state = state is self._timed_state
        # `self.cycle` is uvicorn's object for the current request. Each request has a new one.
        is_same_request = self.cycle is self._timed_request
        if is_same_state and is_same_request:
            return
        # The next call compares its state and its request with these.
        self._timed_state = state
        self._timed_request = self.cycle

        self._stop_timer()
        if state in self.seconds_in_state:
            seconds = self.seconds_in_state[state]
            self._timer = self.loop.call_later(seconds, self._close_slow_connection)

    def _stop_timer(self) -> None:
        """Stop the timer if it is running."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_slow_connection(self) -> None:
        """Close the connection when the timer expires. If headers were expected, send status 408 first."""
        if self._timed_state is h11.IDLE:
            self.transport.write(_TIMEOUT_RESPONSE)
        self.transport.close()


class RequestLimits:
    """ASGI middleware that rejects requests whose headers or body exceed a limit.

    It answers with one of these statuses:

    - 431 if the headers are too long
    - 413 if the body is too long
    - 408 if the body arrives too slowly
    - 415 if the body is compressed

    Args:
        app (`ASGIApp`): the app that handles all other requests.
        most_bytes (`int`): the maximum length of a body in bytes.
        seconds (`float`): the time in which a body must arrive.
    """

    def __init__(self, app: ASGIApp, most_bytes: int, seconds: float):
        self._app = app
        self._most_bytes = most_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with an error if its headers exceed a limit. Otherwise, pass it on with a limited body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # ASGI has the headers as pairs of bytes, with the names in lower case.
        error_response = _check_headers(scope["headers"])
        if error_response is not None:
            await error_response(scope, receive, send)
            return
        limited_body = _LimitedBody(receive, self._most_bytes, self._seconds)
        await self._app(scope, limited_body.receive, send)


class _LimitedBody:
    """Receives the messages of one request, and raises HTTPException if its body is too long or too slow.

    The time for the body starts when the object is created.

    Args:
        receive (`Receive`): receives the next message.
        most_bytes (`int`): the maximum length of the body in bytes.
        seconds (`float`): the time in which the body must arrive.
    """

    def __init__(self, receive: Receive, most_bytes: int, seconds: float):
        self._receive = receive
        self._most_bytes = most_bytes
        self._seconds = seconds
        # The time of the event loop's clock at which the whole body must have arrived.
        self._deadline = asyncio.get_running_loop().time() + seconds
        # The length of the part of the body that has arrived, and whether this is the whole body.
        self._received_bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        """Receive the next message, and check how much of the body has arrived and how long it has taken."""
        if self._is_complete:
            # The message after the body reports that the client has disconnected. It may arrive at any time.
            return await self._receive()
        message = await self._receive_before_deadline()
        # A message "http.request" contains a part of the body, and `more_body` is True if other parts follow. A message
        # "http.disconnect" has neither of these keys, so it also completes the body.
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > self._most_bytes:
            reason = f"the body has more than {self._most_bytes:,} bytes; send fewer or shorter texts."
            raise HTTPException(413, reason, headers=_CLOSE_CONNECTION)
        self._is_complete = not message.get("more_body", False)
        return message

    async def _receive_before_deadline(self) -> Message:
        """Receive the next message. Raise HTTPException with status 408 if it does not arrive in time."""
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            reason = f"the body did not arrive within {self._seconds:g} seconds; send it faster."
            raise HTTPException(408, reason, headers=_CLOSE_CONNECTION) from None


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> JSONResponse | None:
    """Return an error response if the headers are too long or announce a compressed body, and otherwise None."""
    header_bytes = sum(len(name) + len(value) for name, value in headers)
    if header_bytes > MOST_HEADER_BYTES:
        reason = f"the headers have more than {MOST_HEADER_BYTES:,} bytes; send fewer."
        return JSONResponse({"error": reason}, 431, headers=_CLOSE_CONNECTION)
    # The encoding is "" if there is no such header.
    encoding = _content_encoding(headers)
    if encoding not in ("", "identity"):
        # Decompression could make the body much longer than its limit.
        reason = f"the body has the Content-Encoding {encoding!a}; send it without a compression."
        return JSONResponse({"error": reason}, 415, headers={**_CLOSE_CONNECTION, "Accept-Encoding": "identity"})
    return None


def _content_encoding(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the Content-Encoding of a request in lower case, such as "gzip", or "" if there is no such header."""
    encodings = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    return ", ".join(encodings).strip().lower()[:_MOST_CHARACTERS_OF_ENCODING]
