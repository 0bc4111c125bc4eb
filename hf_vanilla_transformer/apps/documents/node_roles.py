"""Decide whether each element of a document is translated as a block, is part of a sentence, or stays unchanged."""

import re
from collections.abc import Callable

from .escaped_html import replace_escaped_html
from .html_elements import BLOCKS, FOREIGN, NEVER_TRANSLATED, PHRASING, PREFORMATTED, RAW, READINGS
from .markup_tree import Node, Role


# One line break, or several with only white space between them.
_LINE_BREAKS = re.compile(r"\n\s*\n|\n")


def assign_roles(root: Node, escape: Callable[[str], str], is_sentence: bool) -> None:
    """Assign a role to each element inside a tree, and find text that is escaped HTML.

    Args:
        root (`Node`): the tree, which is changed.
        escape (`Callable`): escapes texts that are not translated, which become nodes.
        is_sentence (`bool`): True if elements that HTML does not define are part of a sentence even without text next
            to them, as in HTML documents. In XML, for example, `<entry><orth>one</orth></entry>` has no sentence
            outside of `<orth>`.
    """
    # The root is not an element, so it is not a <ruby>.
    _assign_roles_inside(root, escape, parent_may_be_inline=is_sentence, is_in_ruby=False)


def _assign_roles_inside(
    parent: Node, escape: Callable[[str], str], parent_may_be_inline: bool, is_in_ruby: bool
) -> None:
    """Assign roles to all elements inside a node, including nested elements, which are changed in place.

    Args:
        parent: the node, whose attribute `is_translated` must be set.
        escape: escapes texts that are not translated, which become nodes.
        parent_may_be_inline: True if the node may itself be part of a sentence. The elements inside it are then part of
            the same sentence, even if there is no text next to them.
        is_in_ruby: True if the node is, or is inside, a `<ruby>`. Readings, such as `<rt>`, stay unchanged there.
    """
    if parent.name in PREFORMATTED:
        _keep_line_breaks(parent)
    # Text directly inside the parent forms a sentence with the elements next to it, as in "<p>see <b>one</b></p>".
    is_in_sentence = parent_may_be_inline or _has_text(parent)
    # Comments are nodes without names. They already have a role.
    elements = [child for child in parent.children if isinstance(child, Node) and child.name]
    for element in elements:
        if _stays_unchanged(element, is_in_ruby):
            # Everything inside the element stays unchanged, too.
            element.role = Role.KEPT
            element.is_translated = False
        else:
            element.is_translated = _is_translated_inside(element, parent.is_translated)
            may_be_inline = _may_be_inline(element, is_in_sentence)
            # This also assigns the roles inside the element.
            _assign_role(element, escape, may_be_inline, is_in_ruby)


def _has_text(node: Node) -> bool:
    """Return True if there is text directly inside a node, apart from white space and nested elements."""
    texts = [child for child in node.children if isinstance(child, str)]
    return any(text.strip() for text in texts)


def _may_be_inline(element: Node, is_in_sentence: bool) -> bool:
    """Return True if an element is part of a sentence unless there are blocks inside it.

    `is_in_sentence` is True if there is a sentence around the element.
    """
    if element.name in BLOCKS:
        # Elements such as <p> are never part of a sentence.
        return False
    # Elements such as <b> belong to a sentence even without text next to them.
    return is_in_sentence or element.name in PHRASING


def _assign_role(element: Node, escape: Callable[[str], str], may_be_inline: bool, is_in_ruby: bool) -> None:
    """Assign roles to an element and to the elements inside it.

    Args:
        element: the element, whose attribute `is_translated` must be set.
        escape: escapes texts that are not translated.
        may_be_inline: True if the element is part of a sentence unless there are blocks inside it.
        is_in_ruby: True if the element is inside a `<ruby>`.
    """
    if element.is_translated and not may_be_inline:
        # An XML element outside of sentences may contain HTML as text, which is translated as a document. This comes
        # before the roles inside, because it looks for a text that is the only child of the element. If the element is
        # preformatted, `_assign_roles_inside` splits its text into several children.
        replace_escaped_html(element)
    # The roles inside come before the role of the element, because it depends on the roles of its children. Inside a
    # <ruby>, `is_in_ruby` stays True on all levels. `may_be_inline`, in contrast, is decided anew for each child.
    children_are_in_ruby = is_in_ruby or element.name == "ruby"
    _assign_roles_inside(element, escape, parent_may_be_inline=may_be_inline, is_in_ruby=children_are_in_ruby)
    element.role = _role_of_element(element, may_be_inline)
    if element.role is Role.BLOCK and not element.is_translated:
        # Blocks may contain elements that are translated, so only the texts stay unchanged. This comes last, because
        # the calls above look at the texts, and `_keep_texts` replaces them.
        _keep_texts(element, escape)


