"""Find the texts to translate in an HTML or XML document, and write the document with their translations.

A document is divided into blocks, such as paragraphs and table cells. No sentence extends across the start or the end
of a block. The texts and inline elements between two block boundaries form an inline run, which is translated as one
text. Code, placeholders, URLs, e-mail addresses, and elements without letters are left out of this text, and are placed
next to the translations of their neighbors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...support.user_errors import InputError
from .escaped_html import write_escaped_html
from .html_elements import READINGS
from .inline_elements import Element, Token, iterate_elements, iterate_tokens, read_elements
from .markup_tree import Node, Role, escape_html, escape_xml, iterate_names, write_node
from .read_html import read_html
from .read_xml import read_xml
from .tag_placement import TagPlacement
from .tag_spacing import SpacedText


FORMATS = ("html", "xml")


class Document:
    """An HTML or XML document that lists its texts and can be written with their translations.

    If an XML element contains HTML as text, either escaped or in a CDATA section, this HTML is a nested document.

    Args:
        format (`str`): `"html"` or `"xml"`.
        markup (`str`): a document, or a part of one.

    Attributes:
        texts (`list[str]`): the texts to translate: first the texts of blocks, then attribute values, and then the
            texts of HTML inside XML.

    Raises:
        ImportError: if `format` is `"html"`, or there is HTML inside XML, and selectolax is missing.
        ValueError: if XML is not well-formed, or if elements are nested more than 200 levels deep.
    """

    def __init__(self, format: str, markup: str):
        self._format = format
        self._escape = escape_html if format == "html" else escape_xml
        self._root = _read_markup(format, markup)
        # How often each pair of depth and element name, such as (2, "b"), occurs in the document, and in each of its
        # `<ruby>` readings. `render` checks that a translation has the same elements.
        self._name_counts = Counter(iterate_names(self._root))
        self._name_counts_of_readings = dict(_count_names_of_readings(self._root, depth=0))

        # `_record_block` fills these attributes. First, the inline runs and attributes that have text to translate.
        self._runs_of_blocks: list[_InlineRun] = []
        self._attributes: list[_Attribute] = []
        # Each ESCAPED_HTML node, and its HTML as a nested document.
        self._inner_documents: list[tuple[Node, Document]] = []
        # The content of each block: its inner blocks, and the inline runs between them.
        self._contents: dict[Node, list[Node | _InlineRun]] = {}
        self._record_block(self._root)

        # All inline runs and attribute values that have text to translate, except those of inner documents.
        self._translated_runs = [*self._runs_of_blocks, *(attribute.run for attribute in self._attributes)]
        self.texts = self._list_texts()

    def _list_texts(self) -> list[str]:
        """Return the document's own texts, followed by the texts of its inner documents, as `render` expects them."""
        texts = [run.text for run in self._translated_runs]
        for _, document in self._inner_documents:
            texts += document.texts
        return texts

    def _record_block(self, block: Node) -> None:
        """Divide the children of a block into inner blocks and inline runs, and store them in `self._contents[block]`.

        Inner blocks are divided in the same way.
        """
        self._record_attributes(block)
        contents: list[Node | _InlineRun] = []
        for block_or_inline_nodes in _divide_at_blocks(block.children):
            if isinstance(block_or_inline_nodes, list):
                contents.append(self._record_run(block_or_inline_nodes))
                continue
            inner_block = block_or_inline_nodes
            contents.append(inner_block)
            if inner_block.role is Role.ESCAPED_HTML:
                self._inner_documents.append((inner_block, Document("html", inner_block.html)))
            else:
                self._record_block(inner_block)
        self._contents[block] = contents

    def _record_run(self, inline_nodes: list[Node | str]) -> "_InlineRun":
        """Create the inline run of some nodes, and record what has to be translated in it.

        If the run has text to translate, it is added to `self._runs_of_blocks`. Attributes inside the run that have
        text to translate, such as `alt`, are added to `self._attributes`.
        """
        run = _InlineRun(inline_nodes)
        has_text_to_translate = run.text != ""
        if has_text_to_translate:
            self._runs_of_blocks.append(run)
        for node in _iterate_inline_nodes(inline_nodes):
            self._record_attributes(node)
        return run

    def _record_attributes(self, node: Node) -> None:
        """Add the attributes of a node that have text to translate to `self._attributes`."""
        for name in node.text_attributes():
            run = _InlineRun([node.attributes[name] or ""])
            if run.text:
                self._attributes.append(_Attribute(node, name, run))

    @property
    def has_tags(self) -> bool:
        """True if any text contains tags or protected elements, which must be placed in its translation."""
        if any(run.has_elements for run in self._translated_runs):
            return True
        return any(document.has_tags for _, document in self._inner_documents)

    def render(self, translations: Sequence[str], links: Sequence[list[tuple[int, int]]]) -> str:
        """Return the document in which each of the `texts` is replaced by its translation.

        The result contains every element exactly once, except that the readings of a `<ruby>` are left out if its text
        is translated. If the translations of an element's words are not adjacent, the element encloses only one group
        of them. If each text is translated as itself, the result is the original document.

        Args:
            translations (`Sequence[str]`): the translation of each text.
            links (`Sequence`): for each text, the word alignment links as `align` returns them. The words are those
                that `WORDS_AND_LETTERS` finds.

        Raises:
            ValueError: if there are fewer translations or links than texts, or if browsers would read different
                elements in the result, because elements are nested in a way that HTML does not allow.
        """
        # Like `texts`, both lists begin with the document's own runs of text, and end with its inner documents.
        num_runs = len(self._translated_runs)
        dropped_readings = self._store_translations(translations[:num_runs], links[:num_runs])
        written_inner_documents = self._render_inner_documents(translations[num_runs:], links[num_runs:])
        written = self._write(written_inner_documents)
        if self._format == "html":
            self._check_names(written, dropped_readings)
        return written

    def _store_translations(self, translations: Sequence[str], links: Sequence[list[tuple[int, int]]]) -> list[Node]:
        """Store its translation in each run of text, from which `_write` reads it.

        Returns:
            `list[Node]`: the readings of `<ruby>` elements that are left out because their text is translated.
        """
        dropped_readings: list[Node] = []
        for run, translation, word_links in zip(self._translated_runs, translations, links, strict=True):
            dropped_readings += run.store_translation(translation, word_links)
        return dropped_readings

    def _write(self, written_inner_documents: dict[Node, str]) -> str:
        """Return the source of the document with the translations that its runs have stored."""
        # `_write_block` is a generator that reads the translated attributes, so `join` must be inside the `with` block.
        with self._translated_attributes():
            return "".join(self._write_block(self._root, written_inner_documents))

    def _render_inner_documents(
        self, translations: Sequence[str], links: Sequence[list[tuple[int, int]]]
    ) -> dict[Node, str]:
        """Translate the HTML texts inside an XML document, and return the XML source of each one under its node.

        Args:
            translations: the translations of the texts of all inner documents, one after the other.
            links: for each of these texts, its word alignment: pairs of the indices of a source word and a target word.
        """
        written: dict[Node, str] = {}
        # The translations of the inner documents follow each other in this order; see `__init__`.
        start = 0
        for node, document in self._inner_documents:
            end = start + len(document.texts)
            translated_html = document.render(translations[start:end], links[start:end])
            written[node] = write_escaped_html(node, translated_html)
            start = end
        return written

    @contextmanager
    def _translated_attributes(self) -> Iterator[None]:
        """Replace attribute values with their translations while the `with` block runs.

        The original attributes are restored at the end, because a document is rendered once for each alternative.
        """
        # For each node, all of its attributes. A node with several translated attributes is stored once.
        original_attributes = {attribute.node: attribute.node.attributes for attribute in self._attributes}
        try:
            for attribute in self._attributes:
                # The value is not escaped here, because it is escaped when the start tag is written.
                translated_value = attribute.run.write(escape=str)
                # The original attributes are not changed, because they are needed again.
                changed_attributes = dict(attribute.node.attributes)
                changed_attributes[attribute.name] = translated_value
                attribute.node.attributes = changed_attributes
            yield
        finally:
            for node, attributes in original_attributes.items():
                node.attributes = attributes

    def _write_block(self, block: Node, written_inner_documents: dict[Node, str]) -> Iterator[str]:
        """Yield the parts of a translated block's source: its start tag, its content, and its end tag."""
        if block in written_inner_documents:
            # The block is HTML inside XML, which has been translated and written already.
            yield written_inner_documents[block]
            return
        yield block.opening
        # The content consists of inner blocks, and of runs of text and inline elements between them.
        for content in self._contents[block]:
            if isinstance(content, Node):
                yield from self._write_block(content, written_inner_documents)
            else:
                yield content.write(self._escape)
        yield block.closing

    def _check_names(self, written_html: str, dropped_readings: list[Node]) -> None:
        """Raise InputError if browsers would read different elements in a translation than in the document.

        Args:
            written_html: the translated document.
            dropped_readings: elements of the document that the translation does not contain. They are readings, such as
                `<rt>`, which show how the text of a `<ruby>` is pronounced.
        """
        # How often each element name should occur at each depth of the tree.
        expected_counts = Counter(self._name_counts)
        for reading in dropped_readings:
            # The reading and the elements inside it must be missing.
            expected_counts -= self._name_counts_of_readings[reading]
        written_root = read_html(written_html)
        written_counts = Counter(iterate_names(written_root))
        if written_counts != expected_counts:
            raise InputError(
                "the HTML has elements inside others where HTML does not allow them, so that browsers would read the "
                "translation otherwise; correct the HTML."
            )


