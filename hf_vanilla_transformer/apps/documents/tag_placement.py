"""Place the inline tags of a source text in its translation, based on word alignment links.

An alignment link connects a source word with a word of the translation. For example, if "forty two" is translated as
"zwei und vierzig", and "forty" is linked with "und" and "vierzig", then "<b>forty</b> two" becomes
"zwei <b>und vierzig</b>".

The placement has three steps:

1. The words of both texts are linked. If an element starts or ends inside a word, the word is split there.
2. Each element is placed around the range of translated words with the largest sum of weights. The weight of a word
   depends on how many of its links lead to words inside the element; see `_weight`.
3. Punctuation at the ends of the range is moved outside if it is outside the element in the source.
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


# The weight of a word without links. It is negative, so that an element does not start or end with an unlinked word. It
# is small, so that an element can extend across up to nine unlinked words to a linked word with the full weight of 1.
_WEIGHT_OF_UNLINKED_WORD = -0.1
# The weight of a word with equally many links to words inside and outside the element. It is positive, so that an
# element can be placed around this word if it has no other. It is smaller than the penalty for an unlinked word, so
# that no element is extended across an unlinked word for its sake.
_WEIGHT_OF_TIED_WORD = 0.05
# The weight of a word whose links all lead to words outside the element. It cancels one word whose links all lead to
# words inside.
_WEIGHT_OF_OTHER_WORD = -1.0
# To place an element without words, this many words on each side are searched for a link. The limit exists because a
# text without spaces may have very many words, and links of distant words say little about the element's place.
_MOST_NEIGHBORS = 100
# To find the word next to an element, this many characters are searched. This is enough, because the word only has to
# be recognized as punctuation, which is short.
_MOST_CHARACTERS = 40
# Punctuation at the ends of a word.
_SURROUNDING_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass(frozen=True)
class _CharacterRange:
    """A range of characters in a text. `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True)
class _WordRange:
    """A range of words in a translation. `end` is exclusive.

    An element without words has an empty range, and is placed before the word `start`.
    """

    start: int
    end: int


class TagPlacement:
    """The placement of a source text's inline elements in its translation.

    If an element starts or ends inside a word, the word is split there. For example, "H<sub>2</sub>O" has the words
    "H", "2" and "O". The translated word is split in the same way where it contains the same characters. If both texts
    contain a name or number equally often, its occurrences are linked in order, regardless of the given links.

    Args:
        source, target (`str`): a text and its translation.
        links (`list` of pairs of `int`): the alignment links. Each consists of the index of a source word and the index
            of a target word. In Chinese, Thai, and other scripts without spaces, each letter is a word.
        borders (`set[int]`): the positions in the source at which elements start or end.

    Attributes:
        dropped_readings (`list[Node]`): the readings of `<ruby>` elements that `place` has left out because their text
            is translated.
    """

    def __init__(self, source: str, target: str, links: list[tuple[int, int]], borders: set[int]):
        self._source = source
        self._target = target
        self.dropped_readings: list[Node] = []

        # The words of the source, split at the borders. Each whole word is a range of these parts.
        self._source_words: list[_CharacterRange] = []
        whole_source_words: list[range] = []
        sorted_borders = sorted(borders)
        for match in WORDS_AND_LETTERS.finditer(source):
            first_word = len(self._source_words)
            self._source_words += _split_word(_CharacterRange(*match.span()), sorted_borders)
            whole_source_words.append(range(first_word, len(self._source_words)))
        self._starts = [word.start for word in self._source_words]
        self._ends = [word.end for word in self._source_words]

        # The words of the translation, split like the source words that they are linked with.
        self._target_words: list[_CharacterRange] = []
        # For each word of the translation, the source words that it is linked with.
        self._linked_sources: list[set[int]] = []
        whole_links = defaultdict[int, list[range]](list)
        for source_index, target_index in sorted(_link_equal_words(links, source, target)):
            whole_links[target_index].append(whole_source_words[source_index])
        for target_index, match in enumerate(WORDS_AND_LETTERS.finditer(target)):
            self._add_target_word(_CharacterRange(*match.span()), whole_links[target_index])

        # For each source word, the words of the translation that it is linked with.
        self._linked_targets = defaultdict[int, list[int]](list)
        for target_word, source_words in enumerate(self._linked_sources):
            for source_word in source_words:
                self._linked_targets[source_word].append(target_word)

    def _add_target_word(self, word: _CharacterRange, linked_words: list[range]) -> None:
        """Add a word of the translation. If it is linked with a split source word, split it in the same way.

        For example, the source "B<sub>max</sub>" has the words "B" and "max", so the word "Bmax" of the translation is
        split into "B" and "max". Each part is linked with the corresponding part of the source word, and with all
        other source words that the whole word is linked with.

        Args:
            word: the character range of the whole word.
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
            `list[Token]`: the text of the translation, with the tags and protected elements in their places.
        """
        tokens: list[Token] = []
        # An element without tags that encloses the whole content.
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
        """Append the translated content of an element, including all tags inside it, to a list of tokens.

        Args:
            parent: the element.
            words, characters: the part of the translation that is inside the element.
            tokens: the list to which the content is appended.
            is_translated_base: True if the element is, or is inside, a `<ruby>` whose text is translated. Readings are
                then left out, because a translation is not pronounced like the original.
        """
        position = characters.start
        for element, element_words in self._place_children(parent, words):
            if is_translated_base and element.is_reading:
                self.dropped_readings.append(element.node)
                continue
            # An element must not start before the end of the previous one. Otherwise, punctuation inside the previous
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
        """Append the content of an element exactly as in the source, because the translation copies its text."""
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
        """Choose ranges of words for the child elements of an element, so that the ranges do not overlap.

        Returns:
            `list`: the child elements with their ranges, in the order of the translation.
        """
        places = self._place_around_words(parent, words)
        occupied = sorted(places.values(), key=lambda place: place.start)
        for child in parent.child_elements:
            if child not in places:
                word = self._find_word_after(self._covered_words(parent), child, words)
                word = _move_outside(occupied, word)
                places[child] = _WordRange(word, word)
        children_with_places = [(child, places[child]) for child in parent.child_elements]
        # The sort is stable, so children at the same place stay in source order.
        children_with_places.sort(key=lambda child_with_place: (child_with_place[1].start, child_with_place[1].end))
        return children_with_places

    def _place_around_words(self, parent: Element, words: _WordRange) -> dict[Element, _WordRange]:
        """Choose words of the translation for each child element that contains words in the source.

        No word is assigned to two children. There are two passes, and in each, children with more source words choose
        first. In the first pass, a word whose links lead mostly to words outside a child counts against this child. In
        the second pass, children without words may take a free word if at least one of its links leads to them.

        Args:
            parent: the element whose children are placed.
            words: the words of the translation that are inside the parent.

        Returns:
            `dict[Element, _WordRange]`: the words of each child; children without words are missing.
        """
        places: dict[Element, _WordRange] = {}
        # For each word inside the parent, True if it is not assigned to a child yet.
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
        """Return the source words that are at least partly inside an element."""
        return range(bisect_right(self._ends, element.start), bisect_left(self._starts, element.end))

    def _find_best_range(self, covered: range, is_free: list[bool], first_word: int, is_strict: bool) -> _WordRange:
        """Find the range of free words with the largest sum of weights for an element (Kadane's algorithm).

        For example, if the weights are 1.0, -0.1, 1.0, -1.0 and 1.0, the range consists of the first three words.

        Args:
            covered: the source words that the element covers.
            is_free: for each word of the translation from `first_word` on, True if no other element has it. A range
                does not extend across words that are not free.
            first_word: the first word of the translation that the element may get.
            is_strict: see `_weight`.

        Returns:
            `_WordRange`: the best range; empty if no sum is greater than 0.
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
            # If the sum so far is not positive, a range is better without the words before this one.
            if sum_from_start <= 0:
                sum_from_start = 0.0
                start = word
            sum_from_start += self._weight(word, covered, is_strict)
            if sum_from_start > best_sum:
                best_sum = sum_from_start
                best_range = _WordRange(start, word + 1)
        return best_range

    def _weight(self, word: int, covered: range, is_strict: bool) -> float:
        """Return a weight from -1 to 1 that measures how strongly a word of the translation belongs to an element.

        For example, a word with two links into the element and one link to a word outside has the weight 1/3 if
        `is_strict`, and 2/3 otherwise.

        Args:
            word: the word of the translation.
            covered: the source words that the element covers.
            is_strict: True if links to words outside the element reduce the weight, so that a word with mostly such
                links is left to a different element. If False, a single link into the element makes the weight
                positive.
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
        """Return the index of the translated word before which an element without words is placed.

        The element is placed before the translation of the nearest following source word that has links. If there is no
        such word, it is placed after the translation of the nearest preceding one. If the element belongs to the
        preceding word, as a footnote mark does, or if punctuation follows it, the preceding words are tried first.

        Args:
            covered: the source words that the parent of the element covers.
            element: the element.
            words: the words of the translation that are inside the parent.
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
            # Punctuation after an element does not help to place it, because the punctuation follows the element to
            # any place.
            candidates = [*nearest_before, *nearest_after]
        else:
            candidates = [*nearest_after, *nearest_before]
        for source_word in candidates:
            linked_words = [word for word in self._linked_targets[source_word] if words.start <= word < words.end]
            if linked_words:
                return linked_words[0] if source_word in words_after else linked_words[-1] + 1
        return words.end

    def _characters_inside(self, element: Element, words: _WordRange, allowed: _CharacterRange) -> _CharacterRange:
        """Return the characters of the translation that an element encloses.

        Punctuation outside the element in the source stays outside. For example, if "(<b>one</b>)" is translated as
        "(eins)", the brackets stay outside `<b>`.

        Args:
            element: the element.
            words: the words of the translation that the element encloses.
            allowed: the characters that may be inside the element. The result is clipped to this range.
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
        """Return the character position at which an element without words is placed after a word of the translation.

        For the word -1, this is the start of the translation. If no punctuation precedes a footnote mark in the source,
        the mark is placed before the punctuation at the end of the word, as in "word<sup>[1]</sup>.".
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
        """Return True if the translation has a punctuation character at `position` that differs from `character`."""
        return _is_punctuation(self._target[position]) and self._target[position] != character


def _split_word(word: _CharacterRange, sorted_borders: list[int]) -> list[_CharacterRange]:
    """Split a word at the borders inside it.

    For example, a word from 4 to 7 and the borders [4, 5, 9] result in one part from 4 to 5 and one from 5 to 7.
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
    """Return a word index that is not inside any occupied range.

    An index inside a range is moved to the nearer end of this range. For example, if the words 2 to 5 are occupied, the
    index 3 becomes 2, and the index 6 stays unchanged. The ranges must be sorted and must not overlap.
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
    """Replace the alignment links of names and numbers with links between their occurrences in both texts.

    If both texts contain a name or number equally often, its first occurrences are linked, then its second ones, and so
    on. The given links of these words are dropped, because alignments of names are often wrong. For example, "Calc" is
    linked with "Calc" in "<b>Calc</b> and Writer" and "Writer und Calc".
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
    """Find the words of a text that could be names or numbers, and return the word indices of each.

    Words are compared without case and without surrounding punctuation. Single letters are left out, because they are
    often articles or parts of other words. Single digits are included.
    """
    positions = defaultdict[str, list[int]](list)
    for position, word in enumerate(WORDS_AND_LETTERS.findall(text)):
        name = _SURROUNDING_PUNCTUATION.sub("", word).casefold()
        if len(name) > 1 or name.isdecimal():
            positions[name].append(position)
    return positions


def _is_punctuation(text: str) -> bool:
    """Return True if a text is not empty and consists only of punctuation and symbols.

    Combining marks, such as the vowel signs of Hindi, do not count as punctuation, because they belong to letters.
    """
    if not text:
        return False
    for character in text:
        is_mark = category(character).startswith("M")
        if character.isalnum() or character.isspace() or is_mark:
            return False
    return True
