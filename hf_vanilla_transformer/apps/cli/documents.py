"""Whole documents in `translate`: a file of HTML or XML, or those of a folder, by the endings of their names."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from ...support.atomic_files import write_text
from ...support.output_files import check_can_write, open_output
from ...support.user_errors import InputError


KINDS = {".html": "html", ".htm": "html", ".xhtml": "xml", ".xml": "xml"}


class DocumentFile(NamedTuple):
    """A document, where its translation goes (None for standard output), and its kind of markup."""

    source: Path
    target: Path | None
    kind: str


def document_files(source: str | None, target: str | None) -> list[DocumentFile]:
    """The documents of `--input` and `--output`, files or folders; none if the input is something else.

    Raises ValueError or OSError if a folder has none, or a translation cannot be written or would replace its document.
    """
    path = Path(source or "")
    if source is None or not (path.is_dir() or path.suffix.lower() in KINDS):
        return []
    if not path.is_dir():
        check_can_write(target, inputs=[path])
        return [DocumentFile(path, Path(target) if target else None, KINDS[path.suffix.lower()])]
    if target is None or (Path(target).exists() and not Path(target).is_dir()):
        raise InputError(f"{path} is a folder; name a folder for the translations by --output.")
    if Path(target).resolve().is_relative_to(path.resolve()):
        raise InputError(f"{target} lies in {path}, whose documents it would join; name another folder.")
    found = [each for each in sorted(path.rglob("*")) if each.suffix.lower() in KINDS and each.is_file()]
    if not found:
        raise InputError(f"{path} has no documents; their names end in {', '.join(KINDS)}.")
    return [DocumentFile(each, Path(target, each.relative_to(path)), KINDS[each.suffix.lower()]) for each in found]


def translate_files(files: list[DocumentFile], translate: Callable[[str, str], str]) -> None:
    """Write the translation of each document, which `translate(text, kind)` returns; with a progress bar if several.

    Raises ValueError, with the name of the document, if one cannot be read or translated.
    """
    for file in tqdm(files, "documents", unit=" documents", disable=not sys.stderr.isatty() or len(files) == 1):
        try:
            translated = translate(file.source.read_bytes().decode("utf-8-sig"), file.kind)
        except ValueError as error:  # Not UTF-8, or no markup that can be read.
            raise InputError(f"{file.source}: {error}") from error
        if file.target is None:
            with open_output(None) as output:
                output.write(translated)
        else:
            file.target.parent.mkdir(parents=True, exist_ok=True)
            write_text(file.target, translated)
