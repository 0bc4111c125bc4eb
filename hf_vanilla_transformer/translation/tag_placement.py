"""Place the tags of a text in its translation, around the words that are linked with theirs."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from unicodedata import category

from .markup_tree import Kind, Node, write
from .words_of_tokens import WORDS_AND_LETTERS


# Words of a translation that are linked with none count a little against a tag that reaches over them.
_UNLINKED = -0.1
# Words that are linked with as many words inside of a tag as outside count a little for it.
_HALF = 0.05
# Of the words on each side of an element without words, so many may tell its place; and so many characters next to a
# tag tell whether these are punctuation.
_NEAREST, _NEXT = 100, 40
# Punctuation at the ends of a word.
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass
class Element:
    """A node with what it encloses; a comment, or an empty tag, encloses nothing.

    Args:
        node (`Node`): what is written; one that is kept encloses no text.
        start, end (`int`): the characters of the text inside.
        children (`list[Element]`): the elements inside, in order.
        has_space_before, has_space_after (`bool`): whether white space is next to it, where it encloses nothing.
    """

    node: Node
    start: int
    end: int = 0
    children: list["Element"] = field(default_factory=list)
    has_space_before: bool = False
    has_space_after: bool = False


class TagPlacement:
    """Where elements go in the translation of a text whose words are linked, in words first, then in characters.

    A word that an element begins or ends inside of is divided there, and so is its translation, as far as both have
    the same characters: "CO" and "2" of "CO2". Names and numbers, which both texts have equally often, are linked in
    their order, whatever the links say.

    Args:
        source, target (`str`): a text and its translation.
        links (`list` of pairs of `int`): of their words, which in Chinese, Thai and others are letters.
        borders (`set[int]`): the characters of the text at which elements begin or end.
        escape (`Callable`): writes text.
    """

    def __init__(
        self,
        source: str,
        target: str,
        links: list[tuple[int, int]],
        borders: set[int],
        escape: Callable[[str], str],
    ):
        self._source, self._target, self._escape = source, target, escape
        sources, targets = ([word.span() for word in WORDS_AND_LETTERS.finditer(text)] for text in (source, target))
        inside, self._source_words, firsts = sorted(borders), list[tuple[int, int]](), [0]
        for start, end in sources:
            places = inside[bisect_right(inside, start) : bisect_left(inside, end)]
            self._source_words += pairwise([start, *places, end])
            firsts.append(len(self._source_words))
        self._starts, self._ends = ([word[side] for word in self._source_words] for side in (0, 1))
        linked = defaultdict[int, list[int]](list)
        for word, place in sorted(_with_equal_words(links, source, target)):
            linked[place].append(word)
        # Of each word of the translation, the words of the source; and the other way round.
        self._target_words, self._links = list[tuple[int, int]](), list[set[int]]()
        for place, span in enumerate(targets):
            words = linked[place]
            parts = {part for word in words for part in range(firsts[word], firsts[word + 1])}
            divided = next((word for word in words if firsts[word + 1] - firsts[word] > 1), None)
            own = range(0) if divided is None else range(firsts[divided], firsts[divided + 1])
            others = parts.difference(own)
            for part, found in self._divide(span, own):
                self._target_words.append(found)
                self._links.append(parts if part is None else {part, *others})
        self._linked = defaultdict[int, list[int]](list)
        for place, parts in enumerate(self._links):
            for part in parts:
                self._linked[part].append(place)

    def _divide(self, span: tuple[int, int], parts: Sequence[int]) -> Iterator[tuple[int | None, tuple[int, int]]]:
        """The parts of a word of the translation, each with the part of the source's word that it is linked with."""
        (place, end), rest = span, None
        for part in parts:
            text = self._source[slice(*self._source_words[part])]
            start = self._target.find(text, place, end)
            if start < 0:
                rest = part if rest is None else rest
                continue
            if start > place:
                yield rest, (place, start)
            yield part, (start, start + len(text))
            place, rest = start + len(text), None
        if place < end:
            yield rest, (place, end)

    def render(self, elements: list[Element]) -> str:
        """The translation with the tags of the elements."""
        whole, written = Element(Node(Kind.BLOCK, ""), 0, len(self._source), elements), list[str]()
        self._write(whole, (0, len(self._target_words)), (0, len(self._target)), written)
        return "".join(written)

    def _write(self, parent: Element, words: tuple[int, int], place: tuple[int, int], written: list[str]) -> None:
        """Append the tags and texts of some words, which are these characters, inside a parent."""
        start, end = place
        for element, low, high in self._place(parent, *words):
            if low < high:
                inside, outside = self._characters(element, low, high)
                spaces = ("", "")
            else:
                inside = outside = self._point(element, low)
                spaces = self._spaces(element, min(max(inside, start), end))
            inside, outside = (min(max(each, start), end) for each in (inside, outside))
            written += (self._escape(self._target[start:inside]), spaces[0])
            if element.node.kind is Kind.KEPT:
                written.append(write(element.node, self._escape))
            else:
                written.append(element.node.opening)
                self._write(element, (low, high), (inside, outside), written)
                written.append(element.node.closing)
            written.append(spaces[1])
            start = outside
        written.append(self._escape(self._target[start:end]))

    def _place(self, parent: Element, first: int, last: int) -> list[tuple[Element, int, int]]:
        """The children of a parent with their words of the translation, in its order; they do not overlap."""
        covered = {id(child): self._covered(child) for child in parent.children}
        whole, free, found = self._covered(parent), [True] * (last - first), dict[int, tuple[int, int]]()
        by_size = sorted(parent.children, key=lambda child: -len(covered[id(child)]))
        # A word with links to several elements is for the one with most of them, or else for the largest one.
        for is_strict, child in product((True, False), by_size):
            words = covered[id(child)]
            if not words or id(child) in found:
                continue
            is_whole = words == whole and not found
            low, high = (first, last) if is_whole else self._best_range(words, free, first, is_strict)
            if low < high:
                found[id(child)] = low, high
                free[low - first : high - first] = [False] * (high - low)
        taken = sorted(found.values())
        for child in parent.children:
            if id(child) not in found:
                place = self._place_of_point(whole, child, first, last)
                number = bisect_left(taken, (place, place)) - 1
                low, high = taken[number] if number >= 0 else (place, place)
                if low < place < high:
                    place = low if place - low < high - place else high
                found[id(child)] = place, place
        return sorted(((child, *found[id(child)]) for child in parent.children), key=lambda each: each[1:])

    def _covered(self, element: Element) -> range:
        """The words of the source that an element contains, or contains a part of."""
        return range(bisect_right(self._ends, element.start), bisect_left(self._starts, element.end))

    def _best_range(self, covered: range, free: list[bool], first: int, is_strict: bool) -> tuple[int, int]:
        """The adjacent free words with most links to the covered words, less those to others if `is_strict`.

        `free` has a value for each word from the `first` one on.
        """
        places = [place for word in covered for place in self._linked[word] if 0 <= place - first < len(free)]
        best, (low, high) = 0.0, (0, 0)
        total, start = 0.0, 0
        for word in range(min(places), max(places) + 1) if places else ():
            if not free[word - first]:
                total = 0.0
                continue
            links = self._links[word]
            share = sum(each in covered for each in links) / max(len(links), 1)
            weight = (2 * share - 1 or _HALF if is_strict else share or -1) if links else _UNLINKED
            if total <= 0:
                total, start = 0.0, word
            total += weight
            if total > best:
                best, (low, high) = total, (start, word + 1)
        return low, high

    def _place_of_point(self, words: range, element: Element, first: int, last: int) -> int:
        """The word before which an element without words goes: that of the source word which follows it."""
        place = bisect_left(self._starts, element.start)
        before, after = range(words.start, min(place, words.stop)), range(max(place, words.start), words.stop)
        if not (before and after):
            return last if before else first
        sides = [after[:_NEAREST], before[::-1][:_NEAREST]]
        if _is_punctuation(self._source[slice(*self._source_words[after[0]])]):
            sides.reverse()  # Punctuation follows the element wherever the next word goes.
        for word in (word for side in sides for word in side):
            if linked := [place for place in self._linked[word] if first <= place < last]:
                return linked[0] if word in after else linked[-1] + 1
        return last

    def _characters(self, element: Element, low: int, high: int) -> tuple[int, int]:
        """The characters of words, without the punctuation around them that is outside of the element in the source."""
        start, end = self._target_words[low][0], self._target_words[high - 1][1]
        before = _LAST_WORD.search(self._source[max(0, element.start - _NEXT) : element.start])
        after = WORDS_AND_LETTERS.match(self._source[element.end : element.end + _NEXT])
        first, last = (self._source[place : place + 1] for place in (element.start, element.end - 1))
        if before and _is_punctuation(before[0]):
            while start < end - 1 and _is_punctuation(self._target[start]) and self._target[start] != first:
                start += 1
        if after and _is_punctuation(after[0]):
            while end > start + 1 and _is_punctuation(self._target[end - 1]) and self._target[end - 1] != last:
                end -= 1
        return start, end

    def _point(self, element: Element, place: int) -> int:
        """The character before which an element without words goes, next to the word before it or after it."""
        if place == len(self._target_words) or (place and not element.has_space_before):
            return self._target_words[place - 1][1] if place else 0
        return self._target_words[place][0]

    def _spaces(self, element: Element, place: int) -> tuple[str, str]:
        """The space before and after an element without words, as in the source, that the translation lacks."""
        before, after = self._target[max(0, place - 1) : place], self._target[place : place + 1]
        return (
            " " if element.has_space_before and before and not before.isspace() else "",
            " " if element.has_space_after and after and not after.isspace() else "",
        )


def _with_equal_words(links: list[tuple[int, int]], source: str, target: str) -> set[tuple[int, int]]:
    """The links, but words that both texts have equally often, such as names and numbers, are linked in their order."""
    places = [defaultdict[str, list[int]](list) for _ in range(2)]
    for side, text in zip(places, (source, target), strict=True):
        for place, word in enumerate(WORDS_AND_LETTERS.findall(text)):
            key = _AROUND.sub("", word).casefold()
            if len(key) > 1 or key.isdecimal():
                side[key].append(place)
    equal = [(places[0][key], places[1][key]) for key in places[1] if len(places[0][key]) == len(places[1][key])]
    words, others = ({place for pair in equal for place in pair[side]} for side in (0, 1))
    kept = {(word, place) for word, place in links if word not in words and place not in others}
    return kept.union(*(zip(*pair, strict=True) for pair in equal))


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(each.isalnum() or each.isspace() or category(each)[0] == "M" for each in text)
