"""Read a model's title, languages, and example sentences from its model card (README.md).

The server and its web page show these facts.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from huggingface_hub import ModelCard
from transformers.utils import cached_file

from ...support.language_codes import language_of


# The example sentence in the code snippet of a card that this package wrote. The sentence is a JSON string. For
# example, the pattern finds "One dog." in `tokenizer("One dog.", return_tensors="pt")`.
_SENTENCE_OF_SNIPPET = re.compile(
    r'\btokenizer\(("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"), return_tensors'
)


class CardFacts(NamedTuple):
    """The facts from a model card that the server and its web page show.

    Args:
        title (`str`): the heading of the card, or the name of the model if there is no heading.
        source_language, target_language (`str`, *optional*): language codes; None unless the card lists exactly two
            languages.
        examples (`tuple[str, ...]`): example sentences to translate. They come from the card's widget or, if it has
            none, from the card's code snippet.
    """

    title: str
    source_language: str | None = None
    target_language: str | None = None
    examples: tuple[str, ...] = ()


def read_card(name: str, **options: Any) -> CardFacts:
    """Read a model's card from a local folder or from the Hub.

    If there is no card, or if it cannot be parsed, the result contains only a title, which is the name of the model.

    Args:
        name (`str`): a folder, or a model name on the Hub.
        options: arguments for the `cached_file` function of transformers, such as `revision` and `token`.
    """
    card = _load_card(name, options)
    if card is None:
        return CardFacts(title=_last_part(name))
    heading = _find_heading(card.text)
    title = _last_part(name) if heading is None else heading
    metadata = card.data.to_dict()
    source_language, target_language = _read_languages(metadata)
    examples = _read_examples(metadata, card.text)
    return CardFacts(title, source_language, target_language, examples)


def _last_part(name: str) -> str:
    """Return the last part of a folder's path or of a name on the Hub, such as "model" for "user/model/"."""
    _, _, last_part = name.rstrip("/").rpartition("/")
    if not last_part:
        # The name is "/".
        return name
    return last_part


def _find_heading(text: str) -> str | None:
    """Return the first heading of a card, or None if it has none."""
    heading = re.search(r"^# (?P<title>.+)$", text, flags=re.MULTILINE)
    if heading is None:
        return None
    return heading["title"].strip()


def _load_card(name: str, options: Mapping[str, Any]) -> ModelCard | None:
    """Load a model's card; None if there is no card, or if it cannot be parsed. See [`read_card`] for the arguments."""
    # With this argument, the result is None if there is no card. Otherwise, an error would be raised.
    path = cached_file(name, "README.md", _raise_exceptions_for_missing_entries=False, **options)
    if path is None:
        return None
    try:
        return ModelCard.load(path, ignore_metadata_errors=True)
    except Exception:  # huggingface_hub raises many exception types.
        return None


def _read_languages(metadata: Mapping[str, object]) -> tuple[str | None, str | None]:
    """Return the codes of the source and the target language from a card's metadata.

    Both are None unless the card lists exactly two languages. Entries that are not languages, such as "code", are
    ignored.
    """
    languages = metadata.get("language")
    if not isinstance(languages, list):
        return None, None
    codes = [language for language in languages if language_of(str(language))]
    if len(codes) != 2:
        return None, None
    return codes[0], codes[1]


def _read_examples(metadata: Mapping[str, object], text: str) -> tuple[str, ...]:
    """Return the example texts of the card's widget or, if there are none, the sentences in its code snippet."""
    widget = metadata.get("widget")
    examples: list[str] = []
    if isinstance(widget, list):
        for entry in widget:
            if isinstance(entry, dict) and isinstance(entry.get("text"), str):
                examples.append(entry["text"])
    if not examples:
        # The sentences of the snippet are JSON strings.
        examples = [json.loads(sentence) for sentence in _SENTENCE_OF_SNIPPET.findall(text)]
    return tuple(examples)
