"""Read the inline elements of a text, and protect the elements that must stay unchanged in the translation.

The content of a text is a list of strings and elements. For example, "press <b>the key <kbd>k</kbd></b>" consists of
the string "press " and an element `<b>`, which contains the string "the key " and the protected element `<kbd>`.
Protected elements are hidden from the model, so it translates "press the key".
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...model.input_checks import has_letters
from ...translation.words_of_tokens import UNSPACED_LETTER
from .html_elements import READINGS
from .markup_tree import Node, Role
from .placeholders import ELEMENT, find_placeholders


OPENING_PUNCTUATION = frozenset("([{«“„‘‚‹¿¡「『（【《〈")  # noqa: RUF001
CLOSING_PUNCTUATION = frozenset(",.;:!?)]}»”’›、。，；：！？」』）】》〉…")  # noqa: RUF001
# The closing mark for each opening bracket or quotation mark that may enclose a protected element.
_CLOSING_MARKS = dict(zip('([{«“„‘‹"「（', ')]}»”“’›"」）', strict=True))  # noqa: RUF001
_OPENING_CLASS = re.escape("".join(_CLOSING_MARKS))
_MARKS_CLASS = re.escape("".join([*_CLOSING_MARKS, *_CLOSING_MARKS.values()]))
# An opening mark at the end of a text, such as "(" in "see (". French quotation marks have a space inside, as in "« ".
_OPENING_MARK_AT_END = re.compile(rf"(?P<mark>[{_OPENING_CLASS}])(?P<space>(?:(?<=[«‹])\s)?)\Z")  # noqa: RUF001
# Text that joins two protected elements, such as "+" or ", ": punctuation, symbols and spaces, but no sentence end and
# no bracket or quotation mark.
_JOINING = re.compile(rf"(?:(?![.!?…]\s|[。！？])[^\w\s{_MARKS_CLASS}]|\s|_)*")  # noqa: RUF001


@dataclass(eq=False)
class Element:
    """An inline element of a text, which may be protected from translation.

    Args:
        node (`Node`): the node that is written into the translated document.
        children (`list[str | Element]`): the content of the element; empty if the element is protected.
        is_protected (`bool`): True if the node and everything inside it is written unchanged and hidden from the model.
        start, end (`int`): the range of characters inside the element, in the text that the model translates. For an
            element without text, the range is empty and marks the element's position.
        follows_word (`bool`): True if a protected element belongs to the word before it, as a footnote mark does.
    """

    node: Node
    children: "list[str | Element]" = field(default_factory=list)
    is_protected: bool = False
    start: int = 0
    end: int = 0
    follows_word: bool = False

    @property
    def all_text(self) -> str:
        """All text inside the node, including the text of nested nodes."""
        return "".join(_iterate_texts(self.node))

    @property
    def child_elements(self) -> "list[Element]":
        """The children that are elements, without the strings."""
        return [child for child in self.children if isinstance(child, Element)]

    @property
    def is_reading(self) -> bool:
        """True if the element is part of a `<ruby>` and shows how a text is pronounced, such as `<rt>`."""
        return self.node.name in READINGS


@dataclass(frozen=True)
class Tag:
    """The start tag or the end tag of an inline element."""

    element: Element
    is_opening: bool


# A text with markup is a sequence of strings, tags, and protected elements in document order.
Token = str | Tag | Element


def iterate_tokens(content: Sequence[str | Element]) -> Iterator[Token]:
    """Yield the strings, tags, and protected elements of a text's content in document order."""
    for child in content:
        if isinstance(child, str) or child.is_protected:
            yield child
            continue
        yield Tag(child, is_opening=True)
        yield from iterate_tokens(child.children)
        yield Tag(child, is_opening=False)


def iterate_elements(content: Sequence[str | Element]) -> Iterator[Element]:
    """Yield all elements of a text's content, including nested elements."""
    for child in content:
        if isinstance(child, Element):
            yield child
            yield from iterate_elements(child.children)


