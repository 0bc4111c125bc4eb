"""Place the tags of a text in its translation, around the words that are linked with theirs."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

from ...translation.words_of_tokens import WORDS_AND_LETTERS
from .inline_elements import Element, Tag, Token
from .markup_tree import Kind, Node


# The weight of a word of a translation that has no links. An element reaches over such a word to the next word of its
# own, but it takes none at its ends, and not a long row of them.
_UNLINKED = -0.1
# The weight of a word that has as many links inside of an element as outside. It is for the element if nothing else is.
_HALF = 0.05
# Of the words on each side of an element without words, so many may tell its place; and so many characters next to a
# tag tell whether these are punctuation.
_NEAREST = 100
_NEXT = 40
# Punctuation at the ends of a word.
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass(frozen=True)
class _Span:
    """A range of characters of a text, such as a word."""

    start: int
    end: int


@dataclass(frozen=True)
class _Place:
    """The words of a translation that an element is around, from `first` to before `last`.

    An element without words has an empty range: it goes before the word `first`.
    """

    first: int
    last: int


class TagPlacement:
    """Place elements in the translation of a text whose words are linked: around words, then around their characters.

    A word that an element begins or ends inside of is divided there, and so is its translation, as far as both have
    the same characters: "H", "2" and "O" of "H2O". Names and numbers, which both texts have equally often, are linked
    in their order, whatever the links say.

    Args:
        source, target (`str`): a text and its translation.
        links (`list` of pairs of `int`): of their words, which in Chinese, Thai and others are letters.
        borders (`set[int]`): the characters of the text at which elements begin or end.

    Attributes:
        dropped_readings (`list[Node]`): readings of `<ruby>` that were left out, because their text is translated.
    """

    def __init__(self, source: str, target: str, links: list[tuple[int, int]], borders: set[int]):
        self._source = source
        self._target = target
        self.dropped_readings: list[Node] = []
        # The words of the source, divided at borders, and the parts that each undivided word has.
        self._source_words: list[_Span] = []
        parts_of_words: list[range] = []
        sorted_borders = sorted(borders)
        for match in WORDS_AND_LETTERS.finditer(source):
            first_part = len(self._source_words)
            self._source_words += _split_at(_Span(*match.span()), sorted_borders)
            parts_of_words.append(range(first_part, len(self._source_words)))
        self._starts = [word.start for word in self._source_words]
        self._ends = [word.end for word in self._source_words]
        linked_words = defaultdict[int, list[int]](list)
        for source_word, target_word in sorted(_with_equal_words(links, source, target)):
            linked_words[target_word].append(source_word)
        # The words of the translation, divided like those of the source, with the words of the source that each is
        # linked with.
        self._target_words: list[_Span] = []
        self._links: list[set[int]] = []
        for index, match in enumerate(WORDS_AND_LETTERS.finditer(target)):
            self._add_target_word(_Span(*match.span()), [parts_of_words[word] for word in linked_words[index]])
        # The words of the translation that each word of the source is linked with.
        self._linked = defaultdict[int, list[int]](list)
        for target_word, source_words in enumerate(self._links):
            for source_word in source_words:
                self._linked[source_word].append(target_word)

    def _add_target_word(self, word: _Span, linked: list[range]) -> None:
        """Add a word of the translation that is linked with words of the source, each of which has these parts.

        It is divided like the first linked word that has several parts; a part is linked with one part of that word,
        and with all of the other words.
        """
        all_parts = {part for parts in linked for part in parts}
        divided = next((parts for parts in linked if len(parts) > 1), None)
        if divided is None:
            self._target_words.append(word)
            self._links.append(all_parts)
            return
        other_parts = all_parts.difference(divided)
        # The first part of the source's word that the translation does not contain up to here. What stands in its
        # place is linked with it.
        missing_part: int | None = None
        start = word.start
        for part in divided:
            characters = self._source[self._source_words[part].start : self._source_words[part].end]
            place = self._target.find(characters, start, word.end)
            if place < 0:
                if missing_part is None:
                    missing_part = part
                continue
            if place > start:
                self._target_words.append(_Span(start, place))
                self._links.append(all_parts if missing_part is None else {missing_part, *other_parts})
            start = place + len(characters)
            self._target_words.append(_Span(place, start))
            self._links.append({part, *other_parts})
            missing_part = None
        if start < word.end:
            self._target_words.append(_Span(start, word.end))
            self._links.append(all_parts if missing_part is None else {missing_part, *other_parts})

    def place(self, parts: Sequence[str | Element]) -> list[Token]:
        """Place the elements of the text, which `parts` has as [`read_elements`] returns it, in the translation.

        Returns:
            `list[Token]`: the characters of the translation, with the tags and the protected parts where they go.
        """
        tokens: list[Token] = []
        whole = Element(Node(Kind.BLOCK, ""), list(parts), start=0, end=len(self._source))
        self._add_tokens(
            whole, _Place(0, len(self._target_words)), _Span(0, len(self._target)), tokens, is_translated_base=False
        )
        return tokens

    def _add_tokens(
        self, parent: Element, words: _Place, characters: _Span, tokens: list[Token], *, is_translated_base: bool
    ) -> None:
        """Append the content of an element, which has these words and characters of the translation.

        If it is a translated base of `<ruby>`, its readings are left out.
        """
        start = characters.start
        for element, place in self._place_children(parent, words):
            if is_translated_base and element.is_reading:
                self.dropped_readings.append(element.node)
                continue
            # Not before the end of the last element: punctuation that is inside of it would be written twice.
            inside = self._characters(element, place, _Span(start, characters.end))
            tokens.append(self._target[start : inside.start])
            start = inside.end
            if element.is_protected:
                tokens.append(element)
                continue
            tokens.append(Tag(element, is_opening=True))
            is_base = is_translated_base or element.node.name == "ruby"
            if is_base and self._target[inside.start : inside.end] == self._source[element.start : element.end]:
                self._add_copied_tokens(element, tokens)
            else:
                self._add_tokens(element, place, inside, tokens, is_translated_base=is_base)
            tokens.append(Tag(element, is_opening=False))
        tokens.append(self._target[start : characters.end])

    def _add_copied_tokens(self, parent: Element, tokens: list[Token]) -> None:
        """Append the content of an element whose text is that of the source, with its elements where they are there."""
        start = parent.start
        for element in parent.elements:
            tokens.append(self._source[start : element.start])
            start = element.end
            if element.is_protected:
                tokens.append(element)
                continue
            tokens.append(Tag(element, is_opening=True))
            self._add_copied_tokens(element, tokens)
            tokens.append(Tag(element, is_opening=False))
        tokens.append(self._source[start : parent.end])

    def _place_children(self, parent: Element, words: _Place) -> list[tuple[Element, _Place]]:
        """Place the children of an element among its words, where they do not overlap; in the translation's order."""
        places = self._place_around_words(parent, words)
        taken = sorted(places.values(), key=lambda place: place.first)
        for child in parent.elements:
            if child not in places:
                word = self._word_after(self._covered(parent), child, words)
                word = _outside_of(taken, word)
                places[child] = _Place(word, word)
        in_source_order = [(child, places[child]) for child in parent.elements]
        return sorted(in_source_order, key=lambda child_and_place: (child_and_place[1].first, child_and_place[1].last))

    def _place_around_words(self, parent: Element, words: _Place) -> dict[Element, _Place]:
        """Place the children of an element whose words are linked with words that no other child has."""
        places: dict[Element, _Place] = {}
        free = [True] * (words.last - words.first)
        covered = {child: self._covered(child) for child in parent.elements}
        largest_first = sorted(parent.elements, key=lambda child: -len(covered[child]))
        # A word with links to several elements is for the one with most of them, or else for the largest one.
        for is_strict in (True, False):
            for child in largest_first:
                if not covered[child] or child in places:
                    continue
                if covered[child] == self._covered(parent) and not places:
                    place = words
                else:
                    place = self._best_range(covered[child], free, words.first, is_strict)
                if place.first < place.last:
                    places[child] = place
                    for word in range(place.first, place.last):
                        free[word - words.first] = False
        return places

    def _covered(self, element: Element) -> range:
        """The words of the source that an element contains, or contains a part of."""
        return range(bisect_right(self._ends, element.start), bisect_left(self._starts, element.end))

    def _best_range(self, covered: range, free: list[bool], first: int, is_strict: bool) -> _Place:
        """The adjacent free words whose weights for an element have the largest sum, if that is more than 0.

        `free` has a value for each word from the `first` one on. Words that are not free divide the others.
        """
        linked = [place for word in covered for place in self._linked[word] if 0 <= place - first < len(free)]
        best_place = _Place(0, 0)
        if not linked:
            return best_place
        best_sum = 0.0
        start = min(linked)
        sum_from_start = 0.0
        for word in range(min(linked), max(linked) + 1):
            if not free[word - first]:
                sum_from_start = 0.0
                continue
            # Words before this one that weigh nothing in all are better left out.
            if sum_from_start <= 0:
                sum_from_start = 0.0
                start = word
            sum_from_start += self._weight(word, covered, is_strict)
            if sum_from_start > best_sum:
                best_sum = sum_from_start
                best_place = _Place(start, word + 1)
        return best_place

    def _weight(self, word: int, covered: range, is_strict: bool) -> float:
        """How much a word of the translation counts for an element that covers these words of the source.

        If `is_strict`, links to other words count against it, so that a word with most of its links elsewhere is for
        another element. Otherwise, one link is enough.
        """
        links = self._links[word]
        if not links:
            return _UNLINKED
        links_inside = sum(source_word in covered for source_word in links)
        if not is_strict:
            return links_inside / len(links) if links_inside else -1.0
        links_outside = len(links) - links_inside
        if links_inside == links_outside:
            return _HALF
        return (links_inside - links_outside) / len(links)

    def _word_after(self, covered: range, element: Element, words: _Place) -> int:
        """Find the word of the translation before which an element without words goes.

        It goes before the translation of the next source word, or, if that has no links, after that of the previous
        one. A mark that belongs to the previous word follows its translation.

        Args:
            covered: the words of the source that its parent covers.
            words: the words of the translation that its parent has.
        """
        place = bisect_left(self._starts, element.start)
        words_before = range(covered.start, min(place, covered.stop))
        words_after = range(max(place, covered.start), covered.stop)
        if not words_after:
            return words.last if words_before else words.first
        if not words_before:
            return words.first
        nearest_after = words_after[:_NEAREST]
        nearest_before = words_before[::-1][:_NEAREST]
        candidates = [*nearest_after, *nearest_before]
        next_word = self._source_words[words_after[0]]
        if element.follows_word or _is_punctuation(self._source[next_word.start : next_word.end]):
            # Punctuation follows the element wherever the next word goes.
            candidates = [*nearest_before, *nearest_after]
        for source_word in candidates:
            linked = [word for word in self._linked[source_word] if words.first <= word < words.last]
            if linked:
                return linked[0] if source_word in words_after else linked[-1] + 1
        return words.last

    def _characters(self, element: Element, place: _Place, limits: _Span) -> _Span:
        """The characters of the translation that an element is around, within those of its parent.

        Punctuation that is outside of the element in the source stays outside.
        """
        if place.first == place.last:
            # After the word before; what is between two words is sorted out later.
            start = end = self._end_of_word(place.first - 1, element)
        else:
            start = self._target_words[place.first].start
            end = self._target_words[place.last - 1].end
            word_before = _LAST_WORD.search(self._source[max(0, element.start - _NEXT) : element.start])
            word_after = WORDS_AND_LETTERS.match(self._source[element.end : element.end + _NEXT])
            first_character = self._source[element.start : element.start + 1]
            last_character = self._source[element.end - 1 : element.end]
            if word_before and _is_punctuation(word_before[0]):
                while start < end - 1 and self._is_other_punctuation(start, first_character):
                    start += 1
            if word_after and _is_punctuation(word_after[0]):
                while end > start + 1 and self._is_other_punctuation(end - 1, last_character):
                    end -= 1
        start = min(max(start, limits.start), limits.end)
        end = min(max(end, limits.start), limits.end)
        return _Span(start, end)

    def _end_of_word(self, word: int, element: Element) -> int:
        """Return where a word of the translation ends, because an element without words goes there; 0 for the word -1.

        The mark of a footnote goes before punctuation at the end of the word.
        """
        if word < 0:
            return 0
        start = self._target_words[word].start
        end = self._target_words[word].end
        character_before = self._source[max(0, element.start - 1) : element.start]
        if element.follows_word and not _is_punctuation(character_before):
            # In the source, no punctuation is between its word and the element.
            while end > start + 1 and _is_punctuation(self._target[end - 1]):
                end -= 1
        return end

    def _is_other_punctuation(self, place: int, character: str) -> bool:
        """Return True if a character of the translation is punctuation, and not this one."""
        return _is_punctuation(self._target[place]) and self._target[place] != character