class _InlineRun:
    """A sequence of strings and inline nodes inside a block, which are translated together as one text.

    Attributes:
        text (`str`): the text to translate; empty if there is nothing to translate.
    """

    def __init__(self, nodes: list[Node | str]):
        # The original, which `write` returns if there is no text to translate.
        self._nodes = nodes
        # White space at the ends of a block stays there, whichever words and tags the translation has at its ends.
        stripped = _strip_space(read_elements(nodes))
        self._space_before = stripped.space_before
        self._space_after = stripped.space_after
        self._content = stripped.content
        # This sets the attributes `start`, `end` and `follows_word` of the elements in `self._content`.
        # `store_translation` reads them later. `start` and `end` are positions in `self.text`.
        self._spaced_text = SpacedText(list(iterate_tokens(self._content)))
        self.text = self._spaced_text.text
        # The strings, tags, and protected elements of the translation, which `store_translation` sets.
        self._translated_tokens: list[Token] = []

    @property
    def has_elements(self) -> bool:
        """True if the run contains tags or protected elements, which must be placed in its translation."""
        return any(isinstance(child, Element) for child in self._content)

    def store_translation(self, translation: str, links: list[tuple[int, int]]) -> list[Node]:
        """Place the run's tags in its translation, and store the result, which `write` returns as markup.

        Args:
            translation: the translation of `text`.
            links: the word alignment links between `text` and its translation.

        Returns:
            `list[Node]`: the readings of `<ruby>` elements that are left out because their text is translated.
        """
        # The positions of the text at which elements start or end.
        borders: set[int] = set()
        for element in iterate_elements(self._content):
            borders.add(element.start)
            borders.add(element.end)
        placement = TagPlacement(self.text, translation, links, borders)
        self._translated_tokens = placement.place(self._content)
        return placement.dropped_readings

    def write(self, escape: Callable[[str], str]) -> str:
        """Return the source of the translation with its tags. If the run has no text, return the original source."""
        if not self.text:
            return "".join(write_node(node, escape) for node in self._nodes)
        written = self._spaced_text.write(self._translated_tokens, escape)
        return f"{escape(self._space_before)}{written}{escape(self._space_after)}"


