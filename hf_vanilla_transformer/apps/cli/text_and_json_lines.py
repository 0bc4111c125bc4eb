"""Sentences to translate, and their translations: lines of text or of JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...data.text_lines import check_is_input, iterate_lines, lines_as_they_arrive, one_line
from ...support.user_errors import InputError
from ...translation.translation_details import Translation


_STDIN = "standard input"
_JSON = (".jsonl", ".ndjson", ".json")


class Sentence(NamedTuple):
    """A sentence, or a text of several; `fields` is the JSON object that it came in, if it came in one."""

    text: str
    fields: dict[str, Any] | None = None


# Other fields of an output than the translation.
DETAILS = ("score", "alternatives", "flags")


class JsonFields(NamedTuple):
    """The fields of JSON lines: which one to translate, which one gets the translation, and others that are written."""

    source: str
    target: str
    details: tuple[str, ...] = ()

    def read(self, line: str, place: str) -> Sentence:
        """The sentence of a line; ValueError if it holds no JSON object with text and room for a translation."""
        try:
            fields = json.loads(line)
            if "\\u" in line:
                json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise InputError(f"{place} has the lone surrogate {half}; write the whole character.") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not JSON ({error}); write one JSON object per line.") from error
        if not isinstance(fields, dict) or not isinstance(fields.get(self.source), str):
            given = f"has the fields {', '.join(fields) or 'of none'}" if isinstance(fields, dict) else "is no object"
            raise InputError(
                f'{place} {given}; give objects with text in "{self.source}", or name its field with --source_column.'
            )
        if self.target in fields:
            raise InputError(
                f'{place} already has a field "{self.target}"; name another field for translations with '
                "--target_column."
            )
        for name in self.details:
            if name in fields:
                raise InputError(f'{place} already has a field "{name}", which the output has; rename it.')
        return Sentence(fields[self.source], fields)

    def write(self, sentence: Sentence, translation: Translation) -> str:
        """The line of a translation: the object that its sentence came in, or a new one, with what is known of it."""
        given = {self.source: sentence.text} if sentence.fields is None else sentence.fields
        found: dict[str, Any] = {self.target: translation.text, "score": translation.score}
        if translation.alternatives:
            found["alternatives"] = [{self.target: each.text, "score": each.score} for each in translation.alternatives]
        if translation.flags:
            found["flags"] = sorted(translation.flags)
        return json.dumps({**given, **found}, ensure_ascii=False)


def is_json(path: str | None) -> bool:
    """Whether the name of a file says that it holds JSON lines, compressed or not."""
    return path is not None and Path(path.lower().removesuffix(".gz")).suffix in _JSON


def read_sentences(
    path: str | None, given: Sequence[str], fields: JsonFields | None, size: int
) -> Iterator[list[Sentence]]:
    """Chunks of at most `size` sentences from the arguments, or from a file of lines, or from standard input.

    Without `fields` lines are text. Raises OSError or ValueError, also while reading.
    """
    if given and path:
        raise InputError("sentences were given both as arguments and as a file; give one of the two.")
    if given:
        return iter([list(map(Sentence, given))])
    if path is not None:
        check_is_input(Path(path))
        return _chunks(_parse(iterate_lines(Path(path)), path, fields), size)
    return _chunks_of_stdin(fields, size)


def write_sentences(
    sentences: Sequence[Sentence], translations: Sequence[Translation], fields: JsonFields | None, keeps_breaks: bool
) -> Iterator[str]:
    """The lines of an output: of JSON, or of text, where line breaks become spaces unless they are to be kept."""
    for sentence, translation in zip(sentences, translations, strict=True):
        if fields is not None:
            yield f"{fields.write(sentence, translation)}\n"
        else:
            yield f"{translation.text if keeps_breaks else one_line(translation.text)}\n"


def _parse(lines: Iterable[str], name: str, fields: JsonFields | None, first: int = 1) -> Iterator[Sentence]:
    for number, line in enumerate(lines, start=first):
        yield Sentence(line) if fields is None else fields.read(line, f"{name}, line {number}")


def _chunks(sentences: Iterator[Sentence], size: int) -> Iterator[list[Sentence]]:
    while chunk := list(islice(sentences, size)):
        yield chunk


def _chunks_of_stdin(fields: JsonFields | None, size: int) -> Iterator[list[Sentence]]:
    first = 1
    if sys.stdin is None:
        raise InputError("standard input is closed; give sentences, or --input.")
    for lines in lines_as_they_arrive(sys.stdin.buffer, _STDIN):  # type: ignore[arg-type]
        yield from _chunks(_parse(lines, _STDIN, fields, first), size)
        first += len(lines)
