"""Place the tags of a text in its translation, by the links of a word alignment.

For example, if "forty two" is translated as "zwei und vierzig", and "forty" is linked with "und" and with "vierzig",
then "<b>forty</b> two" becomes "zwei <b>und vierzig</b>".

The placement has three steps:

1. The words of both texts are linked. If an element starts or ends inside a word, the word is divided there.
2. Each element gets a range of words of the translation: the range whose words have the largest sum of weights. The
   weight of a word says how many of its links lead into the element; see `_weight`.
3. Punctuation at the ends of the range is left out if it is outside of the element in the source.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

from ...translation.words_of_tokens import WORDS_AND_LETTERS
from .inline_elements import Element, Tag, Token
from .markup_tree import Node, Role


# The weight of a word without links. It is negative, so that an element does not start or end with such a word. It is
# small, so that an element continues across up to nine of them if the next linked word has the full weight of 1.
_WEIGHT_OF_UNLINKED_WORD = -0.1
# The weight of a word with as many links into an element as to words outside. It is positive, so that an element whose
# only word this is gets it. It is less than an unlinked word costs, so that no element is extended for it alone.
_WEIGHT_OF_TIED_WORD = 0.05
# The weight of a word whose links all lead to words outside. It cancels one word whose links all lead into the element.
_WEIGHT_OF_OTHER_WORD = -1.0
# How many words on each side are searched for a link to place an element without words. A text without spaces may have
# very many words, and the links of words that are so far away say little.
_MOST_NEIGHBORS = 100
# How many characters before and after an element are searched for the word next to it. The word only has to be
# recognized as punctuation, which is short.
_MOST_CHARACTERS = 40
# Punctuation at the ends of a word.
_SURROUNDING_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass(frozen=True)
class _CharacterRange:
    """The characters of a text from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True)
class _WordRange:
    """The words of a translation from `start` to before `end`.

    An element without words has an empty range: it goes before the word `start`.
    """

    start: int
    end: int


