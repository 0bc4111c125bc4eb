"""Read sentences with HTML or XML inside: their text, and their tags as elements.

Tags, attributes, comments and the content of scripts are never translated. Entities are characters for the model, and
are escaped again where they must be.
"""

import html
import re
from bisect import bisect_right
from collections.abc import Callable
from html.parser import HTMLParser
from textwrap import shorten
from typing import Any
from xml.parsers import expat

from ..support.user_errors import InputError
from .tag_placement import Element, TagPlacement


KINDS = ("html", "xml")
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# Tags of HTML that end a paragraph.
_BLOCKS = (
    *("p", "div", "section", "article", "blockquote", "pre", "ul", "ol", "dl", "hr", "table", *_HEADINGS),
    *("address", "aside", "center", "details", "dialog", "fieldset", "figcaption", "figure", "footer", "form"),
    *("header", "hgroup", "main", "menu", "nav", "search", "summary"),
)
# Tags of HTML that end a line, so that "one<br>two" has two words, and two sentences where texts are split.
_SEPARATORS = (
    *(*_BLOCKS, "li", "dt", "dd", "br", "caption", "tbody", "thead", "tfoot", "tr", "td", "th", "html", "head"),
    *("title", "body", "button", "legend", "noscript", "optgroup", "option", "select", "textarea"),
)
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
# Elements of HTML that may lack a closing tag: they end where one of these tags opens, or with what they are in.
_ENDED_BY = {
    **dict.fromkeys(_BLOCKS, ("p",)),
    **dict.fromkeys(_HEADINGS, ("p", *_HEADINGS)),
    **dict.fromkeys(("dt", "dd"), ("p", "dt", "dd")),
    **dict.fromkeys(("td", "th"), ("p", "td", "th")),
    "tr": ("p", "td", "th", "tr"),
    "li": ("p", "li"),
    "option": ("option",),
    "a": ("a",),
}
_END_WITH_PARENT = frozenset(name for names in _ENDED_BY.values() for name in names if name != "a")
_HAVE_SUCH_INSIDE = ("ul", "ol", "dl", "table", "select")
_PREFORMATTED = ("pre", "textarea")
_SPACE_OF_HTML = re.compile("[ \t\n\r\f]+")
# Of elements inside each other: far below Python's limit of recursion.
_DEEPEST = 200
# Characters of a text in an error.
_SHOWN = 60
# The declaration of XML, and a document type that declares no entities of its own.
_PROLOG = re.compile(r"<\?xml\s[^>]*\?>(\s*<!DOCTYPE\s[^>[]*>)?|<!DOCTYPE\s[^>[]*>")
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class Document:
    """A sentence with markup: its text, and its elements.

    Args:
        kind (`str`): `"html"` or `"xml"`.
        markup (`str`): the sentence.

    Raises:
        ValueError: if XML is not well-formed, or more than 200 elements are inside each other. In HTML, a tag that
            crosses another is closed and opened again, an unclosed one is closed where HTML ends it, and a closing tag
            without an opening one is dropped.
    """

    def __init__(self, kind: str, markup: str):
        self.text, self.elements = "", list[Element]()
        self._kind = kind
        self._open: list[tuple[str, Element]] = []
        self._before_text: list[Element] = []
        if kind == "html":
            _HTML(self).read(markup)
        else:
            _read_xml(self, markup)
        while self._open:
            self._pop()

    def add_text(self, text: str) -> None:
        """Append text; white space that tags divide is one space."""
        for element in self._before_text:
            element.has_space_after = text[:1].isspace()
        self._before_text.clear()
        if self._kind == "html" and not any(name in _PREFORMATTED for name, _ in self._open):
            text = _SPACE_OF_HTML.sub(" ", text)
        if not self.text or self.text[-1].isspace():
            text = text.lstrip()
        self.text += text

    def start(self, name: str, opening: str, closing: str) -> None:
        """Open an element; in HTML it may end others."""
        if self._kind == "html":
            self._end_before(name)
        self._separate(name)
        element = Element(opening, closing, len(self.text), has_space_before=self.text[-1:].isspace())
        (self._open[-1][1].children if self._open else self.elements).append(element)
        self._open.append((name, element))
        if len(self._open) > _DEEPEST:
            raise InputError(f"more than {_DEEPEST} tags are inside each other, the last one {opening!r}; close them.")

    def end(self, name: str) -> None:
        """Close an element, and open those again that it crosses, unless they end with it or have no text after it."""
        if name not in [each for each, _ in self._open]:
            return
        crossed = []
        while (last := self._pop())[0] != name:
            crossed.append(last)
        for again, element in reversed(crossed):
            if again not in _END_WITH_PARENT and name not in ("td", "th", "tr", "table"):
                self.start(again, element.opening, element.closing)
                self._open[-1][1].is_opened_again = True

    def add_raw(self, raw: str) -> None:
        """Append to the opening tag what is not to be translated."""
        self._open[-1][1].opening += raw

    def _end_before(self, name: str) -> None:
        names = [each for each, _ in self._open]
        inside = max((place + 1 for place, each in enumerate(names) if each in _HAVE_SUCH_INSIDE), default=0)
        ended = [each for each in names[inside:] if each in _ENDED_BY.get(name, ())]
        if ended:
            self.end(ended[0])

    def _pop(self) -> tuple[str, Element]:
        name, element = self._open.pop()
        element.end = len(self.text)
        if element.is_opened_again and element.start == element.end and not element.children:
            (self._open[-1][1].children if self._open else self.elements).pop()
        elif element.start == element.end:
            self._before_text.append(element)
        self._separate(name)
        return name, element

    def _separate(self, name: str) -> None:
        if self._kind == "html" and name in _SEPARATORS and self.text and not self.text.endswith("\n"):
            self.text += "\n"

    def render(self, translation: str, links: list[tuple[int, int]]) -> str:
        """The translation of the text with the elements around the words that are linked with theirs.

        Every element comes out once. Where its words are apart in the translation, it is around the part that has more
        of them than of others. The links are those of `align`.
        """
        if self._kind == "xml":
            translation = _NOT_IN_XML.sub(" ", translation)
        return TagPlacement(self.text, translation, links).render(self.elements)


