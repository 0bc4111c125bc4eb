"""Make all routes accept absolute URLs and HEAD requests, with two ASGI middleware classes."""

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send


# The part of an absolute URL before its path, such as `http://host:8000`.
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class RelativeTargets:
    """ASGI middleware that accepts requests whose target is an absolute URL, such as `http://host/translate`.

    It replaces the target by the path of the URL.

    Clients send such requests to proxies. HTTP/1.1 requires that servers accept them (RFC 9112, section 3.2.2).
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, with its path instead of its absolute URL."""
        relative_scope = scope
        if scope["type"] == "http":
            relative_scope = _remove_origin(scope)
        await self._app(relative_scope, receive, send)


def _remove_origin(scope: Scope) -> Scope:
    """Return the scope of a request with its path as the target, if the target is an absolute URL.

    A changed scope is a copy, because the scope belongs to the server.
    """
    # The target of the request, as the client has sent it. Servers other than uvicorn may leave it out.
    target: bytes = scope.get("raw_path", b"")
    origin = _ORIGIN.match(target)
    if origin is None:
        return scope
    raw_path = target[origin.end() :]
    if not raw_path:
        raw_path = b"/"
    # `raw_path` is percent-encoded, and `path` is not.
    return {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii"))}


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