def _stays_unchanged(element: Node, is_in_ruby: bool) -> bool:
    """Return True if an element stays unchanged with everything inside it, whatever its attributes say."""
    # Pronunciations, as in `<ruby>漢<rt>kan</rt></ruby>`, are not translated.
    is_reading = is_in_ruby and element.name in READINGS
    return is_reading or _is_foreign(element)


def _is_foreign(element: Node) -> bool:
    """Return True if the content of an element is not text for readers. It may be a script or a drawing, for example.

    XML formats may use names such as `<object>` for elements with text. In XML, only the content of SVG, MathML, and
    elements such as `<script>` is foreign.
    """
    # `read_xml` sets `raw` for all elements, and `read_html` only for those in `RAW`.
    is_from_html = element.raw is None
    if is_from_html or element.name in RAW:
        return element.name in FOREIGN
    return element.name in ("svg", "math")


def _is_translated_inside(element: Node, is_translated_outside: bool) -> bool:
    """Return True if the texts inside an element are translated.

    The first of these rules that applies decides:

    1. With the class `notranslate`, the texts are not translated.
    2. With the attribute `translate`, they are translated if its value is "yes" or empty, but not if it is "no".
    3. Otherwise, they are translated if the texts of the parent are, unless `NEVER_TRANSLATED` contains the element.
    """
    class_names = element.attributes.get("class") or ""
    if "notranslate" in class_names.split():
        return False
    if "translate" in element.attributes:
        # An empty value means "yes". Values other than "yes" and "no" have no effect.
        value = (element.attributes["translate"] or "yes").lower()
        if value == "yes":
            return True
        if value == "no":
            return False
    return is_translated_outside and element.name not in NEVER_TRANSLATED


def _role_of_element(element: Node, may_be_inline: bool) -> Role:
    """Return the role of an element, which depends on the roles of its children.

    - An element that contains a BLOCK is a BLOCK itself, and so is an element for which `may_be_inline` is False.
    - Any other element is INLINE if its texts are translated.
    - If its texts are not translated, it is KEPT, together with everything inside it. However, if it contains an INLINE
      element, which is translated, it is a BLOCK.
    """
    roles_of_children = {child.role for child in element.children if isinstance(child, Node)}
    if Role.BLOCK in roles_of_children or not may_be_inline:
        return Role.BLOCK
    if element.is_translated:
        return Role.INLINE
    if Role.INLINE in roles_of_children:
        # A nested element is translated, as in <code>x <b translate="yes">one</b></code>.
        return Role.BLOCK
    return Role.KEPT


def _keep_texts(block: Node, escape: Callable[[str], str]) -> None:
    """Replace the texts of an untranslated block with nodes, so that they are written unchanged.

    A string would be translated. A node without children and without a name is written as its attribute `raw` says,
    unless it has the role ESCAPED_HTML.
    """
    children: list[Node | str] = []
    for child in block.children:
        if isinstance(child, str):
            # `raw` is markup, but the entities of strings are decoded. For example, the string "R&D" is escaped as
            # "R&amp;D". Strings are also escaped in this way when they are written, but `raw` is not escaped again.
            children.append(Node(Role.BLOCK, raw=escape(child)))
        else:
            children.append(child)
    block.children = children


def _keep_line_breaks(preformatted: Node) -> None:
    """Split the text of a preformatted element into lines, so that no sentence extends across a line break."""
    preformatted.children = _separate_lines(preformatted.children)
    starts_with_line_break = len(preformatted.children) > 1 and preformatted.children[0] == ""
    if starts_with_line_break and preformatted.raw is None:
        # Browsers ignore one line break after the start tag, so a text that starts with a line break needs two. The
        # first child is the empty line before the first line break, which becomes the additional line break.
        preformatted.children[0] = Node(Role.BLOCK, "\n")


def _separate_lines(children: list[Node | str]) -> list[Node | str]:
    """Split strings at line breaks, replace each line break with a node, and return the new list of children.

    Nested elements are changed in place.
    """
    separated: list[Node | str] = []
    for child in children:
        if isinstance(child, Node):
            child.children = _separate_lines(child.children)
            separated.append(child)
        else:
            separated += _split_lines(child)
    return separated


def _split_lines(text: str) -> list[Node | str]:
    """Split a text at line breaks, and return the lines with a node for each line break between them.

    For example, "one\\ntwo" becomes ["one", Node(Role.BLOCK, "\\n"), "two"].
    """
    lines: list[Node | str] = []
    start_of_line = 0
    for line_break in _LINE_BREAKS.finditer(text):
        lines.append(text[start_of_line : line_break.start()])
        lines.append(Node(Role.BLOCK, raw=line_break[0]))
        start_of_line = line_break.end()
    lines.append(text[start_of_line:])
    return lines
