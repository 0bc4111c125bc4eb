"""Documents with HTML or XML: the texts to translate, block by block, and the document with their translations.

No sentence crosses the end of a block, such as a paragraph, a cell, or a line break. Tags inside a block come out
around the words that are linked with theirs. Code, placeholders, URLs, e-mail addresses, and elements without letters
are left out of the sentence, and come out next to the translations of their neighbors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...support.user_errors import InputError
from .inline_elements import Element, Token, read_elements, tokens_of
from .markup_tree import (
    READINGS,
    Kind,
    Node,
    escape_html,
    escape_xml,
    read_html,
    read_xml,
    shape,
    write,
    write_escaped_html,
)
from .tag_placement import TagPlacement
from .tag_spacing import SpacedText


KINDS = ("html", "xml")


class Document:
    """A document of which some texts are translated.

    HTML that is escaped in XML, or in a CDATA section, is a document of its own inside.

    Args:
        kind (`str`): `"html"` or `"xml"`.
        markup (`str`): a page, or a part of one.

    Attributes:
        texts (`list[str]`): the texts to translate.

    Raises:
        ImportError: if HTML is to be read, and selectolax is missing.
        ValueError: if XML is not well-formed, or more than 200 elements are inside each other.
    """

    def __init__(self, kind: str, markup: str):
        markup = markup.removeprefix("\ufeff")
        self._kind = kind
        self._escape: Callable[[str], str]
        if kind == "html":
            self._root = read_html(markup)
            self._escape = escape_html
        else:
            self._root = read_xml(markup)
            self._escape = escape_xml
        self._shape = Counter(shape(self._root))
        self._shapes_of_readings = dict(_shapes_of_readings(self._root, 0))
        self._runs: list[_Run] = []
        self._attributes: list[_Attribute] = []
        self._inner_documents: list[tuple[Node, Document]] = []
        self._parts_of_blocks: dict[int, list[Node | _Run]] = {}
        self._group_children(self._root)
        self.texts = [run.text for run in self._runs]
        self.texts += [attribute.run.text for attribute in self._attributes]
        for _, document in self._inner_documents:
            self.texts += document.texts

    def _group_children(self, block: Node) -> None:
        """Group the children of a block into its inner blocks, and the runs of texts and inline elements between."""
        self._add_attributes(block)
        grouped: list[Node | _Run] = []
        inline_nodes: list[Node | str] = []
        for child in block.children:
            if isinstance(child, str) or child.kind in (Kind.INLINE, Kind.KEPT):
                inline_nodes.append(child)
                continue
            self._end_run(inline_nodes, grouped)
            inline_nodes = []
            grouped.append(child)
            if child.kind is Kind.ESCAPED_HTML:
                self._inner_documents.append((child, Document("html", child.html)))
            else:
                self._group_children(child)
        self._end_run(inline_nodes, grouped)
        self._parts_of_blocks[id(block)] = grouped

    def _end_run(self, nodes: list[Node | str], grouped: list["Node | _Run"]) -> None:
        """Add a run of these nodes, if there are any, to the parts of a block."""
        if not nodes:
            return
        run = _Run(nodes)
        grouped.append(run)
        if run.text:
            self._runs.append(run)
        for node in _inside(nodes):
            self._add_attributes(node)

    def _add_attributes(self, node: Node) -> None:
        for name in node.text_attributes():
            run = _Run([node.attributes[name] or ""])
            if run.text:
                self._attributes.append(_Attribute(node, name, run))

    @property
    def has_tags(self) -> bool:
        """Whether tags or protected parts are to be placed among the words of a text."""
        if any(run.has_elements for run in (*self._runs, *(attribute.run for attribute in self._attributes))):
            return True
        return any(document.has_tags for _, document in self._inner_documents)

    def render(self, translations: Sequence[str], links: Sequence[list[tuple[int, int]]]) -> str:
        """The document with the translation of each of its `texts`.

        Every element comes out once, except for readings of `<ruby>` whose text is translated. Where its words are
        apart in the translation, it is around the part that has more of them than of others. The links are those of
        `align`, for each text, but of `WORDS_AND_LETTERS`. With each text as its own translation, it is the document
        that was read.

        Raises ValueError if browsers would read other elements in it than in the document that was given, which they do
        with some that are nested as HTML does not allow.
        """
        expected_shape = Counter(self._shape)
        runs = [*self._runs, *(attribute.run for attribute in self._attributes)]
        for run, translation, pairs in zip(runs, translations, links, strict=False):
            placement = TagPlacement(run.text, translation, pairs, run.borders())
            run.written_tokens = placement.place(run.parts)
            for node in placement.dropped_readings:
                expected_shape -= self._shapes_of_readings[id(node)]
        attributes_before = [(attribute.node, attribute.node.attributes) for attribute in self._attributes]
        for attribute in self._attributes:
            # The start tag escapes the value.
            value = attribute.run.write(escape=str)
            attribute.node.attributes = {**attribute.node.attributes, attribute.name: value}
        first = len(runs)
        written_inside: dict[int, str] = {}
        for node, document in self._inner_documents:
            last = first + len(document.texts)
            written_html = document.render(translations[first:last], links[first:last])
            written_inside[id(node)] = write_escaped_html(node, written_html)
            first = last
        written = "".join(self._write(self._root, written_inside))
        for node, attributes in reversed(attributes_before):
            node.attributes = attributes
        if self._kind == "html" and Counter(shape(read_html(written))) != expected_shape:
            raise InputError(
                "the HTML has elements inside others where HTML does not allow them, so that browsers would read the "
                "translation otherwise; correct the HTML."
            )
        return written

    def _write(self, block: Node, written_inside: dict[int, str]) -> Iterator[str]:
        if id(block) in written_inside:
            yield written_inside[id(block)]
            return
        yield block.opening
        for part in self._parts_of_blocks[id(block)]:
            if isinstance(part, Node):
                yield from self._write(part, written_inside)
            else:
                yield part.write(self._escape)
        yield block.closing


class _Run:
    """Nodes and texts next to each other, of one block.

    Attributes:
        text (`str`): to translate; empty if there is nothing to translate.
        parts (`list[str | Element]`): texts, and the inline elements and protected parts among them.
        written_tokens (`list[Token]`): the translation with its tags.
    """

    def __init__(self, nodes: list[Node | str]):
        self._nodes = nodes
        self.parts = read_elements(nodes)
        self.written_tokens: list[Token] = []
        self._space_before = ""
        self._space_after = ""
        # White space at the ends of a block stays outside, whatever moves there.
        if self.parts and isinstance(self.parts[0], str):
            first = self.parts[0]
            self.parts[0] = first.lstrip()
            self._space_before = first[: len(first) - len(self.parts[0])]
        if self.parts and isinstance(self.parts[-1], str):
            last = self.parts[-1]
            self.parts[-1] = last.rstrip()
            self._space_after = last[len(self.parts[-1]) :]
        self._spaced = SpacedText(list(tokens_of(self.parts)))
        self.text = self._spaced.text

    @property
    def has_elements(self) -> bool:
        """Whether there are tags or protected parts in the text."""
        return any(isinstance(part, Element) for part in self.parts)

    def borders(self) -> set[int]:
        """The characters of the text at which elements begin or end."""
        places = set()
        for element in _all_elements(self.parts):
            places |= {element.start, element.end}
        return places

    def write(self, escape: Callable[[str], str]) -> str:
        """The translation with its tags, or the nodes if there is nothing to translate."""
        if not self.text:
            return "".join(write(node, escape) for node in self._nodes)
        written = self._spaced.write(self.written_tokens, escape)
        return f"{escape(self._space_before)}{written}{escape(self._space_after)}"


@dataclass
class _Attribute:
    """An attribute of an element whose value is a text to translate, without tags."""

    node: Node
    name: str
    run: _Run


def _all_elements(parts: Sequence[str | Element]) -> Iterator[Element]:
    """Elements with those inside of them."""
    for part in parts:
        if isinstance(part, Element):
            yield part
            yield from _all_elements(part.children)


def _inside(nodes: Sequence[Node | str]) -> Iterator[Node]:
    """Nodes that are translated, with those inside of them."""
    for node in nodes:
        if isinstance(node, Node) and node.kind is not Kind.KEPT:
            yield node
            yield from _inside(node.children)


def _shapes_of_readings(node: Node, depth: int) -> Iterator[tuple[int, Counter[tuple[int, str]]]]:
    """The identity of each reading of `<ruby>` inside a node, with the depths and names of its elements."""
    for child in node.children:
        if not isinstance(child, Node):
            continue
        if child.name in READINGS:
            yield id(child), Counter([(depth, child.name), *shape(child, depth + 1)])
        yield from _shapes_of_readings(child, depth + 1)
