"""Place the inline tags of a source text in its translation, based on word alignment links.

An alignment link connects a source word with a word of the translation. For example, if "forty two" is translated as
"zwei und vierzig", and "forty" is linked with "und" and "vierzig", then "<b>forty</b> two" becomes
"zwei <b>und vierzig</b>".

The placement has three steps:

1. The words of both texts are linked. If an element starts or ends inside a word, the word is split there; see
   `linked_words.py`.
2. Each element is placed around the range of translated words with the largest sum of weights. The weight of a word
   depends on how many of its links lead to words inside the element; see `_weight`.
3. Punctuation at the ends of the range is moved outside if it is outside the element in the source.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

from ...translation.words_of_tokens import WORDS_AND_LETTERS
from .inline_elements import Element, Tag, Token
from .linked_words import CharacterRange, LinkedWords
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
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass(frozen=True)
class _WordRange:
    """A range of words in a translation. `end` is exclusive.

    An element without words has an empty range, and is placed before the word `start`.
    """

    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """True if the range contains no words."""
        return self.start == self.end

    def contains(self, word: int) -> bool:
        """Return True if the word with this index is in the range."""
        return self.start <= word < self.end


@dataclass(frozen=True)
class _PlacedElement:
    """An element, and the words of the translation that it encloses."""

    element: Element
    words: _WordRange


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
        self._words = LinkedWords(source, target, links, borders)
        self.dropped_readings: list[Node] = []

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
        all_words = _WordRange(0, len(self._words.target_words))
        all_characters = CharacterRange(0, len(self._target))
        self._add_content(root, all_words, all_characters, tokens, is_translated_base=False)
        return tokens

    def _add_content(
        self,
        parent: Element,
        words: _WordRange,
        characters: CharacterRange,
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
        for child in self._place_children(parent, words):
            if is_translated_base and child.element.is_reading:
                self.dropped_readings.append(child.element.node)
                continue
            # A child must not start before the end of the previous one. Otherwise, punctuation inside the previous
            # one would be written twice.
            allowed = CharacterRange(position, characters.end)
            inside = self._characters_inside(child, allowed)
            tokens.append(self._target[position : inside.start])
            self._add_element(child, inside, tokens, is_translated_base)
            position = inside.end
        tokens.append(self._target[position : characters.end])

    def _add_element(
        self, placed: _PlacedElement, inside: CharacterRange, tokens: list[Token], is_translated_base: bool
    ) -> None:
        """Append an element with its tags and its translated content to a list of tokens.

        Args:
            placed: the element, and its words in the translation.
            inside: the characters of the translation that the element encloses.
            tokens: the list to which the element is appended.
            is_translated_base: True if the element is inside a `<ruby>` whose text is translated.
        """
        element = placed.element
        if element.is_protected:
            tokens.append(element)
            return
        is_in_ruby = is_translated_base or element.node.name == "ruby"
        translated_text = self._target[inside.start : inside.end]
        is_copied = translated_text == self._source[element.start : element.end]
        tokens.append(Tag(element, is_opening=True))
        if is_in_ruby and is_copied:
            # The text is not translated, so its readings are still correct.
            self._add_copied_content(element, tokens)
        else:
            self._add_content(element, placed.words, inside, tokens, is_translated_base=is_in_ruby)
        tokens.append(Tag(element, is_opening=False))

    def _add_copied_content(self, parent: Element, tokens: list[Token]) -> None:
        """Append the content of an element exactly as in the source, because the translation copies its text."""
        position = parent.start
        for element in parent.child_elements:
            tokens.append(self._source[position : element.start])
            if element.is_protected:
                tokens.append(element)
            else:
                tokens.append(Tag(element, is_opening=True))
                self._add_copied_content(element, tokens)
                tokens.append(Tag(element, is_opening=False))
            position = element.end
        tokens.append(self._source[position : parent.end])

    def _place_children(self, parent: Element, words: _WordRange) -> list[_PlacedElement]:
        """Choose ranges of words for the child elements of an element, so that the ranges do not overlap.

        Args:
            parent: the element.
            words: the words of the translation that are inside the element.

        Returns:
            `list[_PlacedElement]`: the child elements with their ranges, in the order of the translation.
        """
        words_of_children = self._place_around_words(parent, words)
        occupied = sorted(words_of_children.values(), key=lambda word_range: word_range.start)
        children: list[_PlacedElement] = []
        for child in parent.child_elements:
            words_of_child = words_of_children.get(child)
            if words_of_child is None:
                place = self._find_place_without_words(child, parent, words)
                place = _move_outside(occupied, place)
                words_of_child = _WordRange(place, place)
            children.append(_PlacedElement(child, words_of_child))
        # Sorting is stable, so children at the same place stay in source order. An empty range comes before the words
        # that start at its place.
        children.sort(key=lambda child: (child.words.start, child.words.end))
        return children

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
        words_of_children: dict[Element, _WordRange] = {}
        # The words of the translation that are assigned to a child.
        taken_words: set[int] = set()
        covered_by_parent = self._covered_words(parent)
        # For each child, the source words that it covers.
        covered = {child: self._covered_words(child) for child in parent.child_elements}
        children_with_words = [child for child in parent.child_elements if covered[child]]
        largest_first = sorted(children_with_words, key=lambda child: len(covered[child]), reverse=True)
        for is_strict in (True, False):
            for child in largest_first:
                is_placed = child in words_of_children
                if is_placed:
                    continue
                if covered[child] == covered_by_parent and not words_of_children:
                    # The child has the same source words as its parent, so it gets the same translated words, too.
                    words_of_child = words
                else:
                    words_of_child = self._find_best_range(covered[child], words, taken_words, is_strict)
                if not words_of_child.is_empty:
                    words_of_children[child] = words_of_child
                    taken_words.update(range(words_of_child.start, words_of_child.end))
        return words_of_children

    def _covered_words(self, element: Element) -> range:
        """Return the source words that are at least partly inside an element."""
        return self._words.source_words_between(element.start, element.end)

    def _find_best_range(self, covered: range, words: _WordRange, taken_words: set[int], is_strict: bool) -> _WordRange:
        """Find the range of words with the largest sum of weights for an element (Kadane's algorithm).

        For example, if the weights are 1.0, -0.1, 1.0, -1.0 and 1.0, the range consists of the first three words.

        Args:
            covered: the source words that the element covers.
            words: the words of the translation that the element may get.
            taken_words: the words that other elements have. The range does not extend across them.
            is_strict: see `_weight`.

        Returns:
            `_WordRange`: the best range; empty if no sum is greater than 0.
        """
        best_range = _WordRange(0, 0)
        linked_words: list[int] = []
        for source_word in covered:
            linked_words += self._linked_words_in(words, source_word)
        if not linked_words:
            return best_range

        best_sum = 0.0
        # The range that ends before the current word, and the sum of its weights.
        start = min(linked_words)
        sum_from_start = 0.0
        for word in range(min(linked_words), max(linked_words) + 1):
            if word in taken_words:
                sum_from_start = 0.0
                continue
            if sum_from_start <= 0:
                # The words before this one do not increase the sum, so the range starts anew with this word.
                start = word
                sum_from_start = 0.0
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
        linked_sources = self._words.linked_sources[word]
        if not linked_sources:
            return _WEIGHT_OF_UNLINKED_WORD
        links_inside = 0
        for source_word in linked_sources:
            if source_word in covered:
                links_inside += 1
        links_outside = len(linked_sources) - links_inside
        if links_inside == 0:
            return _WEIGHT_OF_OTHER_WORD
        if not is_strict:
            return links_inside / len(linked_sources)
        if links_inside == links_outside:
            return _WEIGHT_OF_TIED_WORD
        return (links_inside - links_outside) / len(linked_sources)

    def _linked_words_in(self, words: _WordRange, source_word: int) -> list[int]:
        """Return those words of the translation in a range that are linked with a source word, in order."""
        return [word for word in self._words.linked_targets[source_word] if words.contains(word)]

    def _find_place_without_words(self, element: Element, parent: Element, words: _WordRange) -> int:
        """Return the index of the translated word before which an element without words is placed.

        The element is placed before the translation of the source word that follows it or, if no following word is
        linked, after the translation of the word that precedes it. The preceding words are tried first in two cases:

        - The element belongs to the word before it, as a footnote mark does.
        - Punctuation follows the element. This does not help, because the punctuation follows the element to any place.

        Args:
            element: the element.
            parent: the element around it.
            words: the words of the translation that are inside the parent.
        """
        covered = self._covered_words(parent)
        next_source_word = self._words.first_source_word_from(element.start)
        words_before = range(covered.start, min(next_source_word, covered.stop))
        words_after = range(max(next_source_word, covered.start), covered.stop)
        if not words_before:
            return words.start
        if not words_after:
            return words.end
        places_to_try = [
            self._place_before_following_word(words_after, words),
            self._place_after_preceding_word(words_before, words),
        ]
        if element.follows_word or self._is_source_punctuation(words_after[0]):
            places_to_try.reverse()
        for place in places_to_try:
            # A place is None if no near source word on this side is linked.
            if place is not None:
                return place
        return words.end

    def _is_source_punctuation(self, source_word: int) -> bool:
        """Return True if a word of the source consists only of punctuation."""
        characters = self._words.source_words[source_word]
        return _is_punctuation(self._source[characters.start : characters.end])

    def _place_after_preceding_word(self, words_before: range, words: _WordRange) -> int | None:
        """Return the place after the translation of the nearest source word before an element.

        Args:
            words_before: the source words before the element.
            words: the words of the translation that are inside the element's parent.

        Returns:
            `int`: the index of the translated word that follows this place; None if no near source word is linked.
        """
        nearest_words = words_before[-_MOST_NEIGHBORS:]
        for source_word in reversed(nearest_words):
            linked_words = self._linked_words_in(words, source_word)
            if linked_words:
                return linked_words[-1] + 1
        return None

    def _place_before_following_word(self, words_after: range, words: _WordRange) -> int | None:
        """Return the place before the translation of the nearest source word after an element.

        Args:
            words_after: the source words after the element.
            words: the words of the translation that are inside the element's parent.

        Returns:
            `int`: the index of the translated word that follows this place; None if no near source word is linked.
        """
        nearest_words = words_after[:_MOST_NEIGHBORS]
        for source_word in nearest_words:
            linked_words = self._linked_words_in(words, source_word)
            if linked_words:
                return linked_words[0]
        return None

    def _characters_inside(self, placed: _PlacedElement, allowed: CharacterRange) -> CharacterRange:
        """Return the characters of the translation that an element encloses.

        Args:
            placed: the element, and its words in the translation.
            allowed: the characters that may be inside the element. The result is clipped to this range.
        """
        if placed.words.is_empty:
            position = self._end_of_word(placed.words.start - 1, placed.element)
            characters = CharacterRange(position, position)
        else:
            characters = self._without_outer_punctuation(placed)
        return characters.clip(allowed)

    def _without_outer_punctuation(self, placed: _PlacedElement) -> CharacterRange:
        """Return the characters of an element's words, without punctuation that is outside the element in the source.

        For example, if "(<b>one</b>)" is translated as "(eins)", the brackets stay outside `<b>`.
        """
        start = self._words.target_words[placed.words.start].start
        end = self._words.target_words[placed.words.end - 1].end
        element = placed.element
        text_before = self._source[max(0, element.start - _MOST_CHARACTERS) : element.start]
        text_inside = self._source[element.start : element.end]
        text_after = self._source[element.end : element.end + _MOST_CHARACTERS]

        # Punctuation with which the element itself starts or ends in the source stays inside.
        word_before = _LAST_WORD.search(text_before)
        if word_before is not None and _is_punctuation(word_before[0]):
            while start < end - 1 and self._is_other_punctuation(start, text_inside[:1]):
                start += 1
        word_after = WORDS_AND_LETTERS.match(text_after)
        if word_after is not None and _is_punctuation(word_after[0]):
            while end > start + 1 and self._is_other_punctuation(end - 1, text_inside[-1:]):
                end -= 1
        return CharacterRange(start, end)

    def _is_other_punctuation(self, position: int, character: str) -> bool:
        """Return True if the translation has a punctuation character at `position` that differs from `character`."""
        return _is_punctuation(self._target[position]) and self._target[position] != character

    def _end_of_word(self, word: int, element: Element) -> int:
        """Return the character position at which an element without words is placed after a word of the translation.

        For the word -1, this is the start of the translation. If no punctuation precedes a footnote mark in the source,
        the mark is placed before the punctuation at the end of the word, as in "word<sup>[1]</sup>.".
        """
        if word < 0:
            return 0
        characters = self._words.target_words[word]
        end = characters.end
        character_before = self._source[max(0, element.start - 1) : element.start]
        if element.follows_word and not _is_punctuation(character_before):
            # At least one character of the word stays before the mark.
            while end > characters.start + 1 and _is_punctuation(self._target[end - 1]):
                end -= 1
        return end


def _move_outside(occupied: list[_WordRange], place: int) -> int:
    """Return a place between words that is not inside any occupied range.

    A place is the index of the word that follows it. A place inside a range is moved to the nearer end of this range.
    For example, if the words 2 to 5 are occupied, the place 3 becomes 2, and the place 6 stays unchanged. The ranges
    must be sorted and must not overlap.
    """
    ranges_before = bisect_left(occupied, place, key=lambda word_range: word_range.start)
    if ranges_before == 0:
        return place
    last_range_before = occupied[ranges_before - 1]
    if place >= last_range_before.end:
        return place
    distance_to_start = place - last_range_before.start
    distance_to_end = last_range_before.end - place
    if distance_to_start < distance_to_end:
        return last_range_before.start
    return last_range_before.end


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
