"""Bodies of requests and responses, as the clients of the Hub and of LibreTranslate send and expect them."""

import json
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, Json, model_validator
from pydantic_core import PydanticCustomError

from ....translation.translation_details import Translation


# Characters of a wrong value that an error repeats.
_SHOWN = 50


def _check_texts(value: object) -> object:
    """Return a value that is a text or a list of texts; others raise an error that names the first wrong one."""
    items = value if isinstance(value, list) else [value]
    for number, item in enumerate(items):
        if not isinstance(item, str):
            shown = json.dumps(item)[:_SHOWN]
            name = f"item {number} of the list, {shown}," if isinstance(value, list) else shown
            fault = {"fault": f"{name} is no text; give a text, or a list of texts"}
            raise PydanticCustomError("texts", "{fault}", fault)
    return value


def _check_is_not_empty(value: object) -> object:
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
    """Settings of the search, see docs/decoding.md, and terms, see docs/translate.md."""

    num_beams: Annotated[int, Field(ge=1, le=16)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=2048)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    glossary: Glossary | None = None
    return_scores: bool = False

    def options(self) -> dict[str, Any]:
        """Arguments of `translate()`: those that were given."""
        excluded = {"return_scores"} if self.glossary else {"return_scores", "glossary"}
        options = self.model_dump(exclude_none=True, exclude=excluded)
        return {**options, "return_details": True} if self.return_scores else options


class HubParameters(BaseModel, extra="forbid"):
    """Parameters of a translation."""

    src_lang: Language | None = None
    tgt_lang: Language | None = None
    generate_parameters: GenerateParameters | None = None


class HubRequest(BaseModel):
    """What `huggingface_hub.InferenceClient.translation` sends."""

    inputs: Texts
    parameters: HubParameters | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of `translate()`: those that were given."""
        given = self.parameters.generate_parameters if self.parameters else None
        return given.options() if given else {}


class HubTranslation(BaseModel):
    """One of the list that `huggingface_hub.InferenceClient.translation` expects."""

    translation_text: str
    score: float | None = None
    flags: list[str] | None = _FLAGS


class LibreRequest(BaseModel):
    """What clients of LibreTranslate send, as a form or as JSON."""

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
    def _leave_out_empty_fields(cls, fields: Any) -> Any:
        """Take the defaults of optional fields that are null or empty, as the forms of clients send them."""
        if not isinstance(fields, dict):
            return fields
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in fields.items() if name not in optional or value not in (None, "")}

    def options(self, num_beams: int) -> dict[str, Any]:
        """Arguments of `translate()`, or of `translate_documents()` with a `format`: those that were given.

        `num_beams` is the beam size of other requests.
        """
        options: dict[str, Any] = {"format": "html"} if self.format == "html" else {}
        options |= {"return_details": True} if self.return_scores else {}
        options |= {"glossary": self.glossary} if self.glossary else {}
        if self.alternatives:
            count = self.alternatives + 1
            options |= {"return_details": True, "num_return_sequences": count, "num_beams": max(count, num_beams)}
        return options


class DetectedLanguage(BaseModel):
    """The language of a text whose request names none; the model has only one."""

    confidence: float = Field(default=100.0, description="In percent; nothing is detected.")
    language: str


class LibreTranslation(BaseModel):
    """What clients of LibreTranslate expect: a string for a string, a list for a list."""

    translatedText: Texts  # noqa: N815
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    score: float | list[float | None] | None = None
    flags: list[str] | list[list[str]] | None = _FLAGS


class LibreLanguage(BaseModel):
    """A language that the model's card names, and the one that it is translated to."""

    code: str
    name: str
    targets: list[str]


class Health(BaseModel):
    """Whether the server translates."""

    status: Literal["ok", "failing", "hanging"]
    model: str
    engine: str


class Error(BaseModel):
    """What was wrong with a request, in one sentence."""

    error: str


def finite_score(found: Translation) -> float | None:
    """The score of a translation; None without scores, and for one that the search did not find."""
    return found.score if found.log_probs and math.isfinite(found.score) else None


def as_list(texts: Texts) -> list[str]:
    """A list of texts, also of one."""
    return [texts] if isinstance(texts, str) else texts
