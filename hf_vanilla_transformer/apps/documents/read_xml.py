"""Parse XML into a tree of nodes with expat, the XML parser of Python's standard library."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from textwrap import shorten
from typing import Literal
from xml.parsers import expat

from ...support.user_errors import InputError
from .escaped_html import replace_escaped_html
from .markup_tree import Node, Role, check_depth, escape_xml
from .node_roles import assign_roles


# The prolog: a document type with the comments and instructions before it, or only the XML declaration.
_DOCUMENT_TYPE = r"""<!DOCTYPE\s(?>"[^"]*"|'[^']*'|[^]["'>])*(?:\[[^]]*\]\s*)?>"""
_PROLOG = re.compile(rf"(?>\s+|<!--.*?-->|<\?.*?\?>)*+{_DOCUMENT_TYPE}|<\?xml\s.*?\?>", re.DOTALL)
# The document is wrapped in this element, because expat accepts only one root element, and no text outside of it.
_WRAPPER_START = "<r>"
_WRAPPER_END = "</r>"
# The number of characters of a document that an error message quotes.
_QUOTED_CHARACTERS = 60


# "start" and "end" are tags. "other" is a comment or a processing instruction. "cdata" is the start or the end of a
# CDATA section, which is recorded because it marks the end of the event before it.
_EventType = Literal["start", "end", "text", "cdata", "other"]
# The attributes of an event that is no start tag.
_NO_ATTRIBUTES: Mapping[str, str | None] = {}


@dataclass(frozen=True)
class _Event:
    """A tag, a text, or other markup that expat found in the source.

    Args:
        position (`int`): the byte offset in the wrapped source at which it starts.
        type: what it is.
        data (`str`): the name of an element, or a text with decoded entities.
        attributes (`dict`): the attributes of a start tag.
    """

    position: int
    type: _EventType
    data: str
    attributes: Mapping[str, str | None]


@dataclass(frozen=True)
class _OpenNode:
    """A node whose end tag has not been reached yet.

    Args:
        node (`Node`): the node.
        content_start (`int`): the byte offset in the wrapped source at which its content starts.
    """

    node: Node
    content_start: int


def read_xml(markup: str) -> Node:
    """Parse an XML document, or a part of one that need not have a root element.

    An element is part of a sentence if there is text next to it, or if HTML has an inline element with the same name.

    Raises:
        ValueError: if the XML is not well-formed, or if elements are nested more than 200 levels deep.
    """
    prolog = _find_prolog(markup)
    # The wrapper element must not contain a prolog.
    markup_with_blank_prolog = _blank_out(prolog) + markup.removeprefix(prolog)
    wrapped_source = f"{_WRAPPER_START}{markup_with_blank_prolog}{_WRAPPER_END}".encode()
    events = _parse(wrapped_source, markup)
    root = _build_tree(events, wrapped_source)
    if prolog:
        # This must be the first change of the tree, because it removes the spaces from the start of the first text.
        _restore_prolog(root, prolog)

    # A document without prolog and tags may be escaped HTML itself. `_build_tree` sets `raw_content` only for elements.
    # The call has no effect unless the root has a single child, which is a text.
    root.raw_content = markup_with_blank_prolog
    replace_escaped_html(root)
    assign_roles(root, escape_xml, is_sentence=False)
    return root


def _find_prolog(markup: str) -> str:
    """Return the prolog of a document: everything up to the document type, or only the XML declaration.

    It is empty if the document has neither.
    """
    prolog_match = _PROLOG.match(markup)
    if prolog_match is None:
        return ""
    return prolog_match[0]


def _blank_out(prolog: str) -> str:
    """Return spaces in place of all characters but line breaks, so that positions in error messages stay correct."""
    # "." does not match line breaks.
    return re.sub(".", " ", prolog)


def _parse(wrapped_source: bytes, markup: str) -> list[_Event]:
    """Parse a document inside its wrapper element, and return the tags, texts, and other markup that expat finds.

    Args:
        wrapped_source: the document inside its wrapper element, in UTF-8.
        markup: the document itself, which an error message quotes.

    Raises:
        InputError: if the document is not well-formed.
    """
    parser = expat.ParserCreate("utf-8")
    events: list[_Event] = []

    def record(event_type: _EventType, text: str = "", attributes: Mapping[str, str | None] = _NO_ATTRIBUTES) -> None:
        """Add an event to the list. Handlers are called when the parser is at the start of the event."""
        events.append(_Event(parser.CurrentByteIndex, event_type, text, attributes))

    parser.StartElementHandler = lambda name, attributes: record("start", name, attributes)
    parser.EndElementHandler = lambda name: record("end", name)
    parser.CharacterDataHandler = lambda text: record("text", text)
    parser.CommentHandler = lambda comment: record("other")
    parser.ProcessingInstructionHandler = lambda target, instruction: record("other")
    parser.StartCdataSectionHandler = lambda: record("cdata")
    parser.EndCdataSectionHandler = lambda: record("cdata")
    try:
        parser.Parse(wrapped_source, True)
    except expat.ExpatError as error:
        raise _error_with_place(markup, error) from None
    return events