class _HTML(HTMLParser):
    """Reads HTML into a document."""

    def __init__(self, document: Document):
        super().__init__(convert_charrefs=False)
        self._document = document
        self._is_raw = False

    def read(self, markup: str) -> None:
        # No tag begins after the last ">", where the parser would look for the end of one at each "<".
        place = markup.rfind(">") + 1
        self.feed(markup[:place])
        self.close()
        if self._is_raw:  # A script that is not closed.
            self._document.add_raw(self.rawdata + markup[place:])
        else:
            self._document.add_text(html.unescape(markup[place:]))

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:  # It has no name; browsers read a comment.
            return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        raw = self.get_starttag_text() or f"<{tag}>"
        name = re.split(r"[\s/>]", raw[1:], maxsplit=1)[0]
        if tag in _VOID:
            self._add_empty(tag, raw)
            return
        self._document.start(tag, raw, f"</{name}>")
        self._is_raw = tag in ("script", "style")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self._add_empty(tag, self.get_starttag_text() or f"<{tag}/>")

    def handle_endtag(self, tag: str) -> None:
        self._is_raw = False
        self._document.end(tag)

    def handle_data(self, data: str) -> None:
        if self._is_raw:
            self._document.add_raw(data)
        else:
            self._document.add_text(data)

    def handle_entityref(self, name: str) -> None:
        self._document.add_text(html.unescape(f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self._document.add_text(html.unescape(f"&#{name};"))

    def handle_comment(self, data: str) -> None:
        self._add_empty("", f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._add_empty("", f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._add_empty("", f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._add_empty("", f"<![{data}{']' * data.startswith('CDATA[')}]>")

    def _add_empty(self, tag: str, raw: str) -> None:
        self._document.start(tag, raw, "")
        self._document.end(tag)


def _read_xml(document: Document, markup: str) -> None:
    """Read XML, inside a root element of our own: a sentence may have several elements, or none."""
    root, prolog = "<r>", _PROLOG.match(markup)
    if prolog:
        document.start("", prolog[0], "")
        document.end("")
    # With spaces for the prolog, which no element may contain.
    rest = re.sub(".", " ", prolog[0]) + markup[prolog.end() :] if prolog else markup
    source = f"{root}{rest}</r>".encode()
    parser = expat.ParserCreate("utf-8")
    events: list[tuple[int, str, str]] = []

    def record(kind: str) -> Callable[..., None]:
        return lambda *data: events.append((parser.CurrentByteIndex, kind, str(data[0]) if data else ""))

    parser.StartElementHandler = record("start")
    parser.EndElementHandler = record("end")
    parser.CharacterDataHandler = record("text")
    parser.CommentHandler = parser.ProcessingInstructionHandler = record("other")
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = record("cdata")
    try:
        parser.Parse(source, True)
    except expat.ExpatError as error:
        place = error.offset + 1 - (len(root) if error.lineno == 1 else 0)
        line = f"line {error.lineno}, " if "\n" in markup else ""
        raise InputError(
            f"{shorten(markup, _SHOWN)!r} is not well-formed XML: {expat.ErrorString(error.code)} at {line}character "
            f'{place}; correct it, or give markup="html", which repairs tags.'
        ) from None
    # The end of an empty tag has the place of what follows it.
    places = [*sorted({place for place, *_ in events}), len(source)]
    for place, kind, data in events[1:-1]:
        raw = source[place : places[bisect_right(places, place)]].decode()
        if kind == "text":
            document.add_text(data)
        elif kind == "start":
            document.start(data, raw, "" if raw.endswith("/>") else f"</{data}>")
        elif kind == "end":
            document.end(data)
        elif kind == "other":
            document.start("", raw, "")
            document.end("")
