"""Read sentences to translate, and write their translations, as lines of plain text or JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...data.table_formats import suffix_of
from ...data.text_lines import check_is_input, iterate_lines, lines_as_they_arrive, one_line
from ...support.user_errors import InputError
from ...translation.translation_details import Translation


_STDIN = "standard input"
# A file with one of these suffixes has JSON lines. In contrast to `load_pairs`, which reads .json and .jsonl as tables,
# `translate` also knows .ndjson, and cannot read other tables.
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


class Sentence(NamedTuple):
    """A text to translate, which may have several sentences.

    `fields` is the JSON object that contains the text, or None if the text is not from JSON lines.
    """

    text: str
    fields: dict[str, Any] | None = None


# Fields of JSON output in addition to the translation.
DETAILS = ("score", "alternatives", "flags")


class JsonFields(NamedTuple):
    """The field names in a file of JSON lines, which contains one JSON object per line.

    `source` is the field of the text to translate, and `target` is the field for its translation. `details` are the
    other fields that the output adds.
    """

    source: str
    target: str
    details: tuple[str, ...] = ()

    def read(self, line: str, place: str) -> Sentence:
        """Parse a JSON line into a sentence. Error messages refer to the line as `place`.

        Raises InputError if the line is not a JSON object, has no text to translate, or already has a field that the
        output adds.
        """
        # This may be any JSON value, such as a list or a number.
        fields = _parse_json(line, place)
        if not isinstance(fields, dict) or not isinstance(fields.get(self.source), str):
            raise InputError(
                f'{place} {_describe_fields(fields)}; give objects with text in "{self.source}", or name its field '
                "with --source_column."
            )
        # The output has the fields of the input, and adds the translation and its details.
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
        """Format a translation as a JSON object with the sentence's fields, the translation, and its details."""
        fields = self._copy_fields(sentence)
        fields[self.target] = translation.text
        fields["score"] = translation.score
        if translation.alternatives:
            fields["alternatives"] = self._list_alternatives(translation)
        if translation.flags:
            fields["flags"] = sorted(translation.flags)
        return json.dumps(fields, ensure_ascii=False)

    def _copy_fields(self, sentence: Sentence) -> dict[str, Any]:
        """Return a copy of the sentence's fields, which must not change; only the text if the input is plain text."""
        if sentence.fields is None:
            return {self.source: sentence.text}
        return dict(sentence.fields)

    def _list_alternatives(self, translation: Translation) -> list[dict[str, object]]:
        """Return a JSON object for each alternative of a translation."""
        alternatives: list[dict[str, object]] = []
        for alternative in translation.alternatives:
            alternatives.append({self.target: alternative.text, "score": alternative.score})
        return alternatives


def _parse_json(line: str, place: str) -> object:
    """Parse a line of JSON. Raises InputError if it is not valid JSON, or if it cannot be written as UTF-8."""
    try:
        value = json.loads(line)
        # An escape such as \ud83d may be a lone surrogate, i.e. half of a character, which cannot be written as UTF-8.
        has_escapes = "\\u" in line
        if has_escapes:
            json.dumps(value, ensure_ascii=False).encode()
    # This clause must be the first one, because a UnicodeEncodeError is also a ValueError.
    except UnicodeEncodeError as error:
        # `error.object` is the text, and `error.start` is the index of the first character that cannot be encoded.
        surrogate = ascii(error.object[error.start])
        raise InputError(f"{place} has the lone surrogate {surrogate}; write the whole character.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON ({error}); write one JSON object per line.") from error
    return value


def _describe_fields(value: object) -> str:
    """Describe the fields of a JSON value for an error message about a missing field, such as `has no fields`."""
    if not isinstance(value, dict):
        return "is no object"
    if not value:
        return "has no fields"
    return f"has the fields {', '.join(value)}"


def is_json(path: str) -> bool:
    """Return True if a file contains JSON lines, according to its suffix, such as `.jsonl` or `.jsonl.gz`."""
    return suffix_of(path) in _JSON_SUFFIXES


def read_sentences(
    path: str | None, arguments: Sequence[str], fields: JsonFields | None, size: int
) -> Iterator[list[Sentence]]:
    """Read sentences in chunks from the command line, from a file or, if neither is given, from standard input.

    Raises InputError if sentences are given in two ways. Errors of the file or of its lines may be raised only while
    the chunks are read.

    Args:
        arguments: sentences on the command line. They form a single chunk.
        fields: the field names of JSON lines, or None for plain text.
        size: the maximum number of sentences in a chunk.
    """
    if arguments and path:
        raise InputError("sentences were given both as arguments and as a file; give one of the two.")
    if arguments:
        only_chunk = [Sentence(text) for text in arguments]
        return iter([only_chunk])
    if path is None:
        return _chunks_of_stdin(fields, size)
    return _chunks_of_file(path, fields, size)


def _chunks_of_file(path: str, fields: JsonFields | None, size: int) -> Iterator[list[Sentence]]:
    """Check that a file can be read, and return an iterator over its sentences in chunks.

    This is not a generator function, so that the check takes place at once.
    """
    file = Path(path)
    check_is_input(file)
    sentences = _parse(iterate_lines(file), path, fields)
    return _chunks(sentences, size)


def write_sentences(
    sentences: Sequence[Sentence], translations: Sequence[Translation], fields: JsonFields | None, keeps_breaks: bool
) -> Iterator[str]:
    """Yield an output line for each translation.

    Args:
        sentences, translations: the sentences and their translations.
        fields: the field names of JSON lines, or None for plain text.
        keeps_breaks: True if line breaks inside a plain-text translation are kept. Otherwise they become spaces, so
            that each translation has one line.
    """
    for sentence, translation in zip(sentences, translations, strict=True):
        if fields is not None:
            yield f"{fields.write(sentence, translation)}\n"
        elif keeps_breaks:
            yield f"{translation.text}\n"
        else:
            yield f"{one_line(translation.text)}\n"


def _parse(lines: Iterable[str], name: str, fields: JsonFields | None, first: int = 1) -> Iterator[Sentence]:
    """Parse lines, and yield one sentence for each.

    Error messages state the `name` of the input and the line number. `first` is the number of the first line.
    """
    for number, line in enumerate(lines, start=first):
        if fields is None:
            yield Sentence(line)
        else:
            yield fields.read(line, f"{name}, line {number}")


def _chunks(sentences: Iterator[Sentence], size: int) -> Iterator[list[Sentence]]:
    """Yield the sentences in lists of at most `size` sentences."""
    # `islice` takes the next sentences from the iterator, and an empty list ends the loop.
    while chunk := list(islice(sentences, size)):
        yield chunk


def _chunks_of_stdin(fields: JsonFields | None, size: int) -> Iterator[list[Sentence]]:
    """Yield sentences from standard input as soon as they arrive, so that they are translated without delay."""
    # A program without a console has no standard input.
    if sys.stdin is None:
        raise InputError("standard input is closed; give sentences, or --input.")
    # Error messages state the number of a line, which is counted from 1.
    first_line_number = 1
    # `lines` contains the lines that have arrived since the previous iteration.
    for lines in lines_as_they_arrive(sys.stdin.buffer, _STDIN):  # type: ignore[arg-type]
        sentences = _parse(lines, _STDIN, fields, first_line_number)
        yield from _chunks(sentences, size)
        first_line_number += len(lines)
