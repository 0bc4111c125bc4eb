"""Limits of a request's headers and body that uvicorn and FastAPI lack: bytes, and seconds for slow clients."""

import asyncio
from typing import Any

import h11
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol


MOST_HEADER_BYTES = 16_384
# The rest of the body must not be read as the next request.
_CLOSE = {"Connection": "close"}
_TIMEOUT = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error":"the headers of the request did not arrive in time."}'
)


def protocol_with(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol with a limit of seconds for headers, and for bodies that no route reads.

    A route that reads a body answers 408 before the protocol closes the connection.
    """
    limits = {h11.IDLE: seconds, h11.SEND_BODY: seconds + 1}

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _watched: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch(h11.IDLE)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch(None if self.transport.is_closing() else self.conn.their_state)

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch(None)
            super().connection_lost(exc)

        def _watch(self, state: Any) -> None:
            """Start the timer anew if the client begins to send headers, or a body; stop it if it does neither."""
            if (state, self.cycle) == self._watched:
                return
            if self._timer is not None:
                self._timer.cancel()
            self._watched, limit = (state, self.cycle), limits.get(state)
            self._timer = None if limit is None else self.loop.call_later(limit, self._end)

        def _end(self) -> None:
            if self._watched[0] is h11.IDLE:
                self.transport.write(_TIMEOUT)
            self.transport.close()

    return Protocol


class RequestLimits:
    """ASGI middleware: 431 for headers that are too long, 413 for such a body, and 408 for one that arrives too slowly.

    415 for a body that is compressed.

    A body may have `most_bytes`, and must have arrived after so many seconds.
    """

    def __init__(self, app: Any, most_bytes: int, seconds: float):
        self._app, self._most_bytes, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
            reason = f"the headers have more than {MOST_HEADER_BYTES:,} bytes; send fewer."
            await JSONResponse({"error": reason}, 431, headers=_CLOSE)(scope, receive, send)
        elif (encoding := _content_encoding(scope["headers"])) not in ("", "identity"):
            # A small compressed body may be a large one.
            reason = f"the body has the Content-Encoding {encoding!a}; send it without a compression."
            headers = {**_CLOSE, "Accept-Encoding": "identity"}
            await JSONResponse({"error": reason}, 415, headers=headers)(scope, receive, send)
        else:
            await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + self._seconds
        size, is_complete = 0, False

        async def limited() -> Any:
            nonlocal size, is_complete
            # After the body the next message tells of a disconnection.
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                reason = f"the body did not arrive within {self._seconds:g} seconds; send it faster."
                raise HTTPException(408, reason, headers=_CLOSE) from None
            size += len(message.get("body", b""))
            if size > self._most_bytes:
                reason = f"the body has more than {self._most_bytes:,} bytes; send fewer or shorter texts."
                raise HTTPException(413, reason, headers=_CLOSE)
            is_complete = not message.get("more_body", False)
            return message

        return limited


def _content_encoding(headers: list[tuple[bytes, bytes]]) -> str:
    """How the body of a request is compressed, at most 100 characters; empty if it is not said."""
    encodings = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    return ", ".join(encodings).strip().lower()[:100]
