"""Read LibreTranslate request bodies (JSON or forms), and describe wrong values in one sentence."""

import codecs
from collections import defaultdict
from collections.abc import Iterable
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.datastructures import UploadFile

from .schemas import LibreRequest


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_JSON = "application/json"
# Error messages quote at most this many characters of a client's Content-Type and of a field's name.
_MOST_CHARACTERS_OF_TYPE = 100
_MOST_CHARACTERS_OF_FIELD = 200


async def read_libre_request(request: Request) -> LibreRequest:
    """Read and validate a LibreTranslate request.

    Its fields may be in a form, in JSON, or in the query string of the URL. If a field is in both the body and the
    query string, the body's value is used.

    Raises:
        HTTPException: 415 if the Content-Type is neither JSON nor a form, 400 if the body or the query string cannot be
            read, 422 if a value is wrong.
    """
    body_type = content_type(request) or _JSON
    if body_type not in (FORM, MULTIPART, _JSON):
        raise HTTPException(415, f"the Content-Type is {body_type!a}; send {_JSON}, {FORM} or {MULTIPART}.")
    # The middleware `RequestLimits` limits the size of the body, so the parsers need no limits themselves. The request
    # stores the body, which `_read_form` relies on.
    body = await request.body()
    query_fields = _read_query(request)
    body_fields = await _read_body(request, body, body_type)
    return _validate({**query_fields, **body_fields})


def _read_query(request: Request) -> dict[str, object]:
    """Return the fields of a request's query string. Raise HTTPException with status 400 if it is not in UTF-8."""
    # A query string has the syntax of a URL-encoded form.
    try:
        return _parse_form(request.scope["query_string"].decode())
    except ValueError:
        raise HTTPException(400, "the query of the address cannot be read; send UTF-8.") from None


async def _read_body(request: Request, body: bytes, body_type: str) -> dict[str, object]:
    """Return the fields of a body, which is JSON or a form. The arguments are those of [`_read_form`]."""
    if body_type == _JSON:
        return _parse_json(body)
    return await _read_form(request, body, body_type)


def _validate(fields: dict[str, object]) -> LibreRequest:
    """Return the request with the given fields. Raise HTTPException with status 422 if one of them is wrong."""
    try:
        return LibreRequest.model_validate(fields)
    except ValidationError as error:
        first_fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HTTPException(422, error_sentence(first_fault)) from None


async def _read_form(request: Request, body: bytes, body_type: str) -> dict[str, object]:
    """Return the fields of a form, which is either URL-encoded or multipart form data.

    Args:
        request (`Request`): the request. Its body must have been read, so that the request has stored it.
        body (`bytes`): the body of the request.
        body_type (`str`): the Content-Type of the body: [`FORM`] or [`MULTIPART`].

    Raises:
        HTTPException: 400 if the body is not such a form, is not in UTF-8, or contains a file.
    """
    # A wrong encoding or a malformed part of a form raises a ValueError here. For a file, or a missing boundary,
    # Starlette itself raises an HTTPException with the status 400, which is no ValueError and keeps its own message.
    try:
        # Only a URL-encoded form needs this text. For multipart form data, the call only checks that it is in UTF-8.
        text = body.decode()
        if body_type == FORM:
            return _parse_form(text)
        # Starlette parses multipart form data. It reads the body that the request has stored, so it does not wait for
        # the client again. A field cannot be longer than the body, so this `max_part_size` allows fields of any length.
        form = await request.form(max_files=0, max_part_size=len(body))
        return _collect_fields(form.multi_items())
    except ValueError as error:
        raise HTTPException(400, f"the form cannot be read ({error}); send UTF-8.") from None


def _parse_json(body: bytes) -> dict[str, object]:
    """Return the fields of a body that contains a JSON object.

    A byte-order mark at the start is ignored. An empty body has no fields.

    Raises:
        HTTPException: 400 if the body is not JSON, 422 if it is not an object.
    """
    text = body.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        return {}
    try:
        fields = from_json(text)
    except ValueError as error:
        raise HTTPException(400, f"Invalid JSON: {error}.") from None
    # The text is valid JSON, such as a list or a number, but only an object has fields.
    if not isinstance(fields, dict):
        raise HTTPException(422, "the body is JSON of another kind; send an object, {...}.")
    return fields


def _parse_form(text: str) -> dict[str, object]:
    """Return the fields of a URL-encoded form or a query string. Raise ValueError if they are not in UTF-8."""
    # Without `keep_blank_values`, fields with empty values would be missing. The schema decides about such fields.
    return _collect_fields(parse_qsl(text, keep_blank_values=True, errors="strict"))


def _collect_fields(fields: Iterable[tuple[str, str | UploadFile]]) -> dict[str, object]:
    """Collect pairs of field names and values in a dictionary.

    If a name occurs several times, as `q` may, the value is the list of all its values.
    """
    values_by_name = defaultdict[str, list[str | UploadFile]](list)
    for name, value in fields:
        values_by_name[name].append(value)
    collected: dict[str, object] = {}
    for name, values in values_by_name.items():
        collected[name] = values[0] if len(values) == 1 else values
    return collected


def content_type(request: Request) -> str:
    """Return the Content-Type of a request in lower case and without its parameters, or "" if there is no such header.

    For example, "text/html; charset=utf-8" becomes "text/html". The result is shortened to 100 characters, because
    error messages quote it.
    """
    header = request.headers.get("content-type", "")
    return header.partition(";")[0].strip().lower()[:_MOST_CHARACTERS_OF_TYPE]


def error_sentence(fault: ErrorDetails) -> str:
    """Return a sentence that describes one fault of a `ValidationError`, such as "q: Field required."."""
    # `loc` is the path of the wrong value, such as ("body", "inputs"), which becomes "body.inputs". A field name from a
    # client may contain any characters, even a lone surrogate, which cannot be encoded. `ascii` escapes such
    # characters, and adds quotation marks, which `[1:-1]` removes.
    field = ascii(".".join(map(str, fault["loc"])))[1:-1][:_MOST_CHARACTERS_OF_FIELD]
    if not field:
        return f"{fault['msg']}."
    return f"{field}: {fault['msg']}."
