"""The routes of the server, as the clients of the Hub, of LibreTranslate and of Prometheus call them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from babel import Locale, UnknownLocaleError
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from ...support.version import __version__
from ..service import Service
from .schemas import Error, Health, HubRequest, HubTranslation, LibreLanguage, LibreRequest, LibreTranslation, as_list
from .slow_clients import RequestLimits


logger = logging.getLogger(__name__)

_FORM = "application/x-www-form-urlencoded"
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The body is not JSON, or not UTF-8."},
    408: {"model": Error, "description": "The body arrives too slowly."},
    413: {"model": Error, "description": "The body or a text is too long, or there are too many texts."},
    415: {"model": Error, "description": "The body is of another Content-Type."},
    422: {"model": Error, "description": "A value is missing or not allowed."},
    503: {"model": Error, "description": "The server is full, or too slow; see Retry-After."},
}
# What nginx writes into its log for a client that is gone.
_CLIENT_CLOSED_REQUEST = 499


def build_app(service: Service) -> FastAPI:
    """The ASGI app over a service, which runs from the app's start to its shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # The interactive pages of FastAPI load scripts from elsewhere.
    app = FastAPI(title="hf-vanilla-transformer", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.end_streams = lambda: None
    app.add_middleware(
        RequestLimits, most_bytes=service.settings.max_body_bytes, seconds=service.settings.arrival_seconds
    )
    app.add_middleware(_CountRequests, service=service)
    app.add_exception_handler(StarletteHTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)
    _add_hub(app, service)
    _add_libre_translate(app, service)
    _add_monitoring(app, service)
    return app


def _add_hub(app: FastAPI, service: Service) -> None:
    @app.post("/", responses=_ERRORS)
    async def translate(request: Request, body: HubRequest) -> list[HubTranslation]:
        """Translate, as `huggingface_hub.InferenceClient(model=URL).translation(text)` asks for it."""
        found = await _answer(service, request, as_list(body.inputs), body.options())
        return [HubTranslation(translation_text=text) for text in found]


def _add_libre_translate(app: FastAPI, service: Service) -> None:
    schema = {"schema": LibreRequest.model_json_schema()}
    content = {"required": True, "content": {"application/json": schema, _FORM: schema}}

    @app.post(
        "/translate",
        responses=_ERRORS,
        openapi_extra={"requestBody": content},
        response_model_exclude_none=True,
    )
    async def translate(request: Request) -> LibreTranslation:
        """Translate, as clients of LibreTranslate ask for it."""
        body = await _libre_request(request)
        found = await _answer(service, request, as_list(body.q), body.options(service.num_beams))
        texts = [each.text for each in found] if body.alternatives else found
        others = [[other.text for other in each.alternatives] for each in found] if body.alternatives else None
        if isinstance(body.q, str):
            return LibreTranslation(translatedText=texts[0], alternatives=others and others[0])
        return LibreTranslation(translatedText=texts, alternatives=others)

    @app.get("/languages")
    async def languages() -> list[LibreLanguage]:
        """The source language, if the model's card states its languages."""
        source, target = service.card.source_language, service.card.target_language
        if source is None or target is None:
            return []
        targets: dict[str, list[str]] = {source: [target], target: []}
        return [LibreLanguage(code=code, name=_name_of(code), targets=targets[code]) for code in targets]


def _add_monitoring(app: FastAPI, service: Service) -> None:
    engine = type(service.model).__name__

    @app.get("/health", responses={503: {"model": Health, "description": "The last translation failed."}})
    async def health(response: Response) -> Health:
        """Whether the server translates."""
        response.status_code = 503 if service.is_failing else 200
        return Health(status="failing" if service.is_failing else "ok", model=service.card.title, engine=engine)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _answer(service: Service, request: Request, texts: list[str], options: dict[str, Any]) -> list[Any]:
    """Translate, unless the client disconnects or it takes too long.

    Raises:
        HTTPException: what `Service.translate` raises, 503 if it takes too long, 499 if nobody waits for the answer.
    """
    work = asyncio.ensure_future(service.translate(texts, options))
    gone = asyncio.ensure_future(_disconnection(request))
    seconds = service.settings.request_seconds
    try:
        done, _ = await asyncio.wait({work, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work in done:
            return work.result()
        if gone in done:
            raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client disconnected.")
        reason = f"the translation took more than {seconds} seconds; retry, or send shorter texts."
        raise HTTPException(503, reason, headers={"Retry-After": "5"})
    finally:
        work.cancel()
        gone.cancel()


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _libre_request(request: Request) -> LibreRequest:
    kind = _kind_of(request) or "application/json"
    if kind not in (_FORM, "application/json"):
        raise HTTPException(415, f"the Content-Type is {kind!a}; send application/json or {_FORM}.")
    body = await request.body()
    try:
        if kind == _FORM:
            return LibreRequest.model_validate(_form(body))
        return LibreRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HTTPException(400 if first["type"] == "json_invalid" else 422, _sentence(first)) from None
    except ValueError as error:
        raise HTTPException(400, f"the form cannot be read ({error}); send UTF-8.") from None


def _kind_of(request: Request) -> str:
    """The Content-Type without parameters, at most 100 characters; empty if it is not given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]


def _form(body: bytes) -> dict[str, Any]:
    """The fields of a form; `q` is a list if it is given several times.

    Raises:
        ValueError: if it is not UTF-8.
    """
    fields = parse_qs(body.decode(), keep_blank_values=True, errors="strict")
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _sentence(error: Any) -> str:
    # A name of a field may be anything, such as a lone surrogate.
    place = ascii(".".join(map(str, error["loc"])))[1:-1][:200]
    return f"{place}: {error['msg']}." if place else f"{error['msg']}."


def _name_of(code: str) -> str:
    """The English name of a language; its code, if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


async def _on_http_error(request: Request, error: Any) -> Response:
    reason = str(error.detail)
    if error.status_code == 400 and error.__cause__ is not None:  # FastAPI's own sentence does not say what is wrong.
        reason = f"the body is not JSON in UTF-8 ({error.__cause__})."
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def _on_invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    if isinstance(error.body, bytes):  # FastAPI parses only JSON.
        return JSONResponse({"error": f"the Content-Type is {_kind_of(request)!a}; send application/json."}, 415)
    return JSONResponse({"error": _sentence(first)}, 400 if first["type"] == "json_invalid" else 422)


async def _on_failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed to translate; its log has the reason."}, 500)


class _CountRequests:
    """ASGI middleware: counts each request with its route, status and seconds."""

    def __init__(self, app: Any, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def remember(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, remember)
        finally:
            # The path of an unknown route may be anything.
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.count_request(route, status, time.perf_counter() - started)