class TagPlacement:
    """Places the elements of a text in its translation.

    If an element starts or ends inside a word, the word is divided there. Its translation is divided in the same way,
    as far as both have the same characters. For example, "H<sub>2</sub>O" has the words "H", "2" and "O". Names and
    numbers that both texts contain equally often are linked in their order, whatever the given links are.

    Args:
        source, target (`str`): a text and its translation.
        links (`list` of pairs of `int`): the numbers of linked words, source first. In Chinese, Thai and other scripts
            without spaces, each letter is a word.
        borders (`set[int]`): the positions in the source at which elements start or end.

    Attributes:
        dropped_readings (`list[Node]`): readings of `<ruby>` that `place` left out, because their text is translated.
    """

    def __init__(self, source: str, target: str, links: list[tuple[int, int]], borders: set[int]):
        self._source = source
        self._target = target
        self.dropped_readings: list[Node] = []

        # The words of the source, divided at the borders. A whole word is a range of these.
        self._source_words: list[_CharacterRange] = []
        whole_source_words: list[range] = []
        sorted_borders = sorted(borders)
        for match in WORDS_AND_LETTERS.finditer(source):
            first_word = len(self._source_words)
            self._source_words += _split_word(_CharacterRange(*match.span()), sorted_borders)
            whole_source_words.append(range(first_word, len(self._source_words)))
        self._starts = [word.start for word in self._source_words]
        self._ends = [word.end for word in self._source_words]

        # The words of the translation, divided like the source words that they are linked with.
        self._target_words: list[_CharacterRange] = []
        # The source words with which each word of the translation is linked.
        self._linked_sources: list[set[int]] = []
        whole_links = defaultdict[int, list[range]](list)
        for source_index, target_index in sorted(_link_equal_words(links, source, target)):
            whole_links[target_index].append(whole_source_words[source_index])
        for target_index, match in enumerate(WORDS_AND_LETTERS.finditer(target)):
            self._add_target_word(_CharacterRange(*match.span()), whole_links[target_index])

        # The words of the translation with which each source word is linked.
        self._linked_targets = defaultdict[int, list[int]](list)
        for target_word, source_words in enumerate(self._linked_sources):
            for source_word in source_words:
                self._linked_targets[source_word].append(target_word)

    def _add_target_word(self, word: _CharacterRange, linked_words: list[range]) -> None:
        """Divide a word of the translation like a divided word that it is linked with, and add its parts.

        For example, if the source has the words "B" and "max" in "B<sub>max</sub>", the word "Bmax" of the translation
        is divided into "B" and "max". Each of the two is linked with its own part of the source word, and with all
        other words with which the whole word is linked.

        Args:
            word: the characters of the whole word.
            linked_words: the whole source words that it is linked with, each as the range of its parts.
        """
        all_sources: set[int] = set()
        divided_word: range | None = None
        for linked_word in linked_words:
            all_sources.update(linked_word)
            if divided_word is None and len(linked_word) > 1:
                divided_word = linked_word
        if divided_word is None:
            self._target_words.append(word)
            self._linked_sources.append(all_sources)
            return

        other_sources = all_sources.difference(divided_word)
        # The first part of the source word that the translation lacks. The characters in its place are linked with it.
        missing_part: int | None = None
        start = word.start
        for part in divided_word:
            characters = self._source[self._starts[part] : self._ends[part]]
            position = self._target.find(characters, start, word.end)
            if position < 0:
                if missing_part is None:
                    missing_part = part
                continue
            if position > start:
                self._target_words.append(_CharacterRange(start, position))
                self._linked_sources.append(all_sources if missing_part is None else {missing_part, *other_sources})
            start = position + len(characters)
            self._target_words.append(_CharacterRange(position, start))
            self._linked_sources.append({part, *other_sources})
            missing_part = None
        if start < word.end:
            self._target_words.append(_CharacterRange(start, word.end))
            self._linked_sources.append(all_sources if missing_part is None else {missing_part, *other_sources})

    def place(self, content: Sequence[str | Element]) -> list[Token]:
        """Place the elements of the source in the translation.

        Args:
            content (`Sequence[str | Element]`): the content of the source, as [`read_elements`] returns it.

        Returns:
            `list[Token]`: the characters of the translation, with the tags and protected elements among them.
        """
        tokens: list[Token] = []
        # An element without tags, around everything.
        root = Element(Node(Role.BLOCK, ""), list(content), start=0, end=len(self._source))
        all_words = _WordRange(0, len(self._target_words))
        all_characters = _CharacterRange(0, len(self._target))
        self._add_content(root, all_words, all_characters, tokens, is_translated_base=False)
        return tokens

    def _add_content(
        self,
        parent: Element,
        words: _WordRange,
        characters: _CharacterRange,
        tokens: list[Token],
        *,
        is_translated_base: bool,
    ) -> None:
        """Append the content of an element, with all tags inside of it, to the tokens.

        Args:
            parent: the element.
            words, characters: the part of the translation that is inside of it.
            tokens: the tokens, to which its content is appended.
            is_translated_base: True if the element is a `<ruby>` or inside of one whose text is translated. Its
                readings are left out, because a translation is not pronounced like the original.
        """
        position = characters.start
        for element, element_words in self._place_children(parent, words):
            if is_translated_base and element.is_reading:
                self.dropped_readings.append(element.node)
                continue
            # An element cannot start before the end of the last one. Otherwise, punctuation that is inside of the last
            # one would be written twice.
            allowed = _CharacterRange(position, characters.end)
            inside = self._characters_inside(element, element_words, allowed)
            tokens.append(self._target[position : inside.start])
            position = inside.end
            if element.is_protected:
                tokens.append(element)
                continue
            tokens.append(Tag(element, is_opening=True))
            is_in_ruby = is_translated_base or element.node.name == "ruby"
            is_copied = self._target[inside.start : inside.end] == self._source[element.start : element.end]
            if is_in_ruby and is_copied:
                self._add_copied_content(element, tokens)
            else:
                self._add_content(element, element_words, inside, tokens, is_translated_base=is_in_ruby)
            tokens.append(Tag(element, is_opening=False))
        tokens.append(self._target[position : characters.end])

    def _add_copied_content(self, parent: Element, tokens: list[Token]) -> None:
        """Append the content of an element whose text is the same in the translation, exactly as in the source."""
        position = parent.start
        for element in parent.child_elements:
            tokens.append(self._source[position : element.start])
            position = element.end
            if element.is_protected:
                tokens.append(element)
                continue
            tokens.append(Tag(element, is_opening=True))
            self._add_copied_content(element, tokens)
            tokens.append(Tag(element, is_opening=False))
        tokens.append(self._source[position : parent.end])

    def _place_children(self, parent: Element, words: _WordRange) -> list[tuple[Element, _WordRange]]:
        """Place the children of an element among its words, where they do not overlap.

        Returns:
            `list`: the child elements with their words, in the order of the translation.
        """
        places = self._place_around_words(parent, words)
        occupied = sorted(places.values(), key=lambda place: place.start)
        for child in parent.child_elements:
            if child not in places:
                word = self._find_word_after(self._covered_words(parent), child, words)
                word = _move_outside(occupied, word)
                places[child] = _WordRange(word, word)
        children_with_places = [(child, places[child]) for child in parent.child_elements]
        # The sort is stable: children at the same place stay in the order of the source.
        children_with_places.sort(key=lambda child_with_place: (child_with_place[1].start, child_with_place[1].end))
        return children_with_places

    def _place_around_words(self, parent: Element, words: _WordRange) -> dict[Element, _WordRange]:
        """Choose words of the translation for each child of an element that has words in the source.

        No word goes to two children. A word that is linked with several goes to the child with most of its links. In a
        second pass, children that got no word take words that are left, even if most links of these lead to other
        children. In each pass, children with more words choose first.

        Args:
            parent: the element.
            words: the words of the translation that are inside of it.

        Returns:
            `dict[Element, _WordRange]`: the words of each child that got some.
        """
        places: dict[Element, _WordRange] = {}
        # For each word inside of the parent: True if no child has it yet.
        is_free = [True] * (words.end - words.start)
        covered = {child: self._covered_words(child) for child in parent.child_elements}
        largest_first = sorted(parent.child_elements, key=lambda child: -len(covered[child]))
        for is_strict in (True, False):
            for child in largest_first:
                if not covered[child] or child in places:
                    continue
                covers_parent = covered[child] == self._covered_words(parent)
                if covers_parent and not places:
                    place = words
                else:
                    place = self._find_best_range(covered[child], is_free, words.start, is_strict)
                if place.start < place.end:
                    places[child] = place
                    for word in range(place.start, place.end):
                        is_free[word - words.start] = False
        return places

    def _covered_words(self, element: Element) -> range:
        """Return the source words of which an element contains at least a part."""
        return range(bisect_right(self._ends, element.start), bisect_left(self._starts, element.end))

    def _find_best_range(self, covered: range, is_free: list[bool], first_word: int, is_strict: bool) -> _WordRange:
        """Find the adjacent free words with the largest sum of weights for an element (Kadane's algorithm).

        For example, for weights of 1.0, -0.1, 1.0, -1.0 and 1.0, these are the first three words.

        Args:
            covered: the source words that the element covers.
            is_free: True for each word of the translation that no element has, from `first_word` on. A range does not
                extend across words that are not free.
            first_word: the first word of the translation that the element may get.
            is_strict: see `_weight`.

        Returns:
            `_WordRange`: the words; an empty range if no sum is greater than 0.
        """
        linked_words = []
        for source_word in covered:
            for word in self._linked_targets[source_word]:
                if 0 <= word - first_word < len(is_free):
                    linked_words.append(word)
        best_range = _WordRange(0, 0)
        if not linked_words:
            return best_range
        best_sum = 0.0
        start = min(linked_words)
        sum_from_start = 0.0
        for word in range(min(linked_words), max(linked_words) + 1):
            if not is_free[word - first_word]:
                sum_from_start = 0.0
                continue
            # Words before this one whose sum is not positive make every range that they begin worse.
            if sum_from_start <= 0:
                sum_from_start = 0.0
                start = word
            sum_from_start += self._weight(word, covered, is_strict)
            if sum_from_start > best_sum:
                best_sum = sum_from_start
                best_range = _WordRange(start, word + 1)
        return best_range

    def _weight(self, word: int, covered: range, is_strict: bool) -> float:
        """Return how strongly a word of the translation belongs to an element, from -1 to 1.

        For example, a word with two links into the element and one link to a word outside has the weight 1/3 if
        `is_strict`, and 2/3 otherwise.

        Args:
            word: the word of the translation.
            covered: the source words that the element covers.
            is_strict: True if links to words outside count against the element, so that a word with most of its links
                outside is left to a different element. Otherwise, a single link into the element is enough.
        """
        sources = self._linked_sources[word]
        if not sources:
            return _WEIGHT_OF_UNLINKED_WORD
        links_inside = sum(source_word in covered for source_word in sources)
        links_outside = len(sources) - links_inside
        if links_inside == 0:
            return _WEIGHT_OF_OTHER_WORD
        if not is_strict:
            return links_inside / len(sources)
        if links_inside == links_outside:
            return _WEIGHT_OF_TIED_WORD
        return (links_inside - links_outside) / len(sources)

    def _find_word_after(self, covered: range, element: Element, words: _WordRange) -> int:
        """Find the word of the translation before which an element without words goes.

        It goes before the translation of the next source word or, if that has no links, after the translation of the
        previous one. An element that belongs to the previous word, such as a footnote mark, follows its translation.

        Args:
            covered: the source words that the parent of the element covers.
            element: the element.
            words: the words of the translation that are inside of the parent.
        """
        next_source_word = bisect_left(self._starts, element.start)
        words_before = range(covered.start, min(next_source_word, covered.stop))
        words_after = range(max(next_source_word, covered.start), covered.stop)
        if not words_after:
            return words.end if words_before else words.start
        if not words_before:
            return words.start
        nearest_before = words_before[::-1][:_MOST_NEIGHBORS]
        nearest_after = words_after[:_MOST_NEIGHBORS]
        next_word = self._source_words[words_after[0]]
        is_before_punctuation = _is_punctuation(self._source[next_word.start : next_word.end])
        if element.follows_word or is_before_punctuation:
            # Punctuation after an element says nothing about its place: it follows the element wherever that goes.
            candidates = [*nearest_before, *nearest_after]
        else:
            candidates = [*nearest_after, *nearest_before]
        for source_word in candidates:
            linked_words = [word for word in self._linked_targets[source_word] if words.start <= word < words.end]
            if linked_words:
                return linked_words[0] if source_word in words_after else linked_words[-1] + 1
        return words.end

    def _characters_inside(self, element: Element, words: _WordRange, allowed: _CharacterRange) -> _CharacterRange:
        """Return the characters of the translation that are inside of an element.

        Punctuation that is outside of the element in the source stays outside. For example, in "(<b>one</b>)", the
        brackets of "(eins)" stay outside of `<b>`.

        Args:
            element: the element.
            words: the words of the translation that it is around.
            allowed: the characters that may be inside of it. A range outside of these is moved to their nearest end.
        """
        if words.start == words.end:
            start = self._end_of_word(words.start - 1, element)
            end = start
        else:
            start = self._target_words[words.start].start
            end = self._target_words[words.end - 1].end
            word_before = _LAST_WORD.search(self._source[max(0, element.start - _MOST_CHARACTERS) : element.start])
            word_after = WORDS_AND_LETTERS.match(self._source[element.end : element.end + _MOST_CHARACTERS])
            first_character = self._source[element.start : element.start + 1]
            last_character = self._source[element.end - 1 : element.end]
            if word_before is not None and _is_punctuation(word_before[0]):
                while start < end - 1 and self._is_other_punctuation(start, first_character):
                    start += 1
            if word_after is not None and _is_punctuation(word_after[0]):
                while end > start + 1 and self._is_other_punctuation(end - 1, last_character):
                    end -= 1
        start = min(max(start, allowed.start), allowed.end)
        end = min(max(end, allowed.start), allowed.end)
        return _CharacterRange(start, end)

    def _end_of_word(self, word: int, element: Element) -> int:
        """Return the position at which an element without words goes after a word of the translation.

        For the word -1, this is the start of the translation. A footnote mark goes before the punctuation at the end of
        the word, as in "word<sup>[1]</sup>.", if no punctuation is before it in the source.
        """
        if word < 0:
            return 0
        start = self._target_words[word].start
        end = self._target_words[word].end
        character_before = self._source[max(0, element.start - 1) : element.start]
        if element.follows_word and not _is_punctuation(character_before):
            while end > start + 1 and _is_punctuation(self._target[end - 1]):
                end -= 1
        return end

    def _is_other_punctuation(self, position: int, character: str) -> bool:
        """Return True if the translation has punctuation at a position that differs from a given character."""
        return _is_punctuation(self._target[position]) and self._target[position] != character