def read_elements(nodes: Sequence[Node | str]) -> list[str | Element]:
    """Convert the nodes of a text to strings and elements, and protect the elements that must not be translated.

    These elements are protected:

    1. placeholders, such as "{name}"
    2. nodes with the role KEPT
    3. elements without letters, such as the footnote mark `<sup>[1]</sup>`, an image, or an empty element

    Protected elements that belong together are joined; see `_extend_protected`. If the whole text has no letters, its
    numbers are translated. In this case, elements with numbers are not protected.

    Returns:
        `list[str | Element]`: the content of the text; empty if there is nothing to translate.
    """
    # This protects the elements of the first two kinds.
    content = _read_content(nodes)
    # All text outside of these elements, one string after the other.
    text = "".join(token for token in iterate_tokens(content) if isinstance(token, str))
    has_letter_or_digit = any(map(str.isalnum, text))
    if not has_letter_or_digit:
        return []
    # This writes the attributes `start` and `end` of all elements in `content`. They are positions in `text`, because
    # `_set_ranges` counts the characters of the same strings that are joined above. For example, the `<b>` of
    # "press <b>k</b>" gets the start 6 and the end 7.
    _set_ranges(content, start=0)
    # This protects the elements of the third kind. It must come after `_set_ranges`, because it looks at
    # `text[element.start : element.end]`. After this call, the positions are not needed any more: `SpacedText` later
    # overwrites them with positions in the text that the model sees.
    return _protect_elements(content, text, text_has_letters=has_letters(text))


def _read_content(nodes: Sequence[Node | str]) -> list[str | Element]:
    """Convert the nodes of a text to elements. Placeholders and nodes with the role `KEPT` are protected."""
    content: list[str | Element] = []
    for node in _group_placeholders(nodes):
        if isinstance(node, str):
            content.append(node)
        elif node.role is Role.KEPT:
            content.append(Element(node, is_protected=True))
        else:
            content.append(Element(node, _read_content(node.children)))
    return content


def _set_ranges(content: Sequence[str | Element], start: int) -> int:
    """Set the character range of each element in some content.

    Args:
        content: strings and elements; the elements are changed.
        start: the position at which the content starts.

    Returns:
        `int`: the position at which the content ends.
    """
    position = start
    for child in content:
        if isinstance(child, str):
            position += len(child)
        else:
            child.start = position
            position = _set_ranges(child.children, position)
            child.end = position
    return position


def _protect_elements(content: list[str | Element], text: str, text_has_letters: bool) -> list[str | Element]:
    """Protect elements that have nothing to translate, and return the content with joined protected elements.

    The elements in `content` are changed in place, but the list itself is not, and joined elements are new.

    Args:
        content: the content of the whole text or of one of its elements.
        text: the whole text, to which the ranges of the elements refer.
        text_has_letters: True if the whole text contains a letter.
    """
    for child in content:
        if isinstance(child, str) or child.is_protected:
            continue
        if _has_nothing_to_translate(child, text, text_has_letters):
            child.is_protected = True
            # The element is written from its node, which still has the whole content.
            child.children = []
        else:
            child.children = _protect_elements(child.children, text, text_has_letters)
    return _extend_protected(content)


def _extend_protected(content: list[str | Element]) -> list[str | Element]:
    """Join protected elements that belong together, and add the brackets and quotation marks that enclose them.

    For example, `("<code>x</code>", <code>y</code>)` becomes one protected element.
    """
    # The first call adds the quotation marks in the example. Only then is the text between the elements ", ", which
    # joins them.
    with_marks = _add_enclosing_marks(content)
    joined = _join_protected(with_marks)
    # The second call adds the brackets around the joined elements.
    return _add_enclosing_marks(joined)


def _has_nothing_to_translate(element: Element, text: str, text_has_letters: bool) -> bool:
    """Return True if the text inside an element can be hidden from the model.

    This is the case if the element contains no letters and is not inside a word. If the whole text has no letters, this
    is the case only if the element is blank.

    Args:
        element: the element.
        text: the whole text, to which the range of the element refers.
        text_has_letters: True if the whole text contains a letter. Otherwise, its numbers are translated.
    """
    text_inside = text[element.start : element.end]
    if not text_has_letters:
        is_blank = not text_inside.strip()
        return is_blank
    if has_letters(text_inside):
        return False
    # A digit inside a word, such as the "2" in "H2O", must not be hidden, because the model would see a different word.
    return not _is_inside_word(element, text)


