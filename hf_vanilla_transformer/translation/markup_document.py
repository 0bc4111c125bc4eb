"""Documents with HTML or XML: the texts to translate, block by block, and the document with their translations.

No sentence crosses the end of a block, such as a paragraph, a cell, or a line break. Tags inside a block come out
around the words that are linked with theirs. Code, placeholders, URLs and e-mail addresses are left out of the
sentence, and come out next to the translations of their neighbors.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from ..support.user_errors import InputError
from .markup_tree import Kind, Node, escape_html, escape_xml, read_html, read_xml, shape, write
from .tag_placement import Element, TagPlacement


KINDS = ("html", "xml")
# White space of HTML and XML, which is as good as one space; no-break spaces are not.
_SPACES = " \t\n\r\f"
_SPACE = re.compile(f"[{_SPACES}]+")
_CLOSING = ",.;:!?)]}»”"
# {{name}}, ${x}, {0}, %(n)d, %s, %1$s, URLs, e-mail addresses.
_PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|\$?\{[\w.:-]*\}|%\(\w+\)[a-z]|%(?:\d+\$)?[sdfiu](?!\w)"
    r"|\b(?:https?|ftp)://[^\s<>\"]*[\w/]|\bwww\.[^\s<>\"]*[\w/]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
)


class Document:
    """A document of which some texts are translated.

    Args:
        kind (`str`): `"html"` or `"xml"`.
        markup (`str`): a page, or a part of one.

    Raises:
        ImportError: if HTML is to be read, and selectolax is missing.
        ValueError: if XML is not well-formed, or more than 200 elements are inside each other.
    """

    def __init__(self, kind: str, markup: str):
        markup = markup.removeprefix("\ufeff")
        self._root = read_html(markup) if kind == "html" else read_xml(markup)
        self._kind, self._shape = kind, sorted(shape(self._root))
        self._escape = escape_html if kind == "html" else escape_xml
        self._runs, self._attributes = list[_Run](), list[tuple[Node, str]]()
        self._divide(self._root)
        attributes = [_SPACE.sub(" ", node.attributes[name] or "").strip() for node, name in self._attributes]
        self.texts = [*(run.text for run in self._runs), *attributes]

    def _divide(self, node: Node) -> None:
        """Group what is inside a block: blocks, and runs of other nodes and texts between them."""
        self._attributes += [(node, name) for name in node.text_attributes()]
        divided, run = list[Any](), list[Node | str]()
        for child in [*node.children, None]:
            if child is not None and (isinstance(child, str) or child.kind is not Kind.BLOCK):
                run.append(child)
                continue
            if run:
                divided.append(_Run(run))
                self._runs += [divided[-1]] if divided[-1].text else []
                self._attributes += [(each, name) for each in _inside(run) for name in each.text_attributes()]
                run = []
            if child is not None:
                self._divide(child)
                divided.append(child)
        node.children = divided

    @property
    def has_tags(self) -> bool:
        """Whether tags are to be placed among the words of a block."""
        return any(run.elements for run in self._runs)

    def render(self, translations: Sequence[str], links: Sequence[list[tuple[int, int]]]) -> str:
        """The document with the translation of each of its `texts`.

        Every element comes out once. Where its words are apart in the translation, it is around the part that has more
        of them than of others. The links are those of `align`, for each text, but of `WORDS_AND_LETTERS`.

        Raises ValueError if browsers would read other elements in it than in the document that was given, which they do
        with some that are nested as HTML does not allow.
        """
        count, before = len(self._runs), [(node, node.attributes) for node, _ in self._attributes]
        for (node, name), translation in zip(self._attributes, translations[count:], strict=True):
            node.attributes = {**node.attributes, name: translation}
        for run, translation, pairs in zip(self._runs, translations, links, strict=False):
            placement = TagPlacement(run.text, translation, pairs, run.borders(), self._escape)
            run.written = placement.render(run.elements)
        found = "".join(self._write(self._root))
        for node, attributes in reversed(before):
            node.attributes = attributes
        if self._kind == "html" and sorted(shape(read_html(found))) != self._shape:
            raise InputError(
                "the HTML has elements inside others where HTML does not allow them, so that browsers would read the "
                "translation otherwise; correct the HTML."
            )
        return found

    def _write(self, block: Any) -> Iterator[str]:
        yield block.opening
        for child in block.children:
            if isinstance(child, Node):
                yield from self._write(child)
            elif child.text:
                yield from (self._escape(child.before), child.written, self._escape(child.after))
            else:
                yield from (write(each, self._escape) for each in child.nodes)
        yield block.closing


class _Run:
    """Nodes and texts next to each other, of one block.

    Attributes:
        nodes (`list`): in their order.
        text (`str`): to translate; empty if there is nothing to translate.
        elements (`list[Element]`): the nodes inside.
        before, after (`str`): white space around the text.
        written (`str`): the translation with its tags.
    """

    def __init__(self, nodes: list[Node | str]):
        self.nodes, self.text, self.written = nodes, "", ""
        self.elements, self._ended, self._all = list[Element](), list[Element](), list[Element]()
        texts = "".join(text for node in nodes for text in _texts(node))
        if not any(character.isalnum() for character in _PLACEHOLDER.sub("", texts)):
            return
        first, last = (each if isinstance(each, str) else "" for each in (nodes[0], nodes[-1]))
        self.before, self.after = first[: len(first) - len(first.lstrip())], last[len(last.rstrip()) :]
        self._add([first.lstrip(), *nodes[bool(first) :]], self.elements)
        self.text = self.text.rstrip()

    def borders(self) -> set[int]:
        """The characters of the text at which elements begin or end."""
        return {place for element in self._all for place in (element.start, element.end)}

    def _add(self, nodes: list[Node | str], elements: list[Element]) -> None:
        for node in nodes:
            if isinstance(node, Node):
                self._add_element(node, elements)
                continue
            place = 0
            for found in _PLACEHOLDER.finditer(node):
                self._append(node[place : found.start()])
                self._add_element(Node(Kind.KEPT, "", children=[found[0]]), elements)
                place = found.end()
            self._append(node[place:])

    def _add_element(self, node: Node, elements: list[Element]) -> None:
        element = Element(node, len(self.text), has_space_before=self.text[-1:].isspace())
        elements.append(element)
        self._all.append(element)
        content = "".join(_texts(node))
        if content and not content.strip():
            element.node = replace(node, kind=Kind.KEPT)
            self._append(" ")
        elif node.kind is not Kind.KEPT:
            self._add(node.children, element.children)
        element.end = len(self.text)
        self._ended.append(element)

    def _append(self, text: str) -> None:
        """Append text, with one space for white space of any length; before the first word there is none.

        Punctuation after something that is left out follows the word before it.
        """
        if not text:
            return
        text = _SPACE.sub(" ", text)
        if text[0] in _CLOSING and self.text.endswith(" ") and any(each.node.kind is Kind.KEPT for each in self._ended):
            self.text = self.text[:-1]
            for element in takewhile(lambda each: max(each.start, each.end) > len(self.text), reversed(self._all)):
                element.start, element.end = (min(place, len(self.text)) for place in (element.start, element.end))
        for element in self._ended:
            element.has_space_after = text.startswith(" ") and element.start == element.end
        self._ended.clear()
        self.text += text.lstrip(" ") if not self.text or self.text.endswith(" ") else text


def _texts(node: Node | str) -> Iterator[str]:
    """The texts inside a node that are translated."""
    if isinstance(node, str):
        yield node
    elif node.kind is not Kind.KEPT:
        for child in node.children:
            yield from _texts(child)


def _inside(nodes: Sequence[Node | str]) -> Iterator[Node]:
    """Nodes that are translated, with those inside of them."""
    for node in nodes:
        if isinstance(node, Node) and node.kind is not Kind.KEPT:
            yield node
            yield from _inside(node.children)
