"""Make all routes accept absolute URLs and HEAD requests, with two ASGI middleware classes."""

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send


_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class RelativeTargets:
    """ASGI middleware that accepts requests for an absolute URL, such as `http://host/translate`, instead of a path.

    Clients send such requests to proxies. HTTP/1.1 requires that servers accept them (RFC 9112, section 3.2.2).
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, with its path instead of its absolute URL."""
        relative_scope = scope
        if scope["type"] == "http":
            origin = _ORIGIN.match(scope.get("raw_path", b""))
            if origin is not None:
                raw_path = scope["raw_path"][origin.end() :] or b"/"
                relative_scope = {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii"))}
        await self._app(relative_scope, receive, send)


class AnswerHead:
    """ASGI middleware that answers HEAD requests with the status and headers of the corresponding GET request.

    uvicorn leaves out the body of the response.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, with the method HEAD replaced by GET."""
        get_scope = scope
        if scope["type"] == "http" and scope["method"] == "HEAD":
            get_scope = {**scope, "method": "GET"}
        await self._app(get_scope, receive, send)
