"""Define the tree of nodes that represents an HTML or XML document, and functions that write it as markup."""

import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...support.user_errors import InputError
from .html_elements import TEXT_ATTRIBUTES


# White space that HTML and XML display as one space. It does not include no-break spaces.
_WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")
_FORBIDDEN_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
# The functions that read and write a tree call themselves for each level. Python's limit is about 1,000 nested calls.
_MOST_LEVELS = 200


class Role(Enum):
    """How a node is treated when the document is translated. The value of each member describes the treatment."""

    BLOCK = "ends the sentence before it, and has sentences of its own inside"
    INLINE = "is part of a sentence, and its text is translated"
    KEPT = "is part of a sentence, and is written unchanged"
    ESCAPED_HTML = "has a text that is HTML, which is translated as a document of its own"


@dataclass(eq=False)
class Node:
    """A node of the document tree: an element, or markup that is written unchanged, such as a comment.

    Args:
        role (`Role`): how the node is treated in the translation.
        raw (`str`, *optional*): the source of the start tag. For a node without children, this is the source of the
            whole node. If None, the start tag is written from `name` and `attributes`.
        closing (`str`): the end tag; empty if there is none.
        children (`list[Node | str]`): nodes and strings. Entities in the strings are decoded.
        name (`str`): the name of the element; empty if the node is not an element.
        attributes (`Mapping`): the attributes of the element. Attributes without a value have the value None.
        is_translated (`bool`): True if the texts inside the node are translated, including attribute values.
        raw_content (`str`): the source of an XML element's content if it may be escaped HTML; otherwise empty.
        html (`str`): the HTML that is escaped in `raw`; only for the role `ESCAPED_HTML`.
    """

    role: Role
    raw: str | None = None
    closing: str = ""
    children: "list[Node | str]" = field(default_factory=list)
    name: str = ""
    attributes: Mapping[str, str | None] = field(default_factory=dict)
    is_translated: bool = True
    raw_content: str = ""
    html: str = ""

    @property
    def opening(self) -> str:
        """The source of the start tag."""
        # A node that is written unchanged has the source of its start tag in `raw`.
        if self.raw is not None:
            return self.raw
        # As in the HTML that browsers write, each value is in double quotes, and a missing value becomes "".
        tag = f"<{self.name}"
        for name, value in self.attributes.items():
            escaped_value = escape_html(value or "", is_attribute=True)
            tag += f' {name}="{escaped_value}"'
        return f"{tag}>"

    @property
    def has_no_tags(self) -> bool:
        """True if the node has no start tag and no end tag, and only groups its children."""
        return self.raw == "" and self.closing == ""

    def text_attributes(self) -> list[str]:
        """Return the names of the node's attributes whose values are translated, such as `alt`."""
        names: list[str] = []
        # A start tag with `raw` is written unchanged, so its attributes cannot be translated. This includes all of XML.
        if self.raw is not None or not self.is_translated:
            return names
        for name in TEXT_ATTRIBUTES:
            value = self.attributes.get(name)
            if value is not None and value.strip():
                names.append(name)
        return names


def escape_html(text: str, is_attribute: bool = False) -> str:
    """Escape a text for HTML in the same way as browsers do. For example, a no-break space becomes `&nbsp;`."""
    escaped = html.escape(text, quote=False).replace("\xa0", "&nbsp;")
    if is_attribute:
        escaped = escaped.replace('"', "&quot;")
    return escaped


def replace_forbidden_in_xml(text: str) -> str:
    """Replace each character that XML forbids, such as NUL, with a space."""
    return _FORBIDDEN_IN_XML.sub(" ", text)


def escape_xml(text: str) -> str:
    """Escape a text for XML, and replace each character that XML forbids with a space."""
    return html.escape(replace_forbidden_in_xml(text), quote=False)


def collapse_spaces(text: str) -> str:
    """Replace each run of white space with one space, as browsers display it."""
    return _WHITE_SPACE.sub(" ", text)


def write_node(node: Node | str, escape: Callable[[str], str]) -> str:
    """Return the markup of a string, or of a node with everything inside it. `escape` is applied to all strings."""
    if isinstance(node, str):
        return escape(node)
    content = "".join(write_node(child, escape) for child in node.children)
    return f"{node.opening}{content}{node.closing}"


def iterate_names(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the depth and the name of each element inside a node, in document order.

    The children of the node have the given depth, and each further level of nesting adds 1. For example, the content
    "<p>one <b>two</b></p>" yields (0, "p") and (1, "b").
    """
    for child in node.children:
        if isinstance(child, Node):
            if child.name:
                yield depth, child.name
            yield from iterate_names(child, depth + 1)


def check_depth(depth: int, tag: str) -> None:
    """Raise InputError if a tag is nested inside too many elements."""
    if depth > _MOST_LEVELS:
        raise InputError(f"more than {_MOST_LEVELS} tags are inside each other, the last one {tag!r}; close them.")
