"""Place the tags of a sentence in its translation, around the words that are linked with theirs."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product


# Words of a translation that are linked with none count a little against a tag that reaches over them.
_UNLINKED = -0.1
# Words that are linked with as many words inside of a tag as outside count a little for it.
_HALF = 0.05


@dataclass
class Element:
    """A tag with what it encloses; a comment, or an empty tag, encloses nothing.

    Args:
        opening, closing (`str`): the tags as they are written; `closing` is empty where there is none.
        start, end (`int`): the characters of the document's text inside.
        children (`list[Element]`): the elements inside, in order.
        has_space_before, has_space_after (`bool`): whether white space is next to an element without text.
        is_opened_again (`bool`): whether it is the rest of an element that another one crossed.
    """

    opening: str
    closing: str
    start: int
    end: int = 0
    children: list["Element"] = field(default_factory=list)
    has_space_before: bool = False
    has_space_after: bool = False
    is_opened_again: bool = False


class TagPlacement:
    """Where elements go in the translation of a text whose words are linked, in words first, then in characters."""

    def __init__(self, source: str, target: str, links: list[tuple[int, int]]):
        self._source, self._target = source, target
        self._source_words, self._target_words = (list(re.finditer(r"\S+", text)) for text in (source, target))
        self._links: list[set[int]] = [set() for _ in self._target_words]
        for source_word, target_word in links:
            self._links[target_word].add(source_word)

    def render(self, elements: list[Element]) -> str:
        """The translation with the tags of the elements."""
        whole = Element("", "", 0, len(self._source), elements)
        return "".join(self._parts(whole, 0, len(self._target_words), 0, len(self._target)))

    def _parts(self, parent: Element, first: int, last: int, start: int, end: int) -> Iterator[str]:
        """The tags and texts of the words `first` to `last`, characters `start` to `end`, inside a parent."""
        for element, low, high in self._place(parent, first, last):
            if low == high and element.is_opened_again and not element.children:
                continue
            if low < high:
                inside, outside = self._characters(element, low, high)
                spaces = ("", "")
            else:
                inside = outside = self._point(element, low)
                spaces = self._spaces(element, min(max(inside, start), end))
            inside, outside = (min(max(place, start), end) for place in (inside, outside))
            yield html.escape(self._target[start:inside], quote=False) + spaces[0] + element.opening
            yield from self._parts(element, low, high, inside, outside)
            yield element.closing + spaces[1]
            start = outside
        yield html.escape(self._target[start:end], quote=False)

    def _place(self, parent: Element, first: int, last: int) -> list[tuple[Element, int, int]]:
        """The children of a parent with their words of the translation, in its order; they do not overlap."""
        covered = {id(child): self._covered(child) for child in parent.children}
        free, found = set(range(first, last)), dict[int, tuple[int, int]]()
        by_size = sorted(parent.children, key=lambda child: -len(covered[id(child)]))
        # A word with links to several elements is for the one with most of them, or else for the largest one.
        for is_strict, child in product((True, False), by_size):
            words = covered[id(child)]
            is_whole = words == self._covered(parent) and len(free) == last - first
            low, high = (first, last) if words and is_whole else self._best_range(words, sorted(free), is_strict)
            if low < high and id(child) not in found:
                found[id(child)] = low, high
                free -= set(range(low, high))
        taken = list(found.values())
        for child in parent.children:
            if id(child) not in found:
                place = self._place_of_point(parent, child, first, last)
                for low, high in taken:
                    if low < place < high:
                        place = low if place - low < high - place else high
                found[id(child)] = place, place
        return sorted(((child, *found[id(child)]) for child in parent.children), key=lambda each: each[1:])

    def _covered(self, element: Element) -> set[int]:
        """The words of the source that an element contains, or contains a part of."""
        return {
            index
            for index, word in enumerate(self._source_words)
            if max(word.start(), element.start) < min(word.end(), element.end)
        }

    def _best_range(self, covered: set[int], free: list[int], is_strict: bool) -> tuple[int, int]:
        """The adjacent free words with most links to the covered words, less those to others if `is_strict`."""
        best, (low, high) = 0.0, (0, 0)
        total, start = 0.0, 0
        for place, word in enumerate(free):
            links = self._links[word]
            share = len(links & covered) / max(len(links), 1)
            weight = (2 * share - 1 or _HALF if is_strict else share or -1) if links else _UNLINKED
            if total <= 0 or free[place - 1] != word - 1:
                total, start = 0.0, word
            total += weight
            if total > best:
                best, (low, high) = total, (start, word + 1)
        return low, high

    def _place_of_point(self, parent: Element, element: Element, first: int, last: int) -> int:
        """The word before which an element without words goes: that of the source word which follows it."""
        words = sorted(self._covered(parent))
        before = [word for word in words if self._source_words[word].start() < element.start]
        after = words[len(before) :]
        if not (before and after):
            return last if before else first
        for word in (*after, *reversed(before)):
            if linked := [place for place in range(first, last) if word in self._links[place]]:
                return linked[0] if word in after else linked[-1] + 1
        return last

    def _characters(self, element: Element, low: int, high: int) -> tuple[int, int]:
        """The characters of words, without the punctuation around them that is outside of the element in the source."""
        start, end = self._target_words[low].start(), self._target_words[high - 1].end()
        before = re.search(r"\S*$", self._source[: element.start])
        after = re.match(r"\S*", self._source[element.end :])
        if before and _is_punctuation(before[0]):
            while start < end - 1 and _is_punctuation(self._target[start]):
                start += 1
        if after and _is_punctuation(after[0]):
            while end > start + 1 and _is_punctuation(self._target[end - 1]):
                end -= 1
        return start, end

    def _point(self, element: Element, place: int) -> int:
        """The character before which an element without words goes, next to the word before it or after it."""
        if place == len(self._target_words) or (place and not element.has_space_before):
            return self._target_words[place - 1].end() if place else 0
        return self._target_words[place].start()

    def _spaces(self, element: Element, place: int) -> tuple[str, str]:
        """The space before and after an element without words, as in the source, that the translation lacks."""
        before, after = self._target[:place][-1:], self._target[place:][:1]
        return (
            " " if element.has_space_before and before and not before.isspace() else "",
            " " if element.has_space_after and after and not after.isspace() else "",
        )


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(character.isalnum() or character.isspace() for character in text)
