"""Bodies of requests and responses, as the clients of the Hub and of LibreTranslate send and expect them."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Json

from ...translation.translation_details import Translation


Texts = str | list[str]
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

    q: str | Annotated[list[str], Field(min_length=1)]
    source: Language
    target: Language
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, le=15)] = 0
    glossary: Glossary | Json[Glossary] | None = None
    return_scores: bool = False
    api_key: str | None = Field(default=None, description="Not needed.")

    def options(self, num_beams: int) -> dict[str, Any]:
        """Arguments of `translate()`: those that were given; `num_beams` is the beam size of others."""
        options: dict[str, Any] = {"markup": "html"} if self.format == "html" else {}
        options |= {"return_details": True} if self.return_scores else {}
        options |= {"glossary": self.glossary} if self.glossary else {}
        if self.alternatives:
            count = self.alternatives + 1
            options |= {"return_details": True, "num_return_sequences": count, "num_beams": max(count, num_beams)}
        return options


class LibreTranslation(BaseModel):
    """What clients of LibreTranslate expect: a string for a string, a list for a list."""

    translatedText: Texts  # noqa: N815
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
