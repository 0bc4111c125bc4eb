"""Define the request and response bodies for clients of the Hugging Face Hub and of LibreTranslate.

LibreTranslate is an open-source translation server, and the server implements its `/translate` and `/languages` routes.
The docstrings of these classes appear in `/openapi.json`.
"""

import json
import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, Json, model_validator
from pydantic_core import PydanticCustomError

from ....translation.translation_details import Translation
from ..batcher import TranslateOptions


# Error messages quote at most this many characters of a wrong value.
_QUOTED_CHARACTERS = 50


def _check_texts(value: object) -> object:
    """Return a field's value if it is a string or a list of strings. Otherwise, raise PydanticCustomError."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _text_error(f"{_quote(value)} is no text; give a text, or a list of texts")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise _text_error(f"item {number} of the list, {_quote(item)}, is no text; give a text, or a list of texts")
    return value


def _quote(value: object) -> str:
    """Return the beginning of a wrong value in JSON, for an error message."""
    return json.dumps(value)[:_QUOTED_CHARACTERS]


def _text_error(message: str) -> PydanticCustomError:
    """Return a validation error whose message may contain braces, for example because it quotes a JSON object."""
    # The second argument is a template. Pydantic replaces `{message}` by the value from the third argument, and keeps
    # the braces in this value as they are.
    return PydanticCustomError("texts", "{message}", {"message": message})


def _check_is_not_empty(value: object) -> object:
    """Return a field's value, or raise PydanticCustomError if the value is an empty list."""
    if value == []:
        raise PydanticCustomError("texts", "the list is empty; give a text, or a list with at least one text")
    return value


# Pydantic applies the validators of an annotation from the last to the first, so `_check_texts` comes before
# `_check_is_not_empty`. `min_length` only describes the list in the OpenAPI schema, because the error message of
# `_check_is_not_empty` is clearer.
Texts = Annotated[str | list[str], BeforeValidator(_check_texts)]
SomeTexts = Annotated[
    str | Annotated[list[str], Field(min_length=1)], BeforeValidator(_check_is_not_empty), BeforeValidator(_check_texts)
]
Term = Annotated[str, Field(max_length=200)]
Terms = Annotated[list[Term], Field(max_length=10)]
Language = Annotated[str, Field(max_length=100, description="A language code of the model, or auto.")]
Glossary = Annotated[dict[Term, Term | Terms], Field(max_length=100)]
_FLAGS = Field(
    default=None,
    description="Possible faults of the translation, explained in docs/translate.md. Missing if there are none.",
)


class GenerateParameters(BaseModel, extra="forbid"):
    """Beam search settings (see docs/decoding.md) and glossary terms (see docs/translate.md)."""

    num_beams: Annotated[int, Field(ge=1, le=16)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2048)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    glossary: Glossary | None = None
    return_scores: bool = False

    def options(self) -> TranslateOptions:
        """Return the arguments of `translate()` that the request sets."""
        # All fields but these two have the names and values of arguments. A field that is not set is None.
        options = self.model_dump(exclude_none=True, exclude={"glossary", "return_scores"})
        if self.glossary:
            options["glossary"] = self.glossary
        if self.return_scores:
            options["return_details"] = True
        return options


class HubParameters(BaseModel, extra="forbid"):
    """The source and target languages, and settings for generating the translation."""

    src_lang: Language | None = None
    tgt_lang: Language | None = None
    generate_parameters: GenerateParameters | None = None


class HubRequest(BaseModel):
    """A request as `huggingface_hub.InferenceClient.translation` sends it."""

    inputs: Texts
    parameters: HubParameters | None = None

    def options(self) -> TranslateOptions:
        """Return the arguments of `translate()` that the request sets."""
        if self.parameters is None or self.parameters.generate_parameters is None:
            return {}
        return self.parameters.generate_parameters.options()


class HubTranslation(BaseModel):
    """The translation of one text. The response is a list of these, as `InferenceClient.translation` expects it."""

    translation_text: str
    score: float | None = None
    flags: list[str] | None = _FLAGS


class LibreRequest(BaseModel):
    """A request as LibreTranslate clients send it, either as a form or as JSON."""

    q: SomeTexts
    source: Language
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0
    glossary: Glossary | Json[Glossary] | None = None
    return_scores: bool = False
    api_key: str | None = Field(default=None, description="Accepted for compatibility, and ignored.")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty_fields(cls, fields: object) -> object:
        """Remove optional fields that are null or empty, so that they get their default values.

        HTML forms send a field even if it is empty.
        """
        if not isinstance(fields, dict):
            # Pydantic will report this error.
            return fields
        optional_names = [name for name, field in cls.model_fields.items() if not field.is_required()]
        fields_to_validate: dict[object, object] = {}
        for name, value in fields.items():
            is_empty = value is None or value == ""
            if is_empty and name in optional_names:
                continue
            fields_to_validate[name] = value
        return fields_to_validate

    def options(self, num_beams: int) -> TranslateOptions:
        """Return the arguments of `translate()` that the request sets.

        For an HTML request, the result contains `format`, and is meant for `translate_documents()`.

        Args:
            num_beams (`int`): the default beam size. It is increased if the request needs more beams for its
                alternatives.
        """
        options: TranslateOptions = {}
        if self.format == "html":
            options["format"] = "html"
        if self.return_scores:
            options["return_details"] = True
        if self.glossary:
            options["glossary"] = self.glossary
        if self.alternatives:
            # The translation itself is one of the sequences, and each sequence needs a beam.
            number_of_sequences = self.alternatives + 1
            options["return_details"] = True
            options["num_return_sequences"] = number_of_sequences
            options["num_beams"] = max(number_of_sequences, num_beams)
        return options


class DetectedLanguage(BaseModel):
    """The model's source language, which is returned if the request's source language is "auto"."""

    confidence: float = Field(default=100.0, description="Always 100 percent, because the language is not detected.")
    language: str


class LibreTranslation(BaseModel):
    """A response as LibreTranslate clients expect it.

    If the request has a list of texts, each field is a list with one item per text.
    """

    translatedText: Texts  # noqa: N815
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    score: float | list[float | None] | None = None
    flags: list[str] | list[list[str]] | None = _FLAGS


class LibreLanguage(BaseModel):
    """A language that requests may name, and the languages that it can be translated into."""

    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    """The state of the server, the title of its model, and the engine that runs the model."""

    status: Literal["ok", "failing", "hanging"]
    model: str
    engine: str


class Error(BaseModel):
    """The body of an error response: one sentence that says why the request failed."""

    error: str


def finite_score(translation: Translation) -> float | None:
    """Return the score of a translation, or None if it has no finite score.

    A translation that was not scored has no log-probabilities. If the search found no translation, the score is
    infinite, which JSON cannot represent.
    """
    if translation.log_probs and math.isfinite(translation.score):
        return translation.score
    return None


def as_list(texts: Texts) -> list[str]:
    """Return a list of texts as it is, and a single text as a list with one item."""
    return [texts] if isinstance(texts, str) else texts