def _is_inside_word(element: Element, text: str) -> bool:
    """Return True if the same word continues on both sides of an element.

    For example, the "2" in "H<sub>2</sub>O" is inside a word. If it were protected, the model would see the word "HO".
    The result is always False in scripts without spaces, because they do not show where words end.
    """
    character_before = text[max(0, element.start - 1) : element.start]
    character_after = text[element.end : element.end + 1]
    text_inside = text[element.start : element.end]
    return text_inside.isalnum() and is_spaced_letter(character_before) and is_spaced_letter(character_after)


def is_spaced_letter(character: str) -> bool:
    """Return True if a character is a letter or digit of a script that separates words with spaces."""
    return character.isalnum() and not UNSPACED_LETTER.match(character)


def _join_protected(content: list[str | Element]) -> list[str | Element]:
    """Join protected elements that are separated only by punctuation, symbols, or white space.

    For example, "<kbd>Ctrl</kbd>+<kbd>C</kbd>" becomes one protected element, so that the model cannot move the "+".
    """
    joined: list[str | Element] = []
    first = 0
    while first < len(content):
        last = _find_last_member(content, first)
        if last == first:
            # There is nothing to join.
            joined.append(content[first])
        else:
            joined.append(_protect_as_group(content[first : last + 1]))
        first = last + 1
    return joined


def _find_last_member(content: list[str | Element], first: int) -> int:
    """Return the index of the last protected element that is joined with the one at the index `first`.

    If there is none, the result is `first`.
    """
    last = first
    next_member = _find_next_member(content, first)
    while next_member is not None:
        last = next_member
        next_member = _find_next_member(content, last)
    return last


def _find_next_member(content: list[str | Element], index: int) -> int | None:
    """Return the index of the protected element that is joined with the protected element at `index`.

    At most one string may be between the two elements, and it must be a joining text, such as "+". Only protected
    elements with visible letters or digits are joined. The result is None if there is no such element at `index`, or
    none that follows it in this way.
    """
    if not _is_visible(content[index]):
        return None
    next_index = index + 1
    if next_index < len(content) and _is_joining_text(content[next_index]):
        # The text, such as "+", is between the two elements.
        next_index += 1
    if next_index < len(content) and _is_visible(content[next_index]):
        return next_index
    return None


def _is_joining_text(child: str | Element) -> bool:
    """Return True if a child is a string that joins the protected elements before and after it, such as "+" or ", "."""
    return isinstance(child, str) and _JOINING.fullmatch(child) is not None


def _add_enclosing_marks(content: list[str | Element]) -> list[str | Element]:
    """Extend protected elements to include the brackets or quotation marks that enclose them.

    For example, in "see (<code>x</code>) here", the protected element becomes "(<code>x</code>)". Otherwise, the model
    would see an empty pair of brackets.
    """
    enclosed = list(content)
    # The number of items stays the same until the end, so that all indices stay valid.
    for index in range(1, len(enclosed) - 1):
        # Items are read from `enclosed`, not `content`: in "(x)(y)", x may already have taken ")" from the text ")(".
        text_before, child, text_after = enclosed[index - 1 : index + 2]
        enclosed[index - 1 : index + 2] = _move_marks_inside(text_before, child, text_after)
    # Texts that consisted only of the marks are empty now.
    return [child for child in enclosed if child != ""]


def _move_marks_inside(
    text_before: str | Element, child: str | Element, text_after: str | Element
) -> list[str | Element]:
    """Move a pair of marks from the texts around a visible protected element into the element.

    Returns the three items that replace the arguments. They are the arguments themselves if there are no such marks.
    """
    if not isinstance(text_before, str) or not isinstance(text_after, str) or not _is_visible(child):
        return [text_before, child, text_after]
    marks = _find_enclosing_marks(text_before, text_after)
    if marks is None:
        return [text_before, child, text_after]
    group = _protect_as_group([marks.opening, child, marks.closing])
    return [text_before.removesuffix(marks.opening), group, text_after.removeprefix(marks.closing)]


