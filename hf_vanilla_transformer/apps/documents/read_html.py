"""Parse HTML into a tree of nodes with lexbor, which builds the same tree as a browser without scripts."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...support.user_errors import needing
from .html_elements import HTML_INSIDE_FOREIGN, RAW, REQUIRED_PARENTS, VOID
from .markup_tree import Node, Role, check_depth, escape_html
from .node_roles import assign_roles


if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


# White space, comments, and `<?xml ...?>`, which HTML reads as a comment. The group is possessive because backtracking
# would take exponential time.
_LEADING_COMMENTS = r"(?>\s+|<!--.*?-->|<\?.*?>)*+"
_START_OF_PAGE = re.compile(rf"{_LEADING_COMMENTS}<(!doctype|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_DOCTYPE = re.compile(rf"{_LEADING_COMMENTS}(?P<doctype><!doctype[^>]*>)", re.IGNORECASE | re.DOTALL)
_FIRST_TAG = re.compile(rf"{_LEADING_COMMENTS}<(?P<name>[a-zA-Z]+)", re.DOTALL)


def read_html(markup: str) -> Node:
    """Parse an HTML page, or a fragment of one, in the same way as browsers do.

    In a page, missing elements that browsers add, such as `<head>`, are added. Nothing is added to a fragment.

    Raises:
        ImportError: if selectolax is missing; the message names the extra to install.
        ValueError: if elements are nested more than 200 levels deep.
    """
    # The document type as it is written in the markup, because lexbor does not preserve its spelling.
    doctype_match = _DOCTYPE.match(markup)
    doctype = doctype_match["doctype"] if doctype_match else ""
    first_node = _parse_to_first_node(markup)
    children = list(_read_siblings(first_node, doctype, depth=1, is_html=True))
    root = Node(Role.BLOCK, raw="", children=children)
    # In HTML, elements with unknown names are part of a sentence even if there is no text next to them.
    assign_roles(root, escape_html, is_sentence=True)
    return root


def _parse_to_first_node(markup: str) -> "LexborNode | None":
    """Parse HTML with lexbor, and return the first of the nodes on the top level; None if the markup is empty.

    The other nodes on the top level follow it: each node has the next one as its attribute `next`.
    """
    with needing("documents", "HTML needs"):
        from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

    # By default, lexbor copies content from another element into the rare element `<selectedcontent>`, as browsers do.
    # The option `WO_EVENTS` ("without events") switches this off, because the document must stay as it is.
    options = LexborDocumentOptions.WO_EVENTS
    is_page = _START_OF_PAGE.match(markup) is not None
    if is_page:
        return _first_node_of_page(LexborHTMLParser(markup, options=options))
    # For example, a fragment that starts with <td> must be parsed as the content of a "tr".
    name_of_parent = _parent_of_fragment(markup)
    fragment = LexborHTMLParser(markup, is_fragment=True, fragment_tag=name_of_parent, options=options)
    # The `root` of a fragment is its first node.
    return fragment.root


def _first_node_of_page(page: "LexborHTMLParser") -> "LexborNode | None":
    """Return the first node of a page: the document type, a comment, or the `<html>` element."""
    # The `root` of a page is the <html> element, which lexbor adds if it is missing.
    html_element = page.root
    assert html_element is not None
    document = html_element.parent
    assert document is not None
    return document.first_child


def _parent_of_fragment(markup: str) -> str:
    """Return the name of the element inside which a fragment must be parsed, such as "tr" for "<td>one</td>"."""
    first_tag = _FIRST_TAG.match(markup)
    if first_tag is None:
        return "div"
    return REQUIRED_PARENTS.get(first_tag["name"].lower(), "div")


def _read_siblings(lexbor_node: "LexborNode | None", doctype: str, depth: int, is_html: bool) -> Iterator[Node | str]:
    """Convert a lexbor node and all siblings after it to nodes and strings.

    Args:
        lexbor_node: the first node; None if there are no nodes.
        doctype: the source of the document type, because lexbor does not preserve its spelling.
        depth: the number of elements around the nodes, plus 1.
        is_html: False inside SVG and MathML.
    """
    while lexbor_node is not None:
        if lexbor_node.is_text_node:
            yield lexbor_node.text_content or ""
        elif lexbor_node.is_element_node:
            yield _read_element(lexbor_node, depth, is_html)
        elif lexbor_node.tag == "-doctype":
            # This is lexbor's name for a document type.
            yield Node(Role.KEPT, raw=doctype)
        else:
            yield Node(Role.KEPT, raw=_read_comment(lexbor_node))
        lexbor_node = lexbor_node.next


def _read_element(lexbor_node: "LexborNode", depth: int, is_html: bool) -> Node:
    """Convert a lexbor element and its descendants to a node.

    Args:
        lexbor_node: the element.
        depth: the number of elements around it, plus 1.
        is_html: False inside SVG and MathML.
    """
    name = lexbor_node.tag or ""
    check_depth(depth, f"<{name}>")
    # `assign_roles` changes the role later.
    node = Node(Role.INLINE, name=name, attributes=dict(lexbor_node.attributes))
    node.closing = _write_end_tag(name, is_html)
    if is_html and name in RAW:
        # Browsers do not parse the content, such as a script, so it must not be escaped when the node is written.
        # Therefore, it becomes part of `raw`, which replaces the start tag.
        node.raw = node.opening + _read_only_text(lexbor_node)
        return node
    first_child = _first_child_of(lexbor_node, is_html)
    is_html_inside = _is_html_inside(name, is_html)
    # A document type is never inside an element.
    node.children = list(_read_siblings(first_child, doctype="", depth=depth + 1, is_html=is_html_inside))
    return node


def _write_end_tag(name: str, is_html: bool) -> str:
    """Return the end tag of an element. It is empty for an element of HTML that has none, such as `<br>`."""
    if is_html and name in VOID:
        return ""
    return f"</{name}>"


def _first_child_of(lexbor_node: "LexborNode", is_html: bool) -> "LexborNode | None":
    """Return the first child of a lexbor element; None if it has no children."""
    if is_html and lexbor_node.tag == "template":
        # lexbor has the children of a `<template>` in a separate tree.
        return lexbor_node.template_fragments()[0].first_child
    return lexbor_node.first_child


def _read_only_text(lexbor_node: "LexborNode") -> str:
    """Return the text inside an element that contains one text or nothing, such as a script."""
    text_node = lexbor_node.first_child
    if text_node is None:
        return ""
    return text_node.text_content or ""


def _is_html_inside(name: str, is_html: bool) -> bool:
    """Return True if the content of an element is HTML, and False if it is SVG or MathML.

    Args:
        name: the name of the element.
        is_html: True if the element itself is in HTML.
    """
    if name in HTML_INSIDE_FOREIGN:
        return True
    return is_html and name not in ("svg", "math")


def _read_comment(lexbor_node: "LexborNode") -> str:
    """Return the source of a comment, or of any other lexbor node that is neither an element nor a text."""
    source = lexbor_node.html or ""
    is_first_of_fragment = lexbor_node.parent is None and lexbor_node.prev is None
    if not is_first_of_fragment:
        return source
    # For the first node of a fragment, lexbor returns the source of the whole fragment, so the source of all siblings
    # after the node is removed.
    length = len(source)
    sibling = lexbor_node.next
    while sibling is not None:
        length -= len(sibling.html or "")
        sibling = sibling.next
    return source[:length]