def _split_word(word: _CharacterRange, sorted_borders: list[int]) -> list[_CharacterRange]:
    """Split a word at the borders that are inside of it.

    For example, the word from 4 to 7 and the borders [4, 5, 9] give the parts from 4 to 5 and from 5 to 7.
    """
    first_border = bisect_right(sorted_borders, word.start)
    end_of_borders = bisect_left(sorted_borders, word.end)
    parts = []
    start = word.start
    for border in sorted_borders[first_border:end_of_borders]:
        parts.append(_CharacterRange(start, border))
        start = border
    parts.append(_CharacterRange(start, word.end))
    return parts


def _move_outside(occupied: list[_WordRange], word: int) -> int:
    """Move a word to the nearer end of the range that it is inside of, if there is one.

    For example, if the range has the words 2 to 5, then the word 3 is moved to 2, and the word 6 stays, because the
    range ends before it. The ranges are sorted and do not overlap.
    """
    index = bisect_left(occupied, word, key=lambda place: place.start) - 1
    if index < 0:
        return word
    place = occupied[index]
    is_inside = place.start < word < place.end
    if not is_inside:
        return word
    return place.start if word - place.start < place.end - word else place.end


def _link_equal_words(links: list[tuple[int, int]], source: str, target: str) -> set[tuple[int, int]]:
    """Return the links of two texts, in which equal words are linked with each other.

    If both texts contain a word equally often, such as a name or a number, its first occurrences are linked, and so on.
    The given links of these words are dropped. For example, "Calc" is
    linked with "Calc" in "<b>Calc</b> and Writer" and "Writer und Calc", because an alignment of names is often wrong.
    """
    source_positions = _find_names(source)
    target_positions = _find_names(target)
    linked_sources: set[int] = set()
    linked_targets: set[int] = set()
    all_links: set[tuple[int, int]] = set()
    for name, positions in source_positions.items():
        if len(positions) == len(target_positions[name]):
            linked_sources.update(positions)
            linked_targets.update(target_positions[name])
            all_links.update(zip(positions, target_positions[name], strict=True))
    for source_word, target_word in links:
        if source_word not in linked_sources and target_word not in linked_targets:
            all_links.add((source_word, target_word))
    return all_links


def _find_names(text: str) -> defaultdict[str, list[int]]:
    """Find the words of a text that can be names or numbers, and return the positions of each.

    Words are compared without case and without the punctuation around them. Single letters are left out, because they
    are often articles or parts of other words; single digits are not.
    """
    positions = defaultdict[str, list[int]](list)
    for position, word in enumerate(WORDS_AND_LETTERS.findall(text)):
        name = _SURROUNDING_PUNCTUATION.sub("", word).casefold()
        if len(name) > 1 or name.isdecimal():
            positions[name].append(position)
    return positions


def _is_punctuation(text: str) -> bool:
    """Return True if a text has only punctuation and symbols, and at least one of them.

    Combining marks, such as the vowel signs of Hindi, are parts of letters.
    """
    if not text:
        return False
    for character in text:
        is_mark = category(character).startswith("M")
        if character.isalnum() or character.isspace() or is_mark:
            return False
    return True