@dataclass(frozen=True)
class _EnclosingMarks:
    """The brackets or quotation marks around an element, each with the space between it and the element."""

    opening: str
    closing: str


def _find_enclosing_marks(text_before: str, text_after: str) -> _EnclosingMarks | None:
    """Return the marks between which an element is, or None if the texts around it do not have a pair of marks there.

    For example, with "see (" before the element and ") here" after it, the marks are "(" and ")".
    """
    opening = _OPENING_MARK_AT_END.search(text_before)
    if opening is None:
        return None
    # If there is a space after the opening mark, as in "« ", there must be the same space before the closing mark.
    closing = opening["space"] + _CLOSING_MARKS[opening["mark"]]
    if not text_after.startswith(closing):
        return None
    # The whole match is the opening mark and its space.
    return _EnclosingMarks(opening=opening[0], closing=closing)


def _is_visible(child: str | Element) -> bool:
    """Return True if a child is a protected element with visible letters or digits, such as code.

    An image, for example, is protected, but has no letters or digits. The reading of a `<ruby>` does not count either.
    """
    if isinstance(child, str) or not child.is_protected or child.is_reading:
        return False
    return any(map(str.isalnum, child.all_text))


def _protect_as_group(members: list[str | Element]) -> Element:
    """Join protected elements and strings into one protected element. Its node has no tags of its own."""
    children: list[Node | str] = []
    for member in members:
        if isinstance(member, str):
            children.append(member)
        elif member.node.has_no_tags:
            # The element is a group itself. Its members are added, because nested groups could become as deep as the
            # text is long.
            children += member.node.children
        else:
            children.append(member.node)
    return Element(Node(Role.KEPT, raw="", children=children), is_protected=True)


def _iterate_texts(node: Node | str) -> Iterator[str]:
    """Yield all strings inside a node in document order. If `node` is a string, yield only this string."""
    if isinstance(node, str):
        yield node
    else:
        for child in node.children:
            yield from _iterate_texts(child)


class _TextWithNodes:
    """A text in which the character `ELEMENT` stands for each node, so that placeholders with nodes inside are found.

    Attributes:
        text (`str`): the text. A document may itself contain the character `ELEMENT`, which then stands for no node.
    """

    def __init__(self, strings_and_nodes: Sequence[Node | str]):
        self._nodes: list[Node] = []
        # For each node, its position in the text.
        self._positions: list[int] = []
        text = ""
        for child in strings_and_nodes:
            if isinstance(child, str):
                text += child
            else:
                self._nodes.append(child)
                self._positions.append(len(text))
                # This single character stands for the node.
                text += ELEMENT
        self.text = text

    def children_between(self, start: int, end: int) -> list[Node | str]:
        """Return the strings and nodes between two positions of the text; empty strings are left out."""
        first_node = bisect_left(self._positions, start)
        end_of_nodes = bisect_left(self._positions, end)
        children: list[Node | str] = []
        start_of_string = start
        for index in range(first_node, end_of_nodes):
            end_of_string = self._positions[index]
            children.append(self.text[start_of_string:end_of_string])
            children.append(self._nodes[index])
            # The next string starts after the character that stands for the node.
            start_of_string = end_of_string + len(ELEMENT)
        children.append(self.text[start_of_string:end])
        return [child for child in children if child != ""]


def _group_placeholders(nodes: Sequence[Node | str]) -> list[Node | str]:
    """Wrap each placeholder, such as "{name}", in a node that is written unchanged, and return the resulting list.

    A placeholder may contain elements, which then become children of this node. For example, the strings and nodes of
    "one {n, plural, other {<b>#</b>}}" become the string "one " and one node that contains the whole plural.
    """
    text_with_nodes = _TextWithNodes(nodes)
    grouped: list[Node | str] = []
    end_of_last_placeholder = 0
    for start, end in find_placeholders(text_with_nodes.text):
        grouped += text_with_nodes.children_between(end_of_last_placeholder, start)
        grouped.append(Node(Role.KEPT, raw="", children=text_with_nodes.children_between(start, end)))
        end_of_last_placeholder = end
    grouped += text_with_nodes.children_between(end_of_last_placeholder, len(text_with_nodes.text))
    return grouped
