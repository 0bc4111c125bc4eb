"""The routes of the server, as the clients of the Hub, of LibreTranslate and of Prometheus call them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from babel import Locale, UnknownLocaleError
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST

from ....support.version import __version__
from ....translation.translation_details import Translation
from ..errors import BusyError
from ..prometheus_metrics import CountRequests
from ..service import Service
from .error_responses import ERRORS, add_error_handlers
from .header_and_body_limits import RequestLimits
from .request_bodies import FORM, MULTIPART, read_libre_request
from .request_targets import AnswerHead, RelativeTargets
from .schemas import (
    DetectedLanguage,
    Health,
    HubRequest,
    HubTranslation,
    LibreLanguage,
    LibreRequest,
    LibreTranslation,
    as_list,
    finite_score,
)


# What nginx writes into its log for a client that is gone.
_CLIENT_CLOSED_REQUEST = 499
_LIBRE_TRANSLATE = ("/translate", "/languages")


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
    app.add_middleware(_CORS)
    app.add_middleware(CountRequests, metrics=service.metrics)
    app.add_middleware(AnswerHead)
    app.add_middleware(RelativeTargets)
    add_error_handlers(app)
    _add_hub(app, service)
    _add_libre_translate(app, service)
    _add_monitoring(app, service)
    return app


class _CORS:
    """ASGI middleware: pages of any origin may translate as with LibreTranslate, and read nothing else."""

    def __init__(self, app: Any):
        options: Any = {"allow_origins": ["*"], "allow_methods": ["*"], "allow_headers": ["*"]}
        self._app, self._shared = app, CORSMiddleware(app, **options, expose_headers=["Retry-After"])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_shared = scope["type"] == "http" and scope["path"] in _LIBRE_TRANSLATE
        await (self._shared if is_shared else self._app)(scope, receive, send)


def _add_hub(app: FastAPI, service: Service) -> None:
    @app.post("/", responses=ERRORS, response_model_exclude_none=True)
    async def translate(request: Request, body: HubRequest) -> list[HubTranslation]:
        """Translate, as `huggingface_hub.InferenceClient(model=URL).translation(text)` asks for it."""
        options = body.options()
        if body.parameters is not None:
            service.check_languages(body.parameters.src_lang, body.parameters.tgt_lang)
            options |= service.target_options(body.parameters.tgt_lang)
        found = await _answer(service, request, as_list(body.inputs), options)
        return [
            HubTranslation(translation_text=each.text, score=finite_score(each), flags=sorted(each.flags) or None)
            for each in found
        ]


def _add_libre_translate(app: FastAPI, service: Service) -> None:
    schema = {"schema": LibreRequest.model_json_schema()}
    content = {"required": True, "content": {"application/json": schema, FORM: schema, MULTIPART: schema}}

    @app.post(
        _LIBRE_TRANSLATE[0],
        responses=ERRORS,
        openapi_extra={"requestBody": content},
        response_model_exclude_none=True,
    )
    async def translate(request: Request) -> LibreTranslation:
        """Translate, as clients of LibreTranslate ask for it."""
        body = await read_libre_request(request)
        service.check_languages(body.source, body.target)
        options = {**body.options(service.num_beams), **service.target_options(body.target)}
        found = await _answer(service, request, as_list(body.q), options)
        answer: dict[str, list[Any]] = {"translatedText": [each.text for each in found]}
        if body.source == "auto" and service.source_language is not None:
            answer["detectedLanguage"] = [DetectedLanguage(language=service.source_language)] * len(found)
        if body.alternatives:
            answer["alternatives"] = [[other.text for other in each.alternatives] for each in found]
        if body.return_scores:
            answer["score"] = [finite_score(each) for each in found]
        if any(each.flags for each in found):
            answer["flags"] = [sorted(each.flags) for each in found]
        one = isinstance(body.q, str)
        return LibreTranslation(**{name: values[0] if one else values for name, values in answer.items()})

    @app.get(_LIBRE_TRANSLATE[1])
    async def languages() -> list[LibreLanguage]:
        """The source language with those that it is translated into, if the model or its card states them."""
        return [
            LibreLanguage(code=code, name=_english_name(code), targets=targets)
            for code, targets in service.languages().items()
        ]


def _english_name(code: str) -> str:
    """The English name of a language; its code, if it is unknown."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def _add_monitoring(app: FastAPI, service: Service) -> None:
    engine = type(service.model).__name__

    @app.get("/health", responses={503: {"model": Health, "description": "The last translation failed or hangs."}})
    async def health(response: Response) -> Health:
        """Whether the server translates."""
        response.status_code = 200 if service.health == "ok" else 503
        return Health(status=service.health, model=service.card.title, engine=engine)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _answer(service: Service, request: Request, texts: list[str], options: dict[str, Any]) -> list[Translation]:
    """Translate, unless the client disconnects or it takes too long.

    Raises:
        RequestError: what `Service.translate` raises, and BusyError if it takes too long.
        HTTPException: 499 if nobody waits for the answer.
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
        raise BusyError(f"the translation took more than {seconds} seconds; retry, or send shorter texts.", 5)
    finally:
        work.cancel()
        gone.cancel()


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
