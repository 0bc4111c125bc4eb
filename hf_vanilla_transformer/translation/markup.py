"""Sentences with HTML or XML inside: the model translates their text, and tags go around the words that belong to them.

Tags, attributes, comments and the content of scripts are never translated. Entities are characters for the model, and
are escaped again where they must be.
"""

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import product
from textwrap import shorten
from typing import Any, NamedTuple
from xml.parsers import expat

from .translation_details import Translation


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
# Words of a translation that are linked with none count a little against a tag that reaches over them.
_UNLINKED = -0.1
# Words that are linked with as many words inside of a tag as outside count a little for it.
_HALF = 0.05
# The declaration of XML, and a document type that declares no entities of its own.
_PROLOG = re.compile(r"<\?xml\s[^>]*\?>(\s*<!DOCTYPE\s[^>[]*>)?|<!DOCTYPE\s[^>[]*>")
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


@dataclass
class Element:
    """A tag with what it encloses; a comment, or an empty tag, encloses nothing.

    Args:
        opening, closing (`str`): the tags as they are written; `closing` is empty where there is none.
        start, end (`int`): the characters of the document's text inside.
        children (`list[Element]`): the elements inside, in order.
        has_space_before, has_space_after (`bool`): whether white space is next to an element without text.
        is_opened_again (`bool`): whether it is the rest of an element that another one crossed.
    """

    opening: str
    closing: str
    start: int
    end: int = 0
    children: list["Element"] = field(default_factory=list)
    has_space_before: bool = False
    has_space_after: bool = False
    is_opened_again: bool = False


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
            raise ValueError(f"more than {_DEEPEST} tags are inside each other, the last one {opening!r}; close them.")

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
        of them than of others.

        Args:
            translation (`str`): of `text`.
            links (`list` of pairs of `int`): words of the text and of the translation, from `align`.
        """
        if self._kind == "xml":
            translation = _NOT_IN_XML.sub(" ", translation)
        return _Placement(self.text, translation, links).render(self.elements)


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
        raise ValueError(
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


class _Word(NamedTuple):
    start: int
    end: int


def _words(text: str) -> list[_Word]:
    return [_Word(*found.span()) for found in re.finditer(r"\S+", text)]


class _Placement:
    """Where elements go in a translation, in words first, and then in characters."""

    def __init__(self, source: str, target: str, links: list[tuple[int, int]]):
        self._source, self._target = source, target
        self._source_words, self._target_words = _words(source), _words(target)
        self._links: list[set[int]] = [set() for _ in self._target_words]
        for of_source, of_target in links:
            self._links[of_target].add(of_source)

    def render(self, elements: list[Element]) -> str:
        whole = Element("", "", 0, len(self._source), elements)
        return "".join(self._parts(whole, 0, len(self._target_words), 0, len(self._target)))

    def _parts(self, parent: Element, first: int, last: int, start: int, end: int) -> Iterator[str]:
        """The tags and texts of the words `first` to `last`, characters `start` to `end`, inside a parent."""
        for element, low, high in self._place(parent, first, last):
            if low == high and element.is_opened_again and not element.children:
                continue
            if low < high:
                inside, outside = self._characters(element, low, high)
                spaces = ("", "")
            else:
                inside = outside = self._point(element, low)
                spaces = self._spaces(element, min(max(inside, start), end))
            inside, outside = (min(max(place, start), end) for place in (inside, outside))
            yield html.escape(self._target[start:inside], quote=False) + spaces[0] + element.opening
            yield from self._parts(element, low, high, inside, outside)
            yield element.closing + spaces[1]
            start = outside
        yield html.escape(self._target[start:end], quote=False)

    def _place(self, parent: Element, first: int, last: int) -> list[tuple[Element, int, int]]:
        """The children of a parent with their words of the translation, in its order; they do not overlap."""
        covered = {id(child): self._covered(child) for child in parent.children}
        free, found = set(range(first, last)), dict[int, tuple[int, int]]()
        by_size = sorted(parent.children, key=lambda child: -len(covered[id(child)]))
        # A word with links to several elements is for the one with most of them, or else for the largest one.
        for is_strict, child in product((True, False), by_size):
            words = covered[id(child)]
            is_whole = words == self._covered(parent) and len(free) == last - first
            low, high = (first, last) if words and is_whole else self._best_range(words, sorted(free), is_strict)
            if low < high and id(child) not in found:
                found[id(child)] = low, high
                free -= set(range(low, high))
        taken = list(found.values())
        for child in parent.children:
            if id(child) not in found:
                place = self._place_of_point(parent, child, first, last)
                for low, high in taken:
                    if low < place < high:
                        place = low if place - low < high - place else high
                found[id(child)] = place, place
        return sorted(((child, *found[id(child)]) for child in parent.children), key=lambda each: each[1:])

    def _covered(self, element: Element) -> set[int]:
        """The words of the source that an element contains, or contains a part of."""
        return {
            index
            for index, word in enumerate(self._source_words)
            if max(word.start, element.start) < min(word.end, element.end)
        }

    def _best_range(self, covered: set[int], free: list[int], is_strict: bool) -> tuple[int, int]:
        """The adjacent free words with most links to the covered words, less those to others if `is_strict`."""
        best, (low, high) = 0.0, (0, 0)
        total, start = 0.0, 0
        for place, word in enumerate(free):
            links = self._links[word]
            share = len(links & covered) / max(len(links), 1)
            weight = (2 * share - 1 or _HALF if is_strict else share or -1) if links else _UNLINKED
            if total <= 0 or free[place - 1] != word - 1:
                total, start = 0.0, word
            total += weight
            if total > best:
                best, (low, high) = total, (start, word + 1)
        return low, high

    def _place_of_point(self, parent: Element, element: Element, first: int, last: int) -> int:
        """The word before which an element without words goes: that of the source word which follows it."""
        words = sorted(self._covered(parent))
        before = [word for word in words if self._source_words[word].start < element.start]
        after = [word for word in words if word not in before]
        if not before:
            return first
        if after:
            for word in after:
                if linked := [place for place in range(first, last) if word in self._links[place]]:
                    return linked[0]
            for word in reversed(before):
                if linked := [place for place in range(first, last) if word in self._links[place]]:
                    return linked[-1] + 1
        return last

    def _characters(self, element: Element, low: int, high: int) -> tuple[int, int]:
        """The characters of words, without the punctuation around them that is outside of the element in the source."""
        start, end = self._target_words[low].start, self._target_words[high - 1].end
        before = re.search(r"\S*$", self._source[: element.start])
        after = re.match(r"\S*", self._source[element.end :])
        if before and _is_punctuation(before[0]):
            while start < end - 1 and _is_punctuation(self._target[start]):
                start += 1
        if after and _is_punctuation(after[0]):
            while end > start + 1 and _is_punctuation(self._target[end - 1]):
                end -= 1
        return start, end

    def _point(self, element: Element, place: int) -> int:
        """The character before which an element without words goes, next to the word before it or after it."""
        if place == len(self._target_words) or (place and not element.has_space_before):
            return self._target_words[place - 1].end if place else 0
        return self._target_words[place].start

    def _spaces(self, element: Element, place: int) -> tuple[str, str]:
        """The space before and after an element without words, as in the source, that the translation lacks."""
        before, after = self._target[:place][-1:], self._target[place:][:1]
        return (
            " " if element.has_space_before and before and not before.isspace() else "",
            " " if element.has_space_after and after and not after.isspace() else "",
        )


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(character.isalnum() or character.isspace() for character in text)


def translate_markup(
    translate_texts: Callable[[list[str]], list[Translation]], kind: str, sentences: list[str], keeps_lines: bool
) -> list[Translation]:
    """Translate sentences with markup.

    Args:
        translate_texts (`Callable`): from texts to their translations with alignments.
        kind (`str`): `"html"` or `"xml"`.
        sentences (`list` of `str`): with tags.
        keeps_lines (`bool`): whether the texts of HTML have a line for each block, or one line.

    Returns:
        `list[Translation]`: the texts have markup; tokens and alignments are those of the text without.

    Raises:
        ValueError: if `kind` is unknown, [`Document`] raises one, or the model gives no alignments.
    """
    if kind not in KINDS:
        raise ValueError(f"markup is {kind!r}; choose one of {', '.join(KINDS)}.")
    documents = [Document(kind, sentence) for sentence in sentences]
    texts = [document.text.rstrip() for document in documents]
    if kind == "html" and not keeps_lines:
        texts = [text.replace("\n", " ") for text in texts]
    found = translate_texts(texts)
    return [_with_markup(*each) for each in zip(documents, found, strict=True)]


def _with_markup(document: Document, translation: Translation) -> Translation:
    if translation.alignment is None and document.elements and translation.text:
        raise ValueError(
            "markup is placed by word alignments, which this model does not give; use a single model of this package."
        )
    others = tuple(_with_markup(document, other) for other in translation.alternatives)
    text = document.render(translation.text, translation.alignment or [])
    return translation._replace(text=text, alternatives=others)
