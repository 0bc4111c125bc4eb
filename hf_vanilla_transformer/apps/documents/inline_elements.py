"""The inline elements of a text, and its protected parts, which the model does not see and the translation contains."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...model.input_checks import has_letters
from ...translation.words_of_tokens import UNSPACED_LETTER
from .markup_tree import READINGS, Kind, Node
from .placeholders import ELEMENT, find_placeholders


OPENING_PUNCTUATION = "([{«“„‘‚‹¿¡「『（【《〈"  # noqa: RUF001
CLOSING_PUNCTUATION = ",.;:!?)]}»”’›、。，；：！？」』）】》〉…"  # noqa: RUF001
# Brackets and quotation marks around protected parts.
_PAIRS = dict(zip('([{«“„‘‹"「（', ')]}»”“’›"」）', strict=True))  # noqa: RUF001
_MARKS = re.escape("".join([*_PAIRS, *_PAIRS.values()]))
# French quotation marks have spaces inside.
_OPENING = re.compile(rf"(?P<mark>[{re.escape(''.join(_PAIRS))}])(?P<space>(?:(?<=[«‹])\s)?)\Z")  # noqa: RUF001
# Punctuation and symbols that join protected parts, but not those that end a sentence.
_JOINING = re.compile(rf"(?:(?![.!?…]\s|[。！？])[^\w\s{_MARKS}]|\s|_)*")  # noqa: RUF001


@dataclass(eq=False)
class Element:
    """An inline element, or a protected part, of a text.

    Args:
        node (`Node`): what is written.
        children (`list`): texts and the elements among them, in order; a protected part has none.
        is_protected (`bool`): whether the node is written with all of its content, which the text lacks.
        start, end (`int`): the characters of the text for the model that are inside; equal if there are none.
        follows_word (`bool`): whether a protected part belongs to the word before it, as the mark of a footnote does.
    """

    node: Node
    children: "list[str | Element]" = field(default_factory=list)
    is_protected: bool = False
    start: int = 0
    end: int = 0
    follows_word: bool = False

    @property
    def content(self) -> str:
        """All text inside the node."""
        return "".join(_all_texts(self.node))

    @property
    def elements(self) -> "list[Element]":
        """The children without the texts."""
        return [child for child in self.children if isinstance(child, Element)]

    @property
    def is_reading(self) -> bool:
        """Whether it tells how a text is read, such as `<rt>`."""
        return self.node.name in READINGS


@dataclass(frozen=True)
class Tag:
    """The start tag or the end tag of an element."""

    element: Element
    is_opening: bool


# A part of a text in the order in which it is written: characters, a tag, or a protected part.
Token = str | Tag | Element


def tokens_of(parts: Sequence[str | Element]) -> Iterator[Token]:
    """The texts, tags and protected parts of texts and elements, in their order."""
    for part in parts:
        if isinstance(part, str) or part.is_protected:
            yield part
            continue
        yield Tag(part, True)
        yield from tokens_of(part.children)
        yield Tag(part, False)


def read_elements(nodes: Sequence[Node | str]) -> list[str | Element]:
    """Read the texts and elements of a part of a block, and protect what must not be translated.

    Protected are placeholders, nodes that are not translated, and elements without letters: those around numbers,
    such as the marks of footnotes, around placeholders and images, and empty ones. Where no text of the part has a
    letter, its numbers are what is translated.

    Returns:
        `list`: empty if there is nothing to translate.
    """
    parts = _read(nodes)
    text = "".join(part for part in tokens_of(parts) if isinstance(part, str))
    if not any(map(str.isalnum, text)):
        return []
    _locate(parts, 0)
    return _protect(parts, text, has_letters(text))


def _read(nodes: Sequence[Node | str]) -> list[str | Element]:
    """Read texts and elements; placeholders and nodes that are not translated are protected."""
    parts: list[str | Element] = []
    for node in _group_placeholders(nodes):
        if isinstance(node, str):
            parts.append(node)
        elif node.kind is Kind.KEPT:
            parts.append(Element(node, is_protected=True))
        else:
            parts.append(Element(node, _read(node.children)))
    return parts


def _locate(parts: Sequence[str | Element], start: int) -> int:
    """Set where elements begin and end in their text, which begins at `start` of all text; returns its end."""
    for part in parts:
        if isinstance(part, str):
            start += len(part)
        else:
            part.start = start
            start = part.end = _locate(part.children, start)
    return start


def _protect(parts: list[str | Element], text: str, is_lettered: bool) -> list[str | Element]:
    """Protect elements that have nothing to translate, and join what is protected and belongs together.

    Args:
        parts: texts and elements; which of these are protected is set.
        text: all text, in which elements have their places.
        is_lettered: whether it has letters.
    """
    for part in parts:
        if isinstance(part, str) or part.is_protected:
            continue
        inside = text[part.start : part.end]
        if is_lettered:
            part.is_protected = not has_letters(inside) and not _is_inside_word(part, text)
        else:
            part.is_protected = not inside.strip()
        part.children = [] if part.is_protected else _protect(part.children, text, is_lettered)
    return _enclose(_join(_enclose(parts)))


def _is_inside_word(element: Element, text: str) -> bool:
    """Return True if a word goes on at both ends of an element, as in "H2O": without it, it would be another word.

    Scripts without spaces do not show where words end.
    """
    neighbors = text[max(0, element.start - 1) : element.start], text[element.end : element.end + 1]
    return text[element.start : element.end].isalnum() and all(map(is_spaced_letter, neighbors))


def is_spaced_letter(character: str) -> bool:
    """Return True for a letter or digit of a script that divides words by spaces."""
    return character.isalnum() and not UNSPACED_LETTER.match(character)


def _join(parts: list[str | Element]) -> list[str | Element]:
    """Join protected parts between which there is only white space, punctuation and symbols, such as "Ctrl+C"."""
    joined: list[str | Element] = []
    # The last group that was made here, to which further parts are added.
    group: Element | None = None
    for part in parts:
        # The protected part before this one, and the text between them.
        separator = ""
        neighbor: str | Element | None = joined[-1] if joined else None
        if isinstance(neighbor, str):
            separator = neighbor
            neighbor = joined[-2] if len(joined) > 1 else None
        are_visible = neighbor is not None and _is_visible(neighbor) and _is_visible(part)
        if not are_visible or _JOINING.fullmatch(separator) is None:
            joined.append(part)
            continue
        if separator:
            joined.pop()
        if joined[-1] is not group:
            group = _group(joined[-1])
            joined[-1] = group
        group.node.children += _group(separator, part).node.children
    return joined


def _enclose(parts: list[str | Element]) -> list[str | Element]:
    """Add the brackets or quotation marks around a protected part to it: the model should not see them alone."""
    enclosed = list(parts)
    for index in range(1, len(enclosed) - 1):
        before, part, after = enclosed[index - 1 : index + 2]
        if not (isinstance(before, str) and _is_visible(part) and isinstance(after, str)):
            continue
        opening = _OPENING.search(before)
        if opening is None:
            continue
        closing = opening["space"] + _PAIRS[opening["mark"]]
        if after.startswith(closing):
            enclosed[index - 1] = before[: opening.start()]
            enclosed[index] = _group(opening[0], part, closing)
            enclosed[index + 1] = after.removeprefix(closing)
    return [part for part in enclosed if part != ""]


def _is_visible(part: str | Element) -> bool:
    """Return True for a protected part that readers see as text."""
    if isinstance(part, str) or not part.is_protected or part.is_reading:
        return False
    return any(character.isalnum() for text in _all_texts(part.node) for character in text)


def _group(*parts: str | Element) -> Element:
    """Make one protected part of protected parts and texts."""
    nodes: list[Node | str] = []
    for part in parts:
        if isinstance(part, str):
            nodes.append(part)
        elif part.node.is_group:
            # Groups inside of groups would be as deep as the text is long.
            nodes += part.node.children
        else:
            nodes.append(part.node)
    return Element(Node(Kind.KEPT, "", children=[node for node in nodes if node != ""]), is_protected=True)


def _all_texts(node: Node | str) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for child in node.children:
            yield from _all_texts(child)


def _group_placeholders(nodes: Sequence[Node | str]) -> Iterator[Node | str]:
    """Texts and nodes next to each other, where each placeholder is a node, with the elements that it has inside."""
    # Each node is one character, so that placeholders are found across them.
    text = ""
    node_at: dict[int, Node] = {}
    for node in nodes:
        if isinstance(node, str):
            text += node
        else:
            node_at[len(text)] = node
            text += ELEMENT
    end_of_last = 0
    for start, end in find_placeholders(text):
        yield from _cut(text, node_at, end_of_last, start)
        yield Node(Kind.KEPT, "", children=list(_cut(text, node_at, start, end)))
        end_of_last = end
    yield from _cut(text, node_at, end_of_last, len(text))


def _cut(text: str, node_at: dict[int, Node], start: int, end: int) -> Iterator[Node | str]:
    """The texts and nodes between two characters."""
    place = text.find(ELEMENT, start, end)
    while place >= 0:
        # The character may also be one of the text.
        if place in node_at:
            if start < place:
                yield text[start:place]
            yield node_at[place]
            start = place + 1
        place = text.find(ELEMENT, place + 1, end)
    if start < end:
        yield text[start:end]
