"""Find and write HTML that XML elements contain as text, either escaped or in a CDATA section.

News feeds, for example, contain their articles in this form.
"""

import html
import re

from .html_elements import HTML_NAMES, VOID
from .markup_tree import Node, Role, escape_xml, replace_forbidden_in_xml


_TAG = re.compile(r"<(?P<is_end>/?)(?P<name>[a-zA-Z][\w:-]*+)(?:\s[^<>]*?)?(?P<is_empty>/?)>")
# A comment does not contain the start of another comment, so that searching takes linear time.
_COMMENT = re.compile(r"<!--(?>(?!<!--|-->).)*+-->", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][\da-fA-F]+|[a-zA-Z]\w*);")
_CDATA = re.compile(r"(?P<before>\s*<!\[CDATA\[)(?P<content>(?:(?!\]\]>).)*+)(?P<after>\]\]>\s*)", re.DOTALL)


def replace_escaped_html(element: Node) -> None:
    """If the text inside an XML element is HTML, replace it with a node whose HTML is translated as a document.

    For example, the text of `<content>&lt;p&gt;one&lt;/p&gt;</content>` is replaced, because it reads "<p>one</p>". The
    new node has the role `ESCAPED_HTML`. The element is changed in place.
    """
    # Without a source of the content, the element cannot contain escaped HTML.
    if not element.raw_content or len(element.children) != 1:
        return
    text = element.children[0]
    if not isinstance(text, str):
        return
    cdata_section = _CDATA.fullmatch(element.raw_content)
    if cdata_section is not None:
        # White space around the section is not part of the HTML.
        text = cdata_section["content"]
    if _is_html(text):
        element.children = [Node(Role.ESCAPED_HTML, raw=element.raw_content, html=text)]


def write_escaped_html(node: Node, translated_html: str) -> str:
    """Write translated HTML as the text of an XML element, and return the resulting XML.

    If the HTML of the ESCAPED_HTML node is in a CDATA section, the translated HTML is put in a CDATA section, too.
    Otherwise, it is escaped. It is also escaped if it contains "]]>", because this would end the section.
    """
    allowed_html = replace_forbidden_in_xml(translated_html)
    cdata_section = _CDATA.fullmatch(node.raw or "")
    if cdata_section is None or "]]>" in allowed_html:
        return escape_xml(allowed_html)
    # `before` and `after` are the marks at both ends of the section, with the white space around the section.
    return f"{cdata_section['before']}{allowed_html}{cdata_section['after']}"


def _is_html(text: str) -> bool:
    """Return True if a text is HTML, and False if it only mentions HTML tags.

    A text is HTML if it contains HTML tags, comments, or entities, and if each start tag has its end tag. For example,
    "Use <b> for bold" is not HTML.
    """
    text_without_comments, number_of_comments = _COMMENT.subn("", text)
    if "<!--" in text_without_comments:
        # A comment is not closed, or contains the start of another comment.
        return False
    has_tags = _TAG.search(text_without_comments) is not None
    has_markup = has_tags or number_of_comments > 0 or _has_entity(text)
    return has_markup and _has_complete_elements(text_without_comments)


def _has_complete_elements(text: str) -> bool:
    """Return True if all tags of a text are tags of HTML, and each start tag has its end tag.

    Tags without end tags, such as `<br>`, are complete by themselves. A text without tags is complete as well.
    """
    names_of_open_elements: list[str] = []
    for tag in _TAG.finditer(text):
        name = tag["name"].lower()
        if name not in HTML_NAMES:
            # This is not a tag of HTML, but, for example, "<filename>".
            return False
        has_no_end_tag = name in VOID or tag["is_empty"]
        if has_no_end_tag:
            continue
        if not tag["is_end"]:
            names_of_open_elements.append(name)
            continue
        # An end tag belongs to the last start tag that has no end tag yet.
        last_name = names_of_open_elements[-1:]
        if last_name != [name]:
            return False
        names_of_open_elements.pop()
    return not names_of_open_elements


def _has_entity(text: str) -> bool:
    """Return True if a text contains an entity that HTML defines, such as "&amp;".

    For example, "R&D;" contains no entity, because HTML does not define "&D;".
    """
    return any(html.unescape(entity[0]) != entity[0] for entity in _ENTITY.finditer(text))
