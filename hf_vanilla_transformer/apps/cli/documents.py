"""Translate whole HTML or XML documents for the verb `translate`: a single file, or all documents in a folder."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from ...support.atomic_files import write_text
from ...support.output_files import check_can_write, open_output
from ...support.user_errors import InputError


# The markup language of a document, by its file suffix.
MARKUP_BY_SUFFIX = {".html": "html", ".htm": "html", ".xhtml": "xml", ".xml": "xml"}


class DocumentFile(NamedTuple):
    """A document to translate, with the path for its translation and its markup language.

    `target` is None if the translation is written to standard output. `markup` is `"html"` or `"xml"`.
    """

    source: Path
    target: Path | None
    markup: str


def find_documents(source: str | None, target: str | None) -> list[DocumentFile]:
    """List the documents that `--input` names, with the paths for their translations.

    Args:
        source: the value of `--input`: a document, a folder of documents, or anything else.
        target: the value of `--output`: a file, or a folder if `source` is a folder.

    Returns:
        The documents, or an empty list if `source` is neither a document nor a folder.

    Raises:
        OSError: if a translation cannot be written.
        ValueError: if a folder has no documents, or if a translation would replace a document.
    """
    if source is None:
        return []
    path = Path(source)
    if path.is_dir():
        return _find_in_folder(path, target)
    if not _is_document(path):
        return []
    check_can_write(target, inputs=[path])
    # Without a target, the translation goes to standard output.
    translation_path = Path(target) if target else None
    return [DocumentFile(path, translation_path, _markup_of(path))]


def _is_document(path: Path) -> bool:
    """Return True if a file has one of the suffixes of HTML and XML documents."""
    return path.suffix.lower() in MARKUP_BY_SUFFIX


def _markup_of(path: Path) -> str:
    """Return the markup language of a document, `"html"` or `"xml"`."""
    return MARKUP_BY_SUFFIX[path.suffix.lower()]


def _find_in_folder(folder: Path, target: str | None) -> list[DocumentFile]:
    """List the documents in a folder and its subfolders, with the paths for their translations.

    The translations get the same relative paths in the folder `target`. Raises InputError if `target` is None, is a
    file, or lies in `folder`, or if there are no documents.
    """
    target_folder = _get_target_folder(folder, target)
    documents = []
    for path in sorted(folder.rglob("*")):
        if _is_document(path) and path.is_file():
            translation_path = Path(target_folder, path.relative_to(folder))
            documents.append(DocumentFile(path, translation_path, _markup_of(path)))
    if not documents:
        raise InputError(f"{folder} has no documents; their names end in {', '.join(MARKUP_BY_SUFFIX)}.")
    return documents


def _get_target_folder(folder: Path, target: str | None) -> Path:
    """Return the path of the folder `target`. Raise InputError if it is None, is a file, or lies in `folder`."""
    target_is_file = target is not None and Path(target).exists() and not Path(target).is_dir()
    if target is None or target_is_file:
        raise InputError(f"{folder} is a folder; name a folder for the translations by --output.")
    if Path(target).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{target} lies in {folder}, whose documents it would join; name another folder.")
    return Path(target)


def translate_files(documents: Sequence[DocumentFile], translate: Callable[[str, str], str]) -> None:
    """Translate documents one by one, and write each translation when it is complete.

    Raises InputError, which names the document, if a document is not in UTF-8, or cannot be translated.

    Args:
        translate: a function that takes a document's text and markup, and returns the translated text.
    """
    hides_progress = not sys.stderr.isatty() or len(documents) == 1
    for document in tqdm(documents, "documents", unit=" documents", disable=hides_progress):
        translation = _translate_file(document, translate)
        _write_translation(document.target, translation)


def _translate_file(document: DocumentFile, translate: Callable[[str, str], str]) -> str:
    """Return the translation of a document. Raise InputError if it is not in UTF-8, or cannot be translated."""
    try:
        # The codec utf-8-sig removes a byte order mark at the beginning.
        text = document.source.read_bytes().decode("utf-8-sig")
        return translate(text, document.markup)
    except ValueError as error:
        raise InputError(f"{document.source}: {error}") from error


def _write_translation(target: Path | None, translation: str) -> None:
    """Write a translation to a file, whose folder is created, or to standard output if `target` is None."""
    if target is None:
        with open_output(None) as output:
            output.write(translation)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, translation)
