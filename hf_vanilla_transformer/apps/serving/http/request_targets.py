"""Targets and methods of requests that routes do not know: absolute addresses, and HEAD."""

import re
from typing import Any
from urllib.parse import unquote


_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class RelativeTargets:
    """ASGI middleware: a request may name its whole address, such as `http://host/translate`, instead of the path.

    HTTP/1.1 demands that servers accept this (RFC 9112, section 3.2.2).
    """

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            origin = _ORIGIN.match(scope.get("raw_path", b""))
            if origin is not None:
                raw_path = scope["raw_path"][origin.end() :] or b"/"
                scope = {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii"))}
        await self._app(scope, receive, send)


class AnswerHead:
    """ASGI middleware: HEAD gets the status and the headers of GET. The server itself leaves out the body."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
