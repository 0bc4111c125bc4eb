"""HTML and XML as trees of nodes and texts: HTML is read by lexbor, as browsers read it, and XML by expat."""

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from textwrap import shorten
from typing import Any
from xml.parsers import expat

from ...support.user_errors import InputError, needing


class Kind(Enum):
    """What a node is for its translation."""

    BLOCK = "ends sentences, and has its own ones inside"
    INLINE = "is a part of a sentence"
    KEPT = "is written as it is, somewhere in a sentence"
    ESCAPED_HTML = "has HTML as its text, which is a document of its own"


# Elements of HTML that are no parts of sentences.
_BLOCKS = frozenset(("html", "head", "body", "title", "frameset", "noscript", "main", "nav"))
_BLOCKS |= {"p", "div", "section", "article", "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "dir", "menu", "search"}
_BLOCKS |= {"h1", "h2", "h3", "h4", "h5", "h6", "hgroup", "header", "footer", "address", "aside", "center", "details"}
_BLOCKS |= {"summary", "dialog", "figure", "figcaption", "form", "fieldset", "legend", "button", "select", "optgroup"}
_BLOCKS |= {"option", "table", "caption", "colgroup", "col", "tbody", "thead", "tfoot", "tr", "td", "th", "pre", "br"}
_BLOCKS |= {"listing", "textarea", "hr"}
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track")
)
_VOID |= {"wbr", "basefont", "bgsound", "keygen"}
# Elements whose content is no text of the page: raw text, other languages than HTML, and what is shown in their place.
_RAW = frozenset(("script", "style", "xmp", "iframe", "noembed", "noframes", "plaintext"))
_FOREIGN = _RAW | {"svg", "math", "template", "object", "canvas", "audio", "video", "applet"}
# Elements of SVG and MathML that have HTML inside.
_IN_HTML_AGAIN = frozenset(("foreignObject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"))
# Elements of HTML that are parts of sentences, also without text next to them.
_PHRASING = frozenset(("a", "abbr", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins"))
_PHRASING |= {"mark", "q", "rb", "ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"}
# Elements of `<ruby>` that tell how its text is read, and what is shown around these where `<ruby>` is not known.
READINGS = frozenset(("rt", "rp", "rtc"))
_NOT_TRANSLATED = frozenset(("code", "kbd", "samp", "var"))
_KEEP_LINES = ("pre", "listing", "textarea")
_HTML_NAMES = _BLOCKS | _VOID | _FOREIGN | _PHRASING | READINGS | _NOT_TRANSLATED
_HTML_NAMES |= {"acronym", "datalist", "label", "map", "meter", "nobr", "output", "picture", "progress", "slot"}
_TEXT_ATTRIBUTES = ("alt", "title", "placeholder", "aria-label")
# The parent that HTML needs around an element, for a fragment that begins with it.
_CONTEXTS = {"td": "tr", "th": "tr", "tr": "tbody", "col": "colgroup"}
_CONTEXTS |= dict.fromkeys(("tbody", "thead", "tfoot", "caption", "colgroup"), "table")
# Comments and what HTML reads as such, `<?xml ...?>`; possessive, because backtracking takes exponential time.
_BEFORE = r"(?>\s+|<!--.*?-->|<\?.*?>)*+"
_IS_PAGE = re.compile(rf"{_BEFORE}<(!doctype|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_DOCTYPE = re.compile(rf"{_BEFORE}(<!doctype[^>]*>)", re.IGNORECASE | re.DOTALL)
_FIRST_TAG = re.compile(rf"{_BEFORE}<([a-zA-Z]+)", re.DOTALL)
_LINE_BREAKS = re.compile(r"(\n\s*\n|\n)")
# Of elements inside each other: far below Python's limit of recursion.
_DEEPEST = 200
# The declaration of XML and a document type, with what stands before it.
_DOCTYPE_OF_XML = r"""<!DOCTYPE\s(?>"[^"]*"|'[^']*'|[^]["'>])*(?:\[[^]]*\]\s*)?>"""
_PROLOG = re.compile(rf"(?>\s+|<!--.*?-->|<\?.*?\?>)*+{_DOCTYPE_OF_XML}|<\?xml\s.*?\?>", re.DOTALL)
# White space of HTML and XML, which is as good as one space; no-break spaces are not.
_SPACES = re.compile(r"[ \t\n\r\f]+")
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_TAG = re.compile(r"<(?P<is_end>/?)(?P<name>[a-zA-Z][\w:-]*+)(?:\s[^<>]*?)?(?P<is_empty>/?)>")
# Without a comment inside that begins in a comment, so that searching takes linear time.
_COMMENT = re.compile(r"<!--(?>(?!<!--|-->).)*+-->", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z]\w*);")
_CDATA = re.compile(r"(?P<before>\s*<!\[CDATA\[)(?P<content>(?:(?!\]\]>).)*+)(?P<after>\]\]>\s*)", re.DOTALL)
# Characters of a text in an error.
_SHOWN = 60


@dataclass
class Node:
    """An element, or something that is written as it is.

    Args:
        kind (`Kind`): what it is for the translation.
        raw (`str`): the start tag, or all of a node without children; None for the tag of `name` and `attributes`.
        closing (`str`): the end tag, if any.
        children (`list`): nodes, and texts as characters, not as entities.
        name, attributes: of an element.
        is_translated (`bool`): whether its texts are translated, those of attributes included.
        raw_content (`str`): the content of an element of XML as it is written, if its text may be HTML.
        html (`str`): the HTML that is escaped in `raw`, for `Kind.ESCAPED_HTML`.
    """

    kind: Kind
    raw: str | None = None
    closing: str = ""
    children: "list[Node | str]" = field(default_factory=list)
    name: str = ""
    attributes: dict[str, str | None] = field(default_factory=dict)
    is_translated: bool = True
    raw_content: str = ""
    html: str = ""

    @property
    def opening(self) -> str:
        """The start tag."""
        if self.raw is not None:
            return self.raw
        pairs = (f' {name}="{escape_html(value or "", True)}"' for name, value in self.attributes.items())
        return f"<{self.name}{''.join(pairs)}>"

    @property
    def is_group(self) -> bool:
        """Whether it has no tags, and is only its children."""
        return self.raw == "" and self.closing == ""

    def text_attributes(self) -> list[str]:
        """Names of attributes that hold text to translate."""
        if self.raw is not None or not self.is_translated:
            return []
        return [name for name in _TEXT_ATTRIBUTES if (self.attributes.get(name) or "").strip()]


def escape_html(text: str, is_attribute: bool = False) -> str:
    """Text in HTML, as browsers write it."""
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;").replace('"', "&quot;" if is_attribute else '"')


def escape_xml(text: str) -> str:
    """Text in XML, without characters that it forbids."""
    return html.escape(_NOT_IN_XML.sub(" ", text), quote=False)


def collapse_spaces(text: str) -> str:
    """Text with one space for white space of any length, as HTML shows it."""
    return _SPACES.sub(" ", text)


def write(node: "Node | str", escape: Callable[[str], str]) -> str:
    """A node as it is written."""
    if isinstance(node, str):
        return escape(node)
    return f"{node.opening}{''.join(write(child, escape) for child in node.children)}{node.closing}"


def shape(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Depths and names of the elements inside a node, in their order."""
    for child in node.children:
        if isinstance(child, Node):
            if child.name:
                yield depth, child.name
            yield from shape(child, depth + 1)


def read_html(markup: str) -> Node:
    """The tree of a page, or of a fragment, as browsers without scripts read it; nothing is added to a fragment.

    Raises:
        ImportError: if selectolax is missing; the message names the extra to install.
        ValueError: if more than 200 elements are inside each other.
    """
    with needing("documents", "HTML needs"):
        from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

    options: dict[str, Any] = {"options": LexborDocumentOptions.WO_EVENTS}
    is_page = _IS_PAGE.match(markup) is not None
    if not is_page:
        first = _FIRST_TAG.match(markup)
        context = _CONTEXTS.get(first[1].lower(), "div") if first else "div"
        options |= {"is_fragment": True, "fragment_tag": context}
    parser, doctype = LexborHTMLParser(markup, **options), _DOCTYPE.match(markup)
    first_node: Any = parser.root
    if is_page:
        first_node = first_node.parent.first_child
    root = Node(Kind.BLOCK, "", children=list(_html_nodes(first_node, doctype[1] if doctype else "", 1)))
    _classify(root, True, True, escape_html)
    return root


def _html_nodes(lexbor: Any, doctype: str, depth: int, is_html: bool = True) -> Iterator["Node | str"]:
    """A node of lexbor and its siblings, which are of HTML, or of SVG or MathML."""
    while lexbor is not None:
        if lexbor.is_text_node:
            yield lexbor.text_content or ""
        elif lexbor.is_element_node:
            yield _html_element(lexbor, depth, is_html)
        else:
            yield Node(Kind.KEPT, doctype if lexbor.tag == "-doctype" else _source(lexbor))
        lexbor = lexbor.next


def _html_element(lexbor: Any, depth: int, is_html: bool) -> Node:
    name = lexbor.tag
    _check_depth(depth, f"<{name}>")
    end = "" if is_html and name in _VOID else f"</{name}>"
    node = Node(Kind.INLINE, None, end, name=name, attributes=dict(lexbor.attributes))
    if is_html and name in _RAW:
        text = lexbor.first_child  # One, or none.
        return replace(node, raw=node.opening + (text.text_content or "" if text else ""))
    inside = name in _IN_HTML_AGAIN or (is_html and name not in ("svg", "math"))
    first = lexbor.template_fragments()[0].first_child if is_html and name == "template" else lexbor.first_child
    node.children = list(_html_nodes(first, "", depth + 1, inside))
    return node


def _source(lexbor: Any) -> str:
    """A comment of lexbor, or another node that is neither an element nor a text, as it is written."""
    following, length = lexbor.next, len(lexbor.html)
    # The first node of a fragment is written with all that follow it.
    while lexbor.parent is None and lexbor.prev is None and following is not None:
        length -= len(following.html)
        following = following.next
    return lexbor.html[:length]


def _check_depth(depth: int, tag: str) -> None:
    if depth > _DEEPEST:
        raise InputError(f"more than {_DEEPEST} tags are inside each other, the last one {tag!r}; close them.")


def _classify(
    node: Node, is_sentence: bool, translates: bool, escape: Callable[[str], str], is_in_ruby: bool = False
) -> None:
    """Set the kinds of the elements inside a node.

    Args:
        is_sentence: whether elements of unknown names are parts of sentences, even without text next to them.
        translates: whether texts are translated; other ones of a block become nodes, which `escape` writes.
        is_in_ruby: whether readings of texts, such as `<rt>`, may be inside.
    """
    is_sentence |= any(isinstance(child, str) and child.strip() for child in node.children)
    is_in_ruby |= node.name == "ruby"
    if node.name in _KEEP_LINES:
        node.children = list(_lines(node.children))
        if node.raw is None and node.children[:1] == [""] and len(node.children) > 1:
            # HTML ignores one line break after the tag, so that this one, of the text, is written twice.
            node.children[0] = Node(Kind.BLOCK, "\n")
    for child in node.children:
        if not isinstance(child, Node) or not child.name:
            continue
        # XML has elements of its own by the names of some that are foreign in HTML.
        is_foreign = child.name in (_FOREIGN if child.raw is None or child.name in _RAW else ("svg", "math"))
        if is_foreign or (is_in_ruby and child.name in READINGS):
            child.kind = Kind.KEPT
            child.is_translated = False
            continue
        asked = (child.attributes.get("translate", "unset") or "yes").lower()
        inside = asked == "yes" or (asked != "no" and translates and child.name not in _NOT_TRANSLATED)
        inside = inside and "notranslate" not in (child.attributes.get("class") or "").split()
        child.is_translated = inside
        is_part = child.name not in _BLOCKS and (is_sentence or child.name in _PHRASING)
        child.kind = Kind.INLINE if is_part else Kind.BLOCK
        if inside and not is_part:
            _read_escaped_html(child)
        _classify(child, is_part, inside, escape, is_in_ruby)
        kinds = {grandchild.kind for grandchild in child.children if isinstance(grandchild, Node)}
        if Kind.BLOCK in kinds or (not inside and Kind.INLINE in kinds):
            child.kind = Kind.BLOCK
        elif not inside and is_part:
            child.kind = Kind.KEPT
        if child.kind is Kind.BLOCK and not inside:
            texts = (Node(child.kind, escape(each)) if isinstance(each, str) else each for each in child.children)
            child.children = list(texts)


def _read_escaped_html(node: Node) -> None:
    """Replace the text of an element of XML by a node of its own if the text is HTML, as in feeds."""
    if not node.raw_content or len(node.children) != 1 or not isinstance(node.children[0], str):
        return
    text = node.children[0]
    section = _CDATA.fullmatch(node.raw_content)
    if section is not None:
        # Without white space around the section.
        text = section["content"]
    if _is_html(text):
        node.children = [Node(Kind.ESCAPED_HTML, node.raw_content, html=text)]


def _is_html(text: str) -> bool:
    """Return True if a text has tags, comments or entities of HTML, and each start tag has its end tag.

    So it is markup, while "Use <b> for bold" only mentions a tag.
    """
    text_without_comments, comments = _COMMENT.subn("", text)
    if "<!--" in text_without_comments:
        return False
    is_markup = comments > 0 or _has_entity(text)
    open_names: list[str] = []
    for tag in _TAG.finditer(text_without_comments):
        is_markup = True
        name = tag["name"].lower()
        if name not in _HTML_NAMES:
            return False
        if name in _VOID or tag["is_empty"]:
            continue
        if not tag["is_end"]:
            open_names.append(name)
        elif not open_names or open_names.pop() != name:
            return False
    return is_markup and not open_names


def _has_entity(text: str) -> bool:
    """Return True if a text has an entity that HTML knows, such as "&amp;"; the "&D;" of "R&D;" is none."""
    return any(html.unescape(entity[0]) != entity[0] for entity in _ENTITY.finditer(text))


def write_escaped_html(node: Node, html: str) -> str:
    """Write the translation of HTML that is escaped in XML, in a CDATA section if it was in one."""
    section = _CDATA.fullmatch(node.raw or "")
    html = _NOT_IN_XML.sub(" ", html)
    if section is None or "]]>" in html:
        return escape_xml(html)
    return f"{section['before']}{html}{section['after']}"


def _lines(children: "list[Node | str]") -> Iterator["Node | str"]:
    """Children whose line breaks are nodes between texts, also inside of elements."""
    for child in children:
        if isinstance(child, Node):
            child.children = list(_lines(child.children))
            yield child
            continue
        for number, part in enumerate(_LINE_BREAKS.split(child)):
            yield Node(Kind.BLOCK, part) if number % 2 else part


def read_xml(markup: str) -> Node:
    """The tree of a document, or of a part of one: it may have several elements outside of others, or none.

    An element is a part of a sentence if there is text next to it, or if HTML has such a part of its name.

    Raises:
        ValueError: if it is not well-formed, or more than 200 elements are inside each other.
    """
    tag, prolog, root = "<r>", _PROLOG.match(markup), Node(Kind.BLOCK, "")
    if prolog:
        root.children.append(Node(Kind.BLOCK, prolog[0]))
    # With spaces for the prolog, which no element may contain.
    rest = re.sub(".", " ", prolog[0]) + markup[prolog.end() :] if prolog else markup
    source = f"{tag}{rest}</r>".encode()
    parser = expat.ParserCreate("utf-8")
    events: list[tuple[int, str, str, dict[str, str | None]]] = []

    def record(kind: str) -> Callable[..., None]:
        def append(data: str = "", attributes: Any = None) -> None:
            events.append((parser.CurrentByteIndex, kind, data, attributes if kind == "start" else {}))

        return append

    parser.StartElementHandler = record("start")
    parser.EndElementHandler = record("end")
    parser.CharacterDataHandler = record("text")
    parser.CommentHandler = parser.ProcessingInstructionHandler = record("other")
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = record("cdata")
    try:
        parser.Parse(source, True)
    except expat.ExpatError as error:
        place = error.offset + 1 - (len(tag) if error.lineno == 1 else 0)
        line = f"line {error.lineno}, " if "\n" in markup else ""
        raise InputError(
            f"{shorten(markup, _SHOWN)!r} is not well-formed XML: {expat.ErrorString(error.code)} at {line}character "
            f'{place}; correct it, or give format="html" (--markup html), which repairs tags.'
        ) from None
    # The end of an empty tag has the place of what follows it.
    places, parents = [*sorted({place for place, *_ in events}), len(source)], [root]
    skipped = len(prolog[0]) if prolog else 0
    # Where the content of each parent begins.
    starts = [len(tag)]
    for place, kind, data, attributes in events[1:-1]:
        raw = source[place : places[bisect_right(places, place)]].decode()
        if kind == "text":
            siblings = parents[-1].children
            # expat divides a text at its entities.
            before: Any = siblings.pop() if siblings and isinstance(siblings[-1], str) else ""
            before += data[skipped:]
            siblings.append(before)
            skipped = max(0, skipped - len(data))
        elif kind == "start":
            _check_depth(len(parents), raw)
            end = "" if raw.endswith("/>") else f"</{data}>"
            parents.append(Node(Kind.INLINE, raw, end, name=data, attributes=attributes))
            parents[-2].children.append(parents[-1])
            starts.append(place + len(raw.encode()))
        elif kind == "end":
            node = parents.pop()
            start = starts.pop()
            # In pages of XHTML, tags that are escaped are shown to readers.
            is_page = parents[-1] is not root and parents[1].name == "html"
            if len(node.children) == 1 and not is_page:
                node.raw_content = source[start:place].decode()
        elif kind == "other":
            parents[-1].children.append(Node(Kind.KEPT, raw))
    root.raw_content = rest
    _read_escaped_html(root)
    _classify(root, False, True, escape_xml)
    return root
