"""Bodies of requests and responses, as the clients of the Hub and of LibreTranslate send and expect them."""

import json
import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, Json, model_validator
from pydantic_core import PydanticCustomError

from ....translation.translation_details import Translation
from ..batcher import TranslateOptions


# Characters of a wrong value that an error repeats.
_QUOTED_CHARACTERS = 50


def _check_texts(value: object) -> object:
    """Return the value of a field if it is a text or a list of texts; otherwise raise an error."""
    texts = value if isinstance(value, list) else [value]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            name = json.dumps(text)[:_QUOTED_CHARACTERS]
            if isinstance(value, list):
                name = f"item {number} of the list, {name},"
            fault = {"fault": f"{name} is no text; give a text, or a list of texts"}
            raise PydanticCustomError("texts", "{fault}", fault)
    return value


def _check_is_not_empty(value: object) -> object:
    """Return the value of a field unless it is an empty list, which is an error."""
    if value == []:
        raise PydanticCustomError("texts", "the list is empty; give a text, or a list with at least one text")
    return value


Texts = Annotated[str | list[str], BeforeValidator(_check_texts)]
SomeTexts = Annotated[
    str | Annotated[list[str], Field(min_length=1)], BeforeValidator(_check_is_not_empty), BeforeValidator(_check_texts)
]
Term = Annotated[str, Field(max_length=200)]
Terms = Annotated[list[Term], Field(max_length=10)]
Language = Annotated[str, Field(max_length=100, description="The model's, or auto.")]
Glossary = Annotated[dict[Term, Term | Terms], Field(max_length=100)]
_FLAGS = Field(default=None, description="What may be wrong, see docs/translate.md; missing where nothing is.")


class GenerateParameters(BaseModel, extra="forbid"):
    """Settings of the search (docs/decoding.md) and terms (docs/translate.md)."""

    num_beams: Annotated[int, Field(ge=1, le=16)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2048)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    glossary: Glossary | None = None
    return_scores: bool = False

    def options(self) -> TranslateOptions:
        """Return the arguments of `translate()` that the request sets."""
        # An empty glossary is as good as none.
        excluded = {"return_scores"} if self.glossary else {"return_scores", "glossary"}
        options = self.model_dump(exclude_none=True, exclude=excluded)
        if self.return_scores:
            options["return_details"] = True
        return options


class HubParameters(BaseModel, extra="forbid"):
    """The languages and the settings of a translation."""

    src_lang: Language | None = None
    tgt_lang: Language | None = None
    generate_parameters: GenerateParameters | None = None


class HubRequest(BaseModel):
    """The request that `huggingface_hub.InferenceClient.translation` sends."""

    inputs: Texts
    parameters: HubParameters | None = None

    def options(self) -> TranslateOptions:
        """Return the arguments of `translate()` that the request sets."""
        if self.parameters is None or self.parameters.generate_parameters is None:
            return {}
        return self.parameters.generate_parameters.options()


class HubTranslation(BaseModel):
    """One translation of the list that `huggingface_hub.InferenceClient.translation` expects."""

    translation_text: str
    score: float | None = None
    flags: list[str] | None = _FLAGS


class LibreRequest(BaseModel):
    """The request that clients of LibreTranslate send, as a form or as JSON."""

    q: SomeTexts
    source: Language
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0
    glossary: Glossary | Json[Glossary] | None = None
    return_scores: bool = False
    api_key: str | None = Field(default=None, description="Not needed.")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty_fields(cls, fields: object) -> object:
        """Remove optional fields that are null or empty, so that they get their defaults; forms contain such fields."""
        if not isinstance(fields, dict):
            return fields
        given_fields: dict[object, object] = {}
        for name, value in fields.items():
            is_optional = name in cls.model_fields and not cls.model_fields[name].is_required()
            if not is_optional or value not in (None, ""):
                given_fields[name] = value
        return given_fields

    def options(self, num_beams: int) -> TranslateOptions:
        """Return the arguments of `translate()`, or of `translate_documents()` with `format`, that the request sets.

        Args:
            num_beams (`int`): the beam size for requests that do not need more beams for their alternatives.
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
    """The source language of the model, for a request with the source language "auto"."""

    confidence: float = Field(default=100.0, description="In percent; nothing is detected.")
    language: str


class LibreTranslation(BaseModel):
    """The response that clients of LibreTranslate expect. It has lists if the request has a list of texts."""

    translatedText: Texts  # noqa: N815
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    score: float | list[float | None] | None = None
    flags: list[str] | list[list[str]] | None = _FLAGS


class LibreLanguage(BaseModel):
    """A language that requests may name, and the languages that it is translated into."""

    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    """The state of the server, and its model."""

    status: Literal["ok", "failing", "hanging"]
    model: str
    engine: str


class Error(BaseModel):
    """The reason why a request failed, in one sentence."""

    error: str


def finite_score(translation: Translation) -> float | None:
    """Return the score of a translation, or None if there is none.

    A translation that was not scored has no log-probabilities, and its score is infinite if the search found nothing.
    JSON has no infinite numbers.
    """
    if translation.log_probs and math.isfinite(translation.score):
        return translation.score
    return None


def as_list(texts: Texts) -> list[str]:
    """Return the texts of a field as a list, even if it is a single text."""
    return [texts] if isinstance(texts, str) else texts
