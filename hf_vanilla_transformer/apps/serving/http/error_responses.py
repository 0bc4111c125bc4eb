"""Errors as responses: their statuses in the OpenAPI description, and a sentence in JSON for each kind of exception."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..errors import BusyError, OtherLanguageError, RequestError, TooMuchError, UntranslatableError
from .request_bodies import content_type, error_sentence
from .schemas import Error


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The body is not JSON, or not UTF-8, or names other languages."},
    408: {"model": Error, "description": "The body arrives too slowly."},
    413: {"model": Error, "description": "The body or a text is too long, or the texts take too much work."},
    415: {"model": Error, "description": "The body is of another Content-Type."},
    422: {"model": Error, "description": "A value is missing or not allowed."},
    503: {"model": Error, "description": "The server is full, or too slow; see Retry-After."},
}


_STATUSES = {TooMuchError: 413, BusyError: 503, UntranslatableError: 422, OtherLanguageError: 400}


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception with `{"error": SENTENCE}`."""
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)


async def _on_request_error(request: Request, error: Any) -> Response:
    headers = {"Retry-After": str(error.retry_seconds)} if isinstance(error, BusyError) else None
    return JSONResponse({"error": str(error)}, _STATUSES[type(error)], headers=headers)


async def _on_http_error(request: Request, error: Any) -> Response:
    reason = str(error.detail)
    if error.status_code == 400 and error.__cause__ is not None:  # FastAPI's own sentence does not say what is wrong.
        reason = f"the body is not JSON in UTF-8 ({error.__cause__})."
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def _on_invalid(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    if isinstance(error.body, bytes):  # FastAPI parses only JSON.
        return JSONResponse({"error": f"the Content-Type is {content_type(request)!a}; send application/json."}, 415)
    return JSONResponse({"error": error_sentence(first)}, 400 if first["type"] == "json_invalid" else 422)


async def _on_failure(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed to translate; its log has the reason."}, 500)