def _split_at(word: _Span, sorted_places: list[int]) -> list[_Span]:
    """The parts of a word between the places that are inside of it."""
    places = sorted_places[bisect_right(sorted_places, word.start) : bisect_left(sorted_places, word.end)]
    parts = []
    start = word.start
    for place in places:
        parts.append(_Span(start, place))
        start = place
    parts.append(_Span(start, word.end))
    return parts


def _outside_of(taken: list[_Place], word: int) -> int:
    """The word, or the nearer end of the range of words that it is inside of."""
    index = bisect_left(taken, word, key=lambda place: place.first) - 1
    if index < 0:
        return word
    place = taken[index]
    if not place.first < word < place.last:
        return word
    return place.first if word - place.first < place.last - word else place.last


def _with_equal_words(links: list[tuple[int, int]], source: str, target: str) -> set[tuple[int, int]]:
    """The links, but words that both texts have equally often, such as names and numbers, are linked in their order."""
    source_places = _places_of_names(source)
    target_places = _places_of_names(target)
    linked_sources: set[int] = set()
    linked_targets: set[int] = set()
    equal_links: set[tuple[int, int]] = set()
    for name, places in source_places.items():
        if len(places) == len(target_places[name]):
            linked_sources.update(places)
            linked_targets.update(target_places[name])
            equal_links.update(zip(places, target_places[name], strict=True))
    for source_word, target_word in links:
        if source_word not in linked_sources and target_word not in linked_targets:
            equal_links.add((source_word, target_word))
    return equal_links


def _places_of_names(text: str) -> defaultdict[str, list[int]]:
    """The words of a text without punctuation around them, each with its places; no single letters."""
    places = defaultdict[str, list[int]](list)
    for place, word in enumerate(WORDS_AND_LETTERS.findall(text)):
        name = _AROUND.sub("", word).casefold()
        if len(name) > 1 or name.isdecimal():
            places[name].append(place)
    return places


def _is_punctuation(text: str) -> bool:
    if not text:
        return False
    return not any(
        character.isalnum() or character.isspace() or category(character).startswith("M") for character in text
    )
