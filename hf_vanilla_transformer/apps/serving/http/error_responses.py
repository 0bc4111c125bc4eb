"""Convert exceptions to JSON error responses, and describe their HTTP statuses in the OpenAPI schema."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..errors import BusyError, OtherLanguageError, RequestError, TooMuchError, UntranslatableError
from .request_bodies import content_type, error_sentence
from .schemas import Error


# The error statuses of the translation routes, as the OpenAPI schema describes them.
ERRORS: dict[int | str, dict[str, object]] = {
    400: {
        "model": Error,
        "description": "The body is not JSON or not UTF-8, or it names other languages than the model's.",
    },
    408: {"model": Error, "description": "The body arrives too slowly."},
    413: {
        "model": Error,
        "description": "The body or a text is too long, or the translation would take too much work.",
    },
    415: {"model": Error, "description": "The server does not accept this Content-Type."},
    422: {"model": Error, "description": "A value is missing or not allowed."},
    503: {
        "model": Error,
        "description": "The server has too many requests, or was too slow; see the Retry-After header.",
    },
}
_STATUS_BY_ERROR = {TooMuchError: 413, BusyError: 503, UntranslatableError: 422, OtherLanguageError: 400}


def add_error_handlers(app: FastAPI) -> None:
    """Register error handlers, so that the app answers every exception with `{"error": SENTENCE}`."""
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestError, _answer_request_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(Exception, _answer_failure)


async def _answer_request_error(request: Request, error: Exception) -> Response:
    """Answer a RequestError of the service with the status of its class.

    If the client should try again later, the response has the header `Retry-After`.
    """
    assert isinstance(error, RequestError)
    headers: dict[str, str] = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.retry_seconds)
    return JSONResponse({"error": str(error)}, _STATUS_BY_ERROR[type(error)], headers=headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an HTTPException from FastAPI, Starlette, or this package with the exception's status."""
    assert isinstance(error, HTTPException)
    reason = str(error.detail)
    if error.status_code == 400 and error.__cause__ is not None:
        # FastAPI could not parse the body. Its message does not say why, but the error has the reason as its cause.
        reason = f"the body is not JSON in UTF-8 ({error.__cause__})."
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def _answer_invalid_request(request: Request, error: Exception) -> Response:
    """Answer a request whose body does not match the schema. The response names only the first fault."""
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):
        # FastAPI parses a body only if its Content-Type is JSON. It passes on any other body as bytes.
        reason = f"the Content-Type is {content_type(request)!a}; send application/json."
        return JSONResponse({"error": reason}, 415)
    first_fault = error.errors()[0]
    # The status is 400 if the body is not valid JSON, and 422 if a value in it is wrong.
    status = 400 if first_fault["type"] == "json_invalid" else 422
    return JSONResponse({"error": error_sentence(first_fault)}, status)


async def _answer_failure(request: Request, error: Exception) -> Response:
    """Answer any other exception with status 500.

    The response does not contain the exception's message, because the message may reveal secrets such as paths. It is
    only logged.
    """
    return JSONResponse({"error": "the server failed to translate; its log has the reason."}, 500)