def _read_markup(format: str, markup: str) -> Node:
    """Parse an HTML or XML document, and return the root of its tree."""
    # A byte-order mark is not part of the document.
    markup_without_mark = markup.removeprefix("\ufeff")
    if format == "html":
        return read_html(markup_without_mark)
    return read_xml(markup_without_mark)


@dataclass
class _Attribute:
    """An attribute whose value is translated. Its `run` contains the value as a text without tags."""

    node: Node
    name: str
    run: _InlineRun


@dataclass(frozen=True)
class _StrippedContent:
    """The content of an inline run without the white space at its ends, and this white space."""

    space_before: str
    content: list[str | Element]
    space_after: str


def _strip_space(content: Sequence[str | Element]) -> _StrippedContent:
    """Separate the white space at both ends of some content from the content.

    If the content is a single string of white space, all of it counts as space before the content.
    """
    stripped = list(content)
    space_before = ""
    space_after = ""
    if stripped and isinstance(stripped[0], str):
        space_before = _find_leading_space(stripped[0])
        stripped[0] = stripped[0].lstrip()
    if stripped and isinstance(stripped[-1], str):
        space_after = _find_trailing_space(stripped[-1])
        stripped[-1] = stripped[-1].rstrip()
    return _StrippedContent(space_before, stripped, space_after)


def _find_leading_space(text: str) -> str:
    """Return the white space at the start of a text."""
    return text.removesuffix(text.lstrip())


def _find_trailing_space(text: str) -> str:
    """Return the white space at the end of a text."""
    return text.removeprefix(text.rstrip())


def _divide_at_blocks(children: Sequence[Node | str]) -> Iterator[Node | list[Node | str]]:
    """Yield the blocks among the children of a node, and a list of the strings and inline nodes between two blocks.

    There is no list where no string or inline node is between two blocks.
    """
    inline_nodes: list[Node | str] = []
    for child in children:
        if isinstance(child, str) or child.role in (Role.INLINE, Role.KEPT):
            inline_nodes.append(child)
            continue
        if inline_nodes:
            yield inline_nodes
            # The caller keeps the old list.
            inline_nodes = []
        yield child
    if inline_nodes:
        yield inline_nodes


def _iterate_inline_nodes(nodes: Sequence[Node | str]) -> Iterator[Node]:
    """Yield the given nodes and all nodes inside them, except for nodes with the role `KEPT` and their content."""
    for node in nodes:
        if isinstance(node, Node) and node.role is not Role.KEPT:
            yield node
            yield from _iterate_inline_nodes(node.children)


def _count_names_of_readings(node: Node, depth: int) -> Iterator[tuple[Node, Counter[tuple[int, str]]]]:
    """Yield each `<ruby>` reading inside a node, with a counter of the elements that the document loses without it.

    These are the reading itself, which is an element such as `<rt>`, and the elements inside it. The counter's keys are
    pairs of depth and name, such as (3, "rt").

    Args:
        node: the node in which readings are searched.
        depth: the depth of the node's children in the document.
    """
    for child in node.children:
        if not isinstance(child, Node):
            continue
        if child.name in READINGS:
            counts = Counter(iterate_names(child, depth + 1))
            counts[depth, child.name] += 1
            yield child, counts
        yield from _count_names_of_readings(child, depth + 1)
