"""Decide whether each element of a document is translated as a block, is part of a sentence, or stays unchanged."""

import re
from collections.abc import Callable

from .escaped_html import replace_escaped_html
from .html_elements import BLOCKS, FOREIGN, NEVER_TRANSLATED, PHRASING, PREFORMATTED, RAW, READINGS
from .markup_tree import Node, Role


_LINE_BREAKS = re.compile(r"(\n\s*\n|\n)")


def assign_roles(root: Node, escape: Callable[[str], str], is_sentence: bool) -> None:
    """Assign a role to each element inside a tree, and find text that is escaped HTML.

    Args:
        root (`Node`): the tree, which is changed.
        escape (`Callable`): escapes texts that are not translated, which become nodes.
        is_sentence (`bool`): True if elements that HTML does not define are part of a sentence even without text next
            to them, as in HTML documents. In XML, for example, `<entry><orth>one</orth></entry>` has no sentence
            outside of `<orth>`.
    """
    _assign_roles_inside(root, escape, is_sentence, is_translated=True, is_in_ruby=False)


def _assign_roles_inside(
    parent: Node, escape: Callable[[str], str], is_sentence: bool, is_translated: bool, is_in_ruby: bool
) -> None:
    """Assign roles to the elements inside a node.

    `escape` and `is_sentence` are described in `assign_roles`. In addition, `is_translated` is True if the texts of the
    node are translated, and `is_in_ruby` is True if the node is inside a `<ruby>`.
    """
    has_text = any(isinstance(child, str) and child.strip() for child in parent.children)
    has_sentence = is_sentence or has_text
    may_have_readings = is_in_ruby or parent.name == "ruby"
    if parent.name in PREFORMATTED:
        _keep_line_breaks(parent)
    for child in parent.children:
        if isinstance(child, str) or not child.name:
            # Strings have no role, and comments already have one.
            continue
        is_reading = may_have_readings and child.name in READINGS
        if is_reading or _is_foreign(child):
            child.role = Role.KEPT
            child.is_translated = False
            continue
        child.is_translated = _is_translated_inside(child, is_translated)
        is_inline = child.name not in BLOCKS and (has_sentence or child.name in PHRASING)
        if child.is_translated and not is_inline:
            replace_escaped_html(child)
        _assign_roles_inside(child, escape, is_inline, child.is_translated, may_have_readings)
        child.role = _role_of_element(child, is_inline)
        if child.role is Role.BLOCK and not child.is_translated:
            _keep_texts(child, escape)


def _is_foreign(element: Node) -> bool:
    """Return True if the content of an element is not text that readers see, such as a script or a drawing.

    XML formats may use names such as `<object>` for elements with text. In XML, only the content of SVG, MathML, and
    elements such as `<script>` is foreign.
    """
    is_from_html = element.raw is None
    if is_from_html or element.name in RAW:
        return element.name in FOREIGN
    return element.name in ("svg", "math")


def _is_translated_inside(element: Node, is_translated_outside: bool) -> bool:
    """Return True if the texts inside an element are translated.

    The element's `class` and `translate` attributes decide this. If they do not, the element's name and its parent
    decide.
    """
    class_names = (element.attributes.get("class") or "").split()
    if "notranslate" in class_names:
        return False
    if "translate" in element.attributes:
        # In HTML, an empty value means "yes", and any other value means that the attribute has no effect.
        value = (element.attributes["translate"] or "yes").lower()
        if value == "yes":
            return True
        if value == "no":
            return False
    return is_translated_outside and element.name not in NEVER_TRANSLATED


def _role_of_element(element: Node, is_inline: bool) -> Role:
    """Return the role of an element, after its children have received their roles.

    `is_inline` is True if the element may be part of a sentence. It becomes a block if it contains one.
    """
    roles_inside = {child.role for child in element.children if isinstance(child, Node)}
    if Role.BLOCK in roles_inside:
        return Role.BLOCK
    if not element.is_translated:
        if Role.INLINE in roles_inside:
            # A nested element is translated, as in <code>x <b translate="yes">one</b></code>.
            return Role.BLOCK
        if is_inline:
            return Role.KEPT
    return Role.INLINE if is_inline else Role.BLOCK


def _keep_texts(block: Node, escape: Callable[[str], str]) -> None:
    """Replace the texts of an untranslated block with nodes, so that they are written unchanged."""
    children: list[Node | str] = []
    for child in block.children:
        if isinstance(child, str):
            children.append(Node(Role.BLOCK, escape(child)))
        else:
            children.append(child)
    block.children = children


def _keep_line_breaks(preformatted: Node) -> None:
    """Split the text of a preformatted element into lines, so that no sentence extends across a line break."""
    preformatted.children = _separate_lines(preformatted.children)
    starts_with_line_break = len(preformatted.children) > 1 and preformatted.children[0] == ""
    if starts_with_line_break and preformatted.raw is None:
        # Browsers ignore one line break after the start tag, so a text that starts with a line break needs two.
        preformatted.children[0] = Node(Role.BLOCK, "\n")


def _separate_lines(children: list[Node | str]) -> list[Node | str]:
    """Split strings at line breaks, replace each line break with a node, and return the new list of children.

    For example, ["one\\ntwo"] becomes ["one", Node(Role.BLOCK, "\\n"), "two"]. Nested elements are changed in place.
    """
    separated: list[Node | str] = []
    for child in children:
        if isinstance(child, Node):
            child.children = _separate_lines(child.children)
            separated.append(child)
            continue
        # Lines and line breaks alternate.
        for number, line_or_break in enumerate(_LINE_BREAKS.split(child)):
            is_break = number % 2 == 1
            separated.append(Node(Role.BLOCK, line_or_break) if is_break else line_or_break)
    return separated
