"""What the model's card says that the server and the page show: languages and examples."""

import json
import re
from typing import Any, NamedTuple

from huggingface_hub import ModelCard
from transformers.utils import cached_file

from ...support.language_codes import language_of


# The sentence of the snippet in a card of ours.
_SNIPPET = re.compile(r'\btokenizer\(("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"), return_tensors')


class CardFacts(NamedTuple):
    """Facts of a card: its heading, or the name of the model; and sentences of its widget, or else of its snippet.

    The languages are codes, and None if the card does not list two of them.
    """

    title: str
    source_language: str | None = None
    target_language: str | None = None
    examples: tuple[str, ...] = ()


def read_card(name: str, **options: Any) -> CardFacts:
    """Read the README.md of a model; without one, or if its metadata is damaged, only the title is known."""
    title = name.rstrip("/").rpartition("/")[2] or name
    path = cached_file(name, "README.md", _raise_exceptions_for_missing_entries=False, **options)
    if path is None:
        return CardFacts(title)
    try:
        card = ModelCard.load(path, ignore_metadata_errors=True)
    except Exception:  # huggingface_hub raises many kinds.
        return CardFacts(title)
    metadata = card.data.to_dict()
    heading = re.search(r"^# (.+)$", card.text, flags=re.MULTILINE)
    return CardFacts(heading[1].strip() if heading else title, *_languages(metadata), _examples(metadata, card.text))


def _languages(metadata: dict[str, Any]) -> tuple[str | None, str | None]:
    given = metadata.get("language")
    codes = [code for code in given if language_of(str(code))] if isinstance(given, list) else []
    return (codes[0], codes[1]) if len(codes) == 2 else (None, None)


def _examples(metadata: dict[str, Any], text: str) -> tuple[str, ...]:
    widget = metadata.get("widget")
    texts = [each.get("text") for each in widget if isinstance(each, dict)] if isinstance(widget, list) else []
    return tuple(text for text in texts if isinstance(text, str)) or tuple(map(json.loads, _SNIPPET.findall(text)))
