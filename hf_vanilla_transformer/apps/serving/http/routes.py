"""Build the server's FastAPI app, with routes for clients of the Hugging Face Hub, LibreTranslate, and Prometheus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from babel import Locale, UnknownLocaleError
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from ....support.version import __version__
from ....translation.translation_details import Translation
from ..batcher import TranslateOptions
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


# The status that nginx logs if a client has disconnected. It appears in the metrics, but is never sent to a client.
_CLIENT_CLOSED_REQUEST = 499
# The LibreTranslate routes, which web pages from other origins may call.
_TRANSLATE_PATH = "/translate"
_LANGUAGES_PATH = "/languages"


def build_app(service: Service) -> FastAPI:
    """Build the ASGI app for a service. The service runs from the startup of the app until its shutdown."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # FastAPI's interactive documentation is disabled, because its pages load scripts from other servers.
    app = FastAPI(title="hf-vanilla-transformer", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    # The server calls this function on shutdown. `add_page` replaces it with one that ends the streams of open pages.
    app.state.end_streams = lambda: None
    _add_middleware(app, service)
    add_error_handlers(app)
    _add_hub(app, service)
    _add_libre_translate(app, service)
    _add_monitoring(app, service)
    return app


def _add_middleware(app: FastAPI, service: Service) -> None:
    """Add the middleware classes to the app. A request passes through them from the last to the first."""
    settings = service.settings
    app.add_middleware(RequestLimits, most_bytes=settings.max_body_bytes, seconds=settings.arrival_seconds)
    app.add_middleware(_ShareLibreTranslate)
    # This also counts requests that `RequestLimits` rejects, because it is added later.
    app.add_middleware(CountRequests, metrics=service.metrics)
    app.add_middleware(AnswerHead)
    app.add_middleware(RelativeTargets)


class _ShareLibreTranslate:
    """ASGI middleware that allows web pages from any origin to call the LibreTranslate routes (CORS).

    The other routes do not allow this.
    """

    def __init__(self, app: ASGIApp):
        self._app = app
        self._app_for_all_origins = CORSMiddleware(
            app, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"], expose_headers=["Retry-After"]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the app, through the CORS middleware if it is for a LibreTranslate route."""
        is_shared = scope["type"] == "http" and scope["path"] in (_TRANSLATE_PATH, _LANGUAGES_PATH)
        app = self._app_for_all_origins if is_shared else self._app
        await app(scope, receive, send)


def _add_hub(app: FastAPI, service: Service) -> None:
    """Add the route for clients of the Hugging Face Hub to the app."""

    @app.post("/", responses=ERRORS, response_model_exclude_none=True)
    async def translate(request: Request, body: HubRequest) -> list[HubTranslation]:
        """Translate texts for `huggingface_hub.InferenceClient(model=URL).translation(text)`."""
        options = _read_hub_options(body, service)
        # `inputs` is a text or a list of texts.
        translations = await _translate_for_client(service, request, as_list(body.inputs), options)
        return [_hub_response(translation) for translation in translations]


def _read_hub_options(body: HubRequest, service: Service) -> TranslateOptions:
    """Return the options of a request from a Hub client. Raise OtherLanguageError if it names a wrong language."""
    options = body.options()
    if body.parameters is None:
        return options
    service.check_languages(body.parameters.src_lang, body.parameters.tgt_lang)
    # The second dictionary has `target_lang` if the request chooses one of several target languages.
    return {**options, **service.target_options(body.parameters.tgt_lang)}


def _hub_response(translation: Translation) -> HubTranslation:
    """Return the part of the response for one text."""
    # FastAPI leaves fields that are None out of the response.
    flags = sorted(translation.flags) or None
    return HubTranslation(translation_text=translation.text, score=finite_score(translation), flags=flags)


def _add_libre_translate(app: FastAPI, service: Service) -> None:
    """Add the routes for LibreTranslate clients to the app."""

    @app.post(
        _TRANSLATE_PATH,
        responses=ERRORS,
        # FastAPI cannot derive the description of the body, because the route reads the body itself.
        openapi_extra={"requestBody": _describe_libre_body()},
        response_model_exclude_none=True,
    )
    async def translate(request: Request) -> LibreTranslation:
        """Translate a text or a list of texts, as the `/translate` route of LibreTranslate does."""
        body = await read_libre_request(request)
        options = _read_libre_options(body, service)
        # `q` is a text or a list of texts.
        translations = await _translate_for_client(service, request, as_list(body.q), options)
        return _libre_response(body, translations, service.source_language)

    @app.get(_LANGUAGES_PATH)
    async def languages() -> list[LibreLanguage]:
        """Return the languages that requests may name. The list is empty if the model's languages are unknown."""
        answers: list[LibreLanguage] = []
        for code, targets in service.languages().items():
            answers.append(LibreLanguage(code=code, name=_english_name(code), targets=targets))
        return answers


def _read_libre_options(body: LibreRequest, service: Service) -> TranslateOptions:
    """Return the options of a LibreTranslate request. Raise OtherLanguageError if it names a wrong language."""
    service.check_languages(body.source, body.target)
    options = body.options(service.num_beams)
    # The second dictionary has `target_lang` if the request chooses one of several target languages.
    return {**options, **service.target_options(body.target)}


def _describe_libre_body() -> dict[str, object]:
    """Return the OpenAPI description of the body of a LibreTranslate request, which is JSON or a form."""
    media_type = {"schema": LibreRequest.model_json_schema()}
    return {"required": True, "content": {"application/json": media_type, FORM: media_type, MULTIPART: media_type}}


def _libre_response(
    request: LibreRequest, translations: list[Translation], source_language: str | None
) -> LibreTranslation:
    """Return the response to a LibreTranslate request, with the fields that the request asks for.

    If the request has a list of texts, each field is a list with one item per text. Otherwise, each field is the value
    for the only text.
    """
    fields_of_all_texts = _collect_response_fields(request, translations, source_language)
    has_list_of_texts = isinstance(request.q, list)
    if has_list_of_texts:
        return LibreTranslation.model_validate(fields_of_all_texts)
    fields_of_only_text = {name: values[0] for name, values in fields_of_all_texts.items()}
    return LibreTranslation.model_validate(fields_of_only_text)


def _collect_response_fields(
    request: LibreRequest, translations: list[Translation], source_language: str | None
) -> dict[str, list[object]]:
    """Return the fields that a LibreTranslate request asks for, each as a list with one item per text.

    Optional fields that are missing here are None in the response, and FastAPI leaves them out.
    """
    fields: dict[str, list[object]] = {}
    fields["translatedText"] = [translation.text for translation in translations]
    if request.source == "auto" and source_language is not None:
        # The model has a single source language, so the items of the list may be the same object.
        fields["detectedLanguage"] = [DetectedLanguage(language=source_language)] * len(translations)
    if request.alternatives:
        fields["alternatives"] = [_texts_of_alternatives(translation) for translation in translations]
    if request.return_scores:
        fields["score"] = [finite_score(translation) for translation in translations]
    if any(translation.flags for translation in translations):
        fields["flags"] = [sorted(translation.flags) for translation in translations]
    return fields


def _texts_of_alternatives(translation: Translation) -> list[str]:
    """Return the texts of the other hypotheses for the same source."""
    return [alternative.text for alternative in translation.alternatives]


def _english_name(code: str) -> str:
    """Return the English name of a language, such as "German" for "de", or the code if the name is unknown."""
    # Babel separates the parts of a code by underscores, as in "pt_BR".
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def _add_monitoring(app: FastAPI, service: Service) -> None:
    """Add the routes that report the server's health and metrics to the app."""
    engine = type(service.model).__name__

    @app.get("/health", responses={503: {"model": Health, "description": "The last translation failed or hangs."}})
    async def health(response: Response) -> Health:
        """Report whether the server works. The status is 503 if the last translation failed or if one hangs."""
        response.status_code = 200 if service.health == "ok" else 503
        return Health(status=service.health, model=service.card.title, engine=engine)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return the server's metrics in the Prometheus text format."""
        return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _translate_for_client(
    service: Service, request: Request, texts: list[str], options: TranslateOptions
) -> list[Translation]:
    """Translate the texts of a request, unless the client disconnects or the request times out first.

    In these two cases, the translation is cancelled, as the module docstring of `batcher.py` describes.

    Raises:
        RequestError: for the same reasons as `Service.translate`. In addition, BusyError if the request times out.
        HTTPException: 499 if the client has disconnected.
    """
    translation = asyncio.ensure_future(service.translate(texts, options))
    disconnection = asyncio.ensure_future(_wait_for_disconnection(request))
    seconds = service.settings.request_seconds
    try:
        ended, _ = await asyncio.wait(
            {translation, disconnection}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        # This also runs if this coroutine is cancelled, and has no effect on a task that has ended. The response need
        # not wait until a cancelled task ends.
        translation.cancel()
        disconnection.cancel()

    # If both tasks have ended, the translation takes precedence.
    if translation in ended:
        return translation.result()
    if disconnection in ended:
        raise HTTPException(_CLIENT_CLOSED_REQUEST, "the client disconnected.")
    reason = f"the translation took more than {seconds} seconds; retry, or send shorter texts."
    raise BusyError(reason, retry_seconds=5)


async def _wait_for_disconnection(request: Request) -> None:
    """Wait until the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
