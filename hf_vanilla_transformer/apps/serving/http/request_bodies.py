"""Bodies of requests: their Content-Type, forms and JSON of LibreTranslate, and a sentence about a wrong value."""

import codecs
from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request
from pydantic import ValidationError
from pydantic_core import from_json

from .schemas import LibreRequest


FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_JSON = "application/json"


async def read_libre_request(request: Request) -> LibreRequest:
    """Read a request of LibreTranslate: its fields are in a form, in JSON, or in the query of its address.

    The body has the last word where it and the query have a field.

    Raises:
        HTTPException: 415 for another Content-Type, 400 if the body cannot be read, 422 if a value is wrong.
    """
    kind = content_type(request) or _JSON
    if kind not in (FORM, MULTIPART, _JSON):
        raise HTTPException(415, f"the Content-Type is {kind!a}; send {_JSON}, {FORM} or {MULTIPART}.")
    # Before other ways of reading it; its limits are those of the middleware.
    body = await request.body()
    try:
        fields = _parse_form(request.scope["query_string"].decode())
    except ValueError:
        raise HTTPException(400, "the query of the address cannot be read; send UTF-8.") from None
    if kind == _JSON:
        fields.update(_parse_json(body))
    else:
        try:
            text = body.decode()
            if kind == FORM:
                fields.update(_parse_form(text))
            else:
                form = await request.form(max_files=0, max_part_size=len(body))
                fields.update(_collect(form.multi_items()))
        except ValueError as error:
            raise HTTPException(400, f"the form cannot be read ({error}); send UTF-8.") from None
    try:
        return LibreRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HTTPException(422, error_sentence(first)) from None


def _parse_json(body: bytes) -> dict[str, Any]:
    """Read an object of JSON, which may have a byte-order mark; without a body it has no fields."""
    text = body.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        return {}
    try:
        fields = from_json(text)
    except ValueError as error:
        raise HTTPException(400, f"Invalid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise HTTPException(422, "the body is JSON of another kind; send an object, {...}.")
    return fields


def _parse_form(text: str) -> dict[str, Any]:
    """Read the fields of a form or a query; ValueError if they are not UTF-8."""
    return _collect(parse_qsl(text, keep_blank_values=True, errors="strict"))


def _collect(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Collect fields by name; one that is given several times, such as `q`, has a list of its values."""
    values_by_name = defaultdict(list)
    for name, value in fields:
        values_by_name[name].append(value)
    collected: dict[str, Any] = {}
    for name, values in values_by_name.items():
        collected[name] = values[0] if len(values) == 1 else values
    return collected


def content_type(request: Request) -> str:
    """The Content-Type without parameters, at most 100 characters; empty if it is not given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]


def error_sentence(error: Any) -> str:
    """A sentence about one of the errors of a `ValidationError`."""
    # A name of a field may be anything, such as a lone surrogate.
    place = ascii(".".join(map(str, error["loc"])))[1:-1][:200]
    return f"{place}: {error['msg']}." if place else f"{error['msg']}."
