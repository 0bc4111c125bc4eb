"""Parse XML into a tree of nodes with expat, the XML parser of Python's standard library."""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class _Event:
    """A tag, a text, or other markup that expat found in the source.

    Args:
        position (`int`): the byte offset in the source at which it starts.
        type (`str`): "start" and "end" are tags. "other" is a comment or a processing instruction. "cdata" is the start
            or the end of a CDATA section, which is recorded because it marks the end of the tag before it.
        data (`str`): the name of an element, or a text with decoded entities.
        attributes (`dict`): the attributes of a start tag.
    """

    position: int
    type: Literal["start", "end", "text", "cdata", "other"]
    data: str = ""
    attributes: Mapping[str, str | None] = field(default_factory=dict)


def read_xml(markup: str) -> Node:
    """Parse an XML document, or a part of one that need not have a root element.

    An element is part of a sentence if there is text next to it, or if HTML has an inline element with the same name.

    Raises:
        ValueError: if the XML is not well-formed, or if elements are nested more than 200 levels deep.
    """
    prolog_match = _PROLOG.match(markup)
    prolog = prolog_match[0] if prolog_match else ""
    # The wrapper element must not contain a prolog. Replacing it with spaces keeps the line and character numbers in
    # error messages correct.
    content = re.sub(".", " ", prolog) + markup[len(prolog) :]
    source = f"{_WRAPPER_START}{content}{_WRAPPER_END}".encode()
    events = _parse(source, markup)

    root = Node(Role.BLOCK, "")
    if prolog:
        root.children.append(Node(Role.BLOCK, prolog))
    # The wrapper's tags are the first and the last event.
    _add_children(root, events[1:-1], source, len(prolog))
    root.raw_content = content
    replace_escaped_html(root)
    assign_roles(root, escape_xml, is_sentence=False)
    return root


def _parse(source: bytes, markup: str) -> list[_Event]:
    """Parse a document inside its wrapper element, and return the tags, texts, and other markup that expat finds.

    Args:
        source: the wrapped document in UTF-8.
        markup: the document itself, which an error message quotes.

    Raises:
        InputError: if the document is not well-formed.
    """
    parser = expat.ParserCreate("utf-8")
    events: list[_Event] = []

    def add_start(name: str, attributes: dict[str, str]) -> None:
        events.append(_Event(parser.CurrentByteIndex, "start", name, attributes))

    def add_end(name: str) -> None:
        events.append(_Event(parser.CurrentByteIndex, "end", name))

    def add_text(text: str) -> None:
        events.append(_Event(parser.CurrentByteIndex, "text", text))

    def add_comment(comment: str) -> None:
        events.append(_Event(parser.CurrentByteIndex, "other"))

    def add_instruction(target: str, instruction: str) -> None:
        events.append(_Event(parser.CurrentByteIndex, "other"))

    def add_border_of_cdata() -> None:
        events.append(_Event(parser.CurrentByteIndex, "cdata"))

    parser.StartElementHandler = add_start
    parser.EndElementHandler = add_end
    parser.CharacterDataHandler = add_text
    parser.CommentHandler = add_comment
    parser.ProcessingInstructionHandler = add_instruction
    parser.StartCdataSectionHandler = add_border_of_cdata
    parser.EndCdataSectionHandler = add_border_of_cdata
    try:
        parser.Parse(source, True)
    except expat.ExpatError as error:
        raise _error_with_place(markup, error) from None
    return events


def _error_with_place(markup: str, error: expat.ExpatError) -> InputError:
    """Return an error for XML that is not well-formed; it names the line and the character in the user's document."""
    character = error.offset + 1
    if error.lineno == 1:
        character -= len(_WRAPPER_START)
    line = f"line {error.lineno}, " if "\n" in markup else ""
    return InputError(
        f"{shorten(markup, _QUOTED_CHARACTERS)!r} is not well-formed XML: {expat.ErrorString(error.code)} at {line}"
        f'character {character}; correct it, or give format="html" (--markup html), which repairs tags.'
    )


def _add_children(root: Node, events: list[_Event], source: bytes, prolog_length: int) -> None:
    """Build the tree of a document from the events that expat reported.

    Args:
        root: the root of the tree, to which the nodes and strings are added. It may have the prolog as a child.
        events: the events inside the wrapper element.
        source: the wrapped document in UTF-8.
        prolog_length: the number of spaces at the start of the document that replace the prolog; they are skipped.
    """
    # Each event ends where the next one starts. An empty tag, such as <br/>, has an end event without a length, which
    # starts at the same position as the next event.
    end_of_content = len(source) - len(_WRAPPER_END)
    positions = sorted({event.position for event in events} | {end_of_content})
    positions.append(len(source))

    open_nodes = [root]
    # The byte offset at which the content of each open node starts.
    content_starts = [len(_WRAPPER_START)]
    characters_to_skip = prolog_length
    for event in events:
        end_position = positions[bisect_right(positions, event.position)]
        raw = source[event.position : end_position].decode()
        parent = open_nodes[-1]
        if event.type == "text":
            text = event.data[characters_to_skip:]
            characters_to_skip = max(0, characters_to_skip - len(event.data))
            _append_text(parent, text)
        elif event.type == "start":
            check_depth(len(open_nodes), raw)
            closing = "" if raw.endswith("/>") else f"</{event.data}>"
            node = Node(Role.INLINE, raw, closing, name=event.data, attributes=event.attributes)
            parent.children.append(node)
            open_nodes.append(node)
            content_starts.append(end_position)
        elif event.type == "end":
            node = open_nodes.pop()
            content_start = content_starts.pop()
            # XHTML pages show escaped tags to their readers, so the texts on such a page are not HTML.
            is_on_page = open_nodes[-1] is not root and open_nodes[1].name == "html"
            if len(node.children) == 1 and not is_on_page:
                node.raw_content = source[content_start : event.position].decode()
        elif event.type == "other":
            parent.children.append(Node(Role.KEPT, raw))


def _append_text(parent: Node, text: str) -> None:
    """Append a text to the children of a node.

    If the last child is a string, the text is joined with it, because expat splits a text at its entities.
    """
    if parent.children and isinstance(parent.children[-1], str):
        parent.children[-1] += text
    else:
        parent.children.append(text)
