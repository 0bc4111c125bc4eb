"""Bodies of requests: their Content-Type, forms and JSON of LibreTranslate, and a sentence about a wrong value."""

from collections import defaultdict
from typing import Any
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request
from pydantic import ValidationError

from .schemas import LibreRequest


FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


async def read_libre_request(request: Request) -> LibreRequest:
    """The body of a request of LibreTranslate, a form or JSON.

    Raises:
        HTTPException: 415 for another Content-Type, 400 if the body cannot be read, 422 if a value is wrong.
    """
    kind = content_type(request) or "application/json"
    if kind not in (FORM, MULTIPART, "application/json"):
        raise HTTPException(415, f"the Content-Type is {kind!a}; send application/json, {FORM} or {MULTIPART}.")
    # Before other ways of reading it; its limits are those of the middleware.
    body = await request.body()
    try:
        if kind == "application/json":
            return LibreRequest.model_validate_json(body)
        text = body.decode()
        if kind == FORM:
            fields: Any = parse_qsl(text, keep_blank_values=True, errors="strict")
        else:
            fields = (await request.form(max_files=0, max_part_size=len(body))).multi_items()
        given = defaultdict(list)
        for name, value in fields:
            given[name].append(value)
        # `q` is a list if it is given several times.
        return LibreRequest.model_validate({name: each[0] if len(each) == 1 else each for name, each in given.items()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HTTPException(400 if first["type"] == "json_invalid" else 422, error_sentence(first)) from None
    except ValueError as error:
        raise HTTPException(400, f"the form cannot be read ({error}); send UTF-8.") from None


def content_type(request: Request) -> str:
    """The Content-Type without parameters, at most 100 characters; empty if it is not given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()[:100]


def error_sentence(error: Any) -> str:
    """A sentence about one of the errors of a `ValidationError`."""
    # A name of a field may be anything, such as a lone surrogate.
    place = ascii(".".join(map(str, error["loc"])))[1:-1][:200]
    return f"{place}: {error['msg']}." if place else f"{error['msg']}."