def _error_with_place(markup: str, error: expat.ExpatError) -> InputError:
    """Return an error that shows users the line and the character at which their XML is not well-formed."""
    # `offset` counts from 0, and `lineno` from 1.
    character = error.offset + 1
    if error.lineno == 1:
        # The wrapper's start tag is not part of the user's document.
        character -= len(_WRAPPER_START)
    place = f"character {character}"
    if "\n" in markup:
        place = f"line {error.lineno}, {place}"
    beginning = shorten(markup, _QUOTED_CHARACTERS)
    reason = expat.ErrorString(error.code)
    return InputError(
        f'{beginning!r} is not well-formed XML: {reason} at {place}; correct it, or give format="html" '
        "(--markup html), which repairs tags."
    )


def _restore_prolog(root: Node, prolog: str) -> None:
    """Insert the prolog of a document as the first node of its tree, and remove the spaces that stand in its place."""
    # `read_xml` has replaced the prolog with as many spaces and line breaks, so the tree starts with a text.
    first_text = root.children[0]
    assert isinstance(first_text, str)
    root.children[0] = first_text[len(prolog) :]
    root.children.insert(0, Node(Role.BLOCK, prolog))


def _build_tree(events: list[_Event], wrapped_source: bytes) -> Node:
    """Build the tree of a document from the events of the XML parser, and return the root of the tree.

    Args:
        events: the events of the wrapped source. The first event is the start tag of the wrapper element, and the last
            one is its end tag. The wrapper element is not part of the tree.
        wrapped_source: the document inside the wrapper element, in UTF-8. All positions are byte offsets in it.

    For example, the wrapped source "<r>one <b>two</b></r>" has these events:

        position    0     3     7     10    13    17
        type        start text  start text  end   end
        source      <r>   one   <b>   two   </b>  </r>

    The source of `<b>` is from 7 up to 10. Its content starts at 10, and ends at 13, where its end tag starts.
    """
    root = Node(Role.BLOCK, raw="")
    # The root, and the elements whose end tags have not been reached yet, each inside the one before it.
    open_nodes = [_OpenNode(root, content_start=len(_WRAPPER_START))]
    events_after_wrapper_start = events[1:]
    for event, next_event in pairwise(events_after_wrapper_start):
        event_source = wrapped_source[event.position : next_event.position].decode()
        parent = open_nodes[-1].node
        if event.type == "text":
            _append_text(parent, event.data)
        elif event.type == "other":
            # Comments and processing instructions are written unchanged.
            parent.children.append(Node(Role.KEPT, raw=event_source))
        elif event.type == "start":
            check_depth(len(open_nodes), event_source)
            element = _read_start_tag(event, event_source)
            parent.children.append(element)
            open_nodes.append(_OpenNode(element, content_start=next_event.position))
        elif event.type == "end":
            ended = open_nodes.pop()
            if _may_contain_escaped_html(ended.node, open_nodes):
                ended.node.raw_content = wrapped_source[ended.content_start : event.position].decode()
        # A "cdata" event is needed only as `next_event`. The text inside the section has a "text" event.
    return root


def _read_start_tag(event: _Event, tag: str) -> Node:
    """Create the element for a start tag, or for an empty tag such as `<br/>`.

    Args:
        event: the event of the tag.
        tag: the source of the tag.
    """
    is_empty_tag = tag.endswith("/>")
    closing = "" if is_empty_tag else f"</{event.data}>"
    # `assign_roles` changes the role later.
    return Node(Role.INLINE, tag, closing, name=event.data, attributes=event.attributes)


def _may_contain_escaped_html(element: Node, open_nodes: list[_OpenNode]) -> bool:
    """Return True if the content of an element may be a text that contains HTML.

    `open_nodes` are the root of the tree and the elements around the given element, from the outermost to the
    innermost.
    """
    has_single_child = len(element.children) == 1
    # XHTML pages show escaped tags to their readers, so the texts on such a page are not HTML.
    is_on_page = len(open_nodes) > 1 and open_nodes[1].node.name == "html"
    return has_single_child and not is_on_page


def _append_text(parent: Node, text: str) -> None:
    """Append a text to the children of a node.

    If the last child is a string, the text is appended to this string, because expat splits a text at its entities.
    """
    if parent.children and isinstance(parent.children[-1], str):
        parent.children[-1] += text
    else:
        parent.children.append(text)
