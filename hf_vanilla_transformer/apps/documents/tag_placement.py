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

import math
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
# The last word of a text that does not end with white space.
_LAST_WORD = re.compile(rf"(?:{WORDS_AND_LETTERS.pattern})\Z")


@dataclass(frozen=True, order=True)
class _WordRange:
    """A range of words in a translation. `end` is exclusive.

    An element without words has an empty range, and is placed before the word `start`. Ranges are sorted by start, and
    then by end, so an empty range, such as (3, 3), comes before a range that starts at the same place, such as (3, 5).
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


@dataclass(frozen=True)
class _DividedWords:
    """The source words of an element that are before and after a place in it."""

    before: range
    after: range


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
        """Place the inline elements of the source in the translation.

        Args:
            content (`Sequence[str | Element]`): the content of the source, as [`read_elements`] returns it.

        Returns:
            `list[Token]`: the text of the translation, with the tags and protected elements in their places.
        """
        # An element without tags that encloses the whole content.
        root = Element(Node(Role.BLOCK, ""), list(content), start=0, end=len(self._source))
        all_words = _WordRange(0, len(self._words.target_words))
        all_characters = CharacterRange(0, len(self._target))
        return self._translate_content(_PlacedElement(root, all_words), all_characters, is_in_translated_ruby=False)

    def _translate_content(
        self, parent: _PlacedElement, characters: CharacterRange, is_in_translated_ruby: bool
    ) -> list[Token]:
        """Return the translation of an element's content, with the inner elements at their places.

        Args:
            parent: the element, and the words of the translation that it encloses.
            characters: the characters of the translation that the element encloses.
            is_in_translated_ruby: True if the element is, or is inside, a `<ruby>` whose text is translated. Readings,
                such as `<rt>`, are then added to `dropped_readings` instead of the content.
        """
        tokens: list[Token] = []
        # The tokens contain the translation up to this position.
        position = characters.start
        for child in self._place_children(parent):
            if is_in_translated_ruby and child.element.is_reading:
                self.dropped_readings.append(child.element.node)
                continue
            # A child starts after the previous one. Otherwise, punctuation inside the previous one would occur twice.
            remaining = CharacterRange(position, characters.end)
            inside_child = self._characters_inside(child, remaining)
            tokens.append(self._target[position : inside_child.start])
            tokens += self._translate_element(child, inside_child, is_in_translated_ruby)
            position = inside_child.end
        tokens.append(self._target[position : characters.end])
        return tokens

    def _translate_element(
        self, placed: _PlacedElement, characters: CharacterRange, is_in_translated_ruby: bool
    ) -> list[Token]:
        """Return an element with its tags and its translated content; a protected element is returned unchanged.

        Args:
            placed: the element, and the words of the translation that it encloses.
            characters: the characters of the translation that the element encloses.
            is_in_translated_ruby: True if the element is inside a `<ruby>` whose text is translated.
        """
        element = placed.element
        if element.is_protected:
            return [element]
        belongs_to_ruby = is_in_translated_ruby or element.node.name == "ruby"
        if belongs_to_ruby and self._is_untranslated(element, characters):
            # The readings of an untranslated text are still correct.
            content = self._copy_content(element)
        else:
            content = self._translate_content(placed, characters, is_in_translated_ruby=belongs_to_ruby)
        return _enclose_in_tags(element, content)

    def _is_untranslated(self, element: Element, characters: CharacterRange) -> bool:
        """Return True if the translation has, in a range of characters, the same text as an element in the source."""
        source_text = self._source[element.start : element.end]
        translated_text = self._target[characters.start : characters.end]
        return translated_text == source_text

    def _copy_content(self, parent: Element) -> list[Token]:
        """Return the content of an element, including all tags inside it, exactly as in the source."""
        tokens: list[Token] = []
        position = parent.start
        for element in parent.child_elements:
            tokens.append(self._source[position : element.start])
            tokens += self._copy_element(element)
            position = element.end
        tokens.append(self._source[position : parent.end])
        return tokens

    def _copy_element(self, element: Element) -> list[Token]:
        """Return an element with its tags and its content, exactly as in the source."""
        if element.is_protected:
            return [element]
        return _enclose_in_tags(element, self._copy_content(element))

    def _place_children(self, parent: _PlacedElement) -> list[_PlacedElement]:
        """Choose for each child of an element the range of translated words that it encloses.

        No two ranges overlap. A child gets an empty range, which marks its place, if it contains no words in the
        source, or if none of its words has a translation that it could enclose.

        Returns:
            `list[_PlacedElement]`: the child elements with their words, in the order of the translation.
        """
        # First, the children that enclose words choose their ranges. The other children are then placed between these
        # ranges.
        words_of_children = self._place_around_words(parent)
        occupied = sorted(words_of_children.values())
        children: list[_PlacedElement] = []
        for child in parent.element.child_elements:
            if child in words_of_children:
                words_of_child = words_of_children[child]
            else:
                words_of_child = self._place_between_words(child, parent, occupied)
            children.append(_PlacedElement(child, words_of_child))
        # Sorting is stable, so children at the same place stay in source order.
        children.sort(key=lambda child: child.words)
        return children

    def _place_between_words(self, child: Element, parent: _PlacedElement, occupied: list[_WordRange]) -> _WordRange:
        """Return the empty range at the place of a child that encloses no words of the translation.

        Args:
            child: the child.
            parent: the element around it.
            occupied: the sorted ranges of the children that enclose words. The place is not inside any of them.
        """
        place = self._find_place_without_words(child, parent)
        free_place = _move_outside(occupied, place)
        return _WordRange(free_place, free_place)

    def _place_around_words(self, parent: _PlacedElement) -> dict[Element, _WordRange]:
        """Choose translated words for each child element that contains words in the source.

        There are two passes, and in each, children with more source words choose first:

        1. The first pass is strict. A linked word of the translation counts in favor of a child if at least half of its
           links lead to source words inside the child, and otherwise against it.
        2. The second pass is only for children that have got no words. A free word counts in favor of a child if at
           least one of its links leads into the child.

        Returns:
            `dict[Element, _WordRange]`: the words of each child; children without words are missing. No word is
            assigned to two children.
        """
        largest_first = self._sort_children_with_words(parent.element)
        words_of_children = self._place_in_turn(largest_first, parent, [], is_strict=True)
        unplaced_children = [child for child in largest_first if child not in words_of_children]
        taken_ranges = list(words_of_children.values())
        words_of_other_children = self._place_in_turn(unplaced_children, parent, taken_ranges, is_strict=False)
        return {**words_of_children, **words_of_other_children}

    def _sort_children_with_words(self, parent: Element) -> list[Element]:
        """Return the child elements that contain words in the source, from the most words to the fewest."""
        children_with_words = [child for child in parent.child_elements if self._source_words_of(child)]
        return sorted(children_with_words, key=lambda child: len(self._source_words_of(child)), reverse=True)

    def _place_in_turn(
        self, children: list[Element], parent: _PlacedElement, taken_ranges: list[_WordRange], is_strict: bool
    ) -> dict[Element, _WordRange]:
        """Choose translated words for one child after the other. Children for which no words fit are missing.

        Args:
            children: elements with words in the source.
            parent: the element around them.
            taken_ranges: the words of the translation that other children enclose. No child can choose them.
            is_strict: see `_weight`.
        """
        taken_words = _collect_words(taken_ranges)
        words_of_children: dict[Element, _WordRange] = {}
        for child in children:
            words_of_child = self._choose_words(child, parent, taken_words, is_strict)
            if not words_of_child.is_empty:
                words_of_children[child] = words_of_child
                taken_words |= _collect_words([words_of_child])
        return words_of_children

    def _choose_words(
        self, child: Element, parent: _PlacedElement, taken_words: set[int], is_strict: bool
    ) -> _WordRange:
        """Return the words of the translation that a child should enclose; an empty range if no words fit.

        Args:
            child: an element with words in the source.
            parent: the element around it.
            taken_words: the words of the translation that other children of the parent enclose.
            is_strict: see `_weight`.
        """
        source_words = self._source_words_of(child)
        has_all_source_words = source_words == self._source_words_of(parent.element)
        if has_all_source_words and not taken_words:
            # In the source, the parent has no words outside the child. Therefore, the child encloses all words of the
            # parent in the translation, too, unless a different child has taken some of them.
            return parent.words
        return self._find_best_range(source_words, parent.words, taken_words, is_strict)

    def _source_words_of(self, element: Element) -> range:
        """Return the source words that are at least partly inside an element."""
        return self._words.source_words_between(element.start, element.end)

    def _find_best_range(
        self, source_words: range, allowed_words: _WordRange, taken_words: set[int], is_strict: bool
    ) -> _WordRange:
        """Return the range of translated words with the largest sum of weights; an empty range if no words fit.

        Args:
            source_words: the source words of an element.
            allowed_words: the words of the translation that it may enclose.
            taken_words: the words that other elements enclose. The range does not extend across them.
            is_strict: see `_weight`.
        """
        linked_words = self._words_linked_with(source_words, allowed_words)
        if not linked_words:
            return _WordRange(0, 0)

        # All words outside of these have negative weights, so the best range starts and ends between them.
        first_word = min(linked_words)
        last_word = max(linked_words)
        weights: list[float] = []
        for word in range(first_word, last_word + 1):
            weight = self._weight_unless_taken(word, source_words, taken_words, is_strict)
            weights.append(weight)
        # The index 0 of the weights is the first word.
        heaviest_indices = _find_heaviest_range(weights)
        return _WordRange(first_word + heaviest_indices.start, first_word + heaviest_indices.stop)

    def _words_linked_with(self, source_words: range, allowed_words: _WordRange) -> list[int]:
        """Return the allowed words of the translation that are linked with any of the source words."""
        linked_words: list[int] = []
        for source_word in source_words:
            linked_words += self._linked_words_in(allowed_words, source_word)
        return linked_words

    def _weight_unless_taken(self, word: int, source_words: range, taken_words: set[int], is_strict: bool) -> float:
        """Return the weight of a word; minus infinity if it is taken, so that no range across it is the best one."""
        if word in taken_words:
            return -math.inf
        return self._weight(word, source_words, is_strict)

    def _weight(self, word: int, source_words: range, is_strict: bool) -> float:
        """Return a weight from -1 to 1 that measures how strongly a word of the translation belongs to an element.

        Args:
            word: the word of the translation.
            source_words: the source words of the element.
            is_strict: True if links to words outside the element reduce the weight. If False, a single link into the
                element makes it positive.
        """
        linked_sources = self._words.linked_sources[word]
        if not linked_sources:
            return _WEIGHT_OF_UNLINKED_WORD
        links_inside = len([source_word for source_word in linked_sources if source_word in source_words])
        links_outside = len(linked_sources) - links_inside
        return _weigh_links(links_inside, links_outside, is_strict)

    def _linked_words_in(self, words: _WordRange, source_word: int) -> list[int]:
        """Return the translated words that are linked with a source word and are in the given range, in order."""
        return [word for word in self._words.linked_targets[source_word] if words.contains(word)]

    def _find_place_without_words(self, element: Element, parent: _PlacedElement) -> int:
        """Find the place of an element without words, and return the index of the translated word after this place.

        The place is either before the translation of the word that follows the element in the source, or after the
        translation of the word that precedes it. Without words before the element in the parent, it is the start of
        the parent. Without words after it, or without linked words, it is the end of the parent.
        """
        divided = self._divide_source_words(parent.element, element.start)
        if not divided.before:
            return parent.words.start
        if not divided.after:
            return parent.words.end

        # Each of these places is None if no near source word on its side is linked.
        place_before_following_word = self._place_before_following_word(divided.after, parent.words)
        place_after_preceding_word = self._place_after_preceding_word(divided.before, parent.words)
        following_word = divided.after[0]
        if self._belongs_to_preceding_word(element, following_word):
            places = [place_after_preceding_word, place_before_following_word]
        else:
            places = [place_before_following_word, place_after_preceding_word]
        return _choose_first_place(places, otherwise=parent.words.end)

    def _divide_source_words(self, parent: Element, position: int) -> _DividedWords:
        """Divide the source words of an element into those before and those after a position of the source.

        For example, if the parent has the words 2 to 5, and the word 4 follows the position, the words before it are
        range(2, 4), and the words after it are range(4, 6).
        """
        source_words = self._source_words_of(parent)
        next_word = self._words.first_source_word_from(position)
        # At the end of the parent, the next word is outside of it, so the border is the end of the parent's words.
        border = min(max(next_word, source_words.start), source_words.stop)
        return _DividedWords(before=range(source_words.start, border), after=range(border, source_words.stop))

    def _belongs_to_preceding_word(self, element: Element, following_word: int) -> bool:
        """Return True if the word before an element shows its place better than the source word that follows it.

        A footnote mark belongs to the word before it. Punctuation can follow any word, so it does not show a place.
        """
        return element.follows_word or self._is_source_punctuation(following_word)

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
                # The place is after the last linked word, because the list is in the order of the translation.
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
                # The place is before the first linked word, because the list is in the order of the translation.
                return linked_words[0]
        return None

    def _characters_inside(self, placed: _PlacedElement, allowed: CharacterRange) -> CharacterRange:
        """Return the characters of the translation that an element encloses.

        Args:
            placed: the element, and its words in the translation.
            allowed: the characters that may be inside the element. The result is clipped to this range.
        """
        if placed.words.is_empty:
            # The element encloses no words. Its empty range marks a place between two words, and `start` is the index
            # of the word after this place. For example, the range (3, 3) is the place between the words 2 and 3, so
            # `word_before` is 2. In general, the element is put directly after this word, so the white space between
            # the two words follows the element. A footnote mark may be put before the punctuation at the end of the
            # word. The range (0, 0) is the place before the first word. Then `word_before` is -1, for which
            # `_position_after_word` returns the position 0.
            word_before = placed.words.start - 1
            position = self._position_after_word(word_before, placed.element)
            characters = CharacterRange(position, position)
        else:
            characters = self._without_outer_punctuation(placed)
        return characters.clip(allowed)

    def _without_outer_punctuation(self, placed: _PlacedElement) -> CharacterRange:
        """Return the characters of an element's words, without punctuation that is outside the element in the source.

        For example, if "(<b>one</b>)" is translated as "(eins)", the brackets stay outside `<b>`. A mark with which the
        element itself starts or ends in the source stays inside, as the inner brackets of "(<b>(one)</b>)" do.
        """
        element = placed.element
        characters = self._characters_of_words(placed.words)
        if self._follows_punctuation_in_source(element):
            characters = self._without_punctuation_at_start(characters, element)
        if self._precedes_punctuation_in_source(element):
            characters = self._without_punctuation_at_end(characters, element)
        return characters

    def _characters_of_words(self, words: _WordRange) -> CharacterRange:
        """Return the characters from the first to the last word of a range of translated words, which is not empty."""
        first_word = self._words.target_words[words.start]
        last_word = self._words.target_words[words.end - 1]
        return CharacterRange(first_word.start, last_word.end)

    def _without_punctuation_at_start(self, characters: CharacterRange, element: Element) -> CharacterRange:
        """Return a range of the translation without punctuation at its start. At least one character remains.

        A mark that is equal to the first character of the element in the source is not removed.
        """
        first_in_source = self._source[element.start : element.end][:1]
        start = characters.start
        last_character = characters.end - 1
        while start < last_character and self._is_punctuation_except(first_in_source, start):
            start += 1
        return CharacterRange(start, characters.end)

    def _without_punctuation_at_end(self, characters: CharacterRange, element: Element) -> CharacterRange:
        """Return a range of the translation without punctuation at its end. At least one character remains.

        A mark that is equal to the last character of the element in the source is not removed.
        """
        last_in_source = self._source[element.start : element.end][-1:]
        last_character = characters.end - 1
        while last_character > characters.start and self._is_punctuation_except(last_in_source, last_character):
            last_character -= 1
        return CharacterRange(characters.start, last_character + 1)

    def _follows_punctuation_in_source(self, element: Element) -> bool:
        """Return True if punctuation directly precedes an element in the source, without white space in between."""
        text_before = self._source[max(0, element.start - _MOST_CHARACTERS) : element.start]
        word_before = _LAST_WORD.search(text_before)
        return word_before is not None and _is_punctuation(word_before[0])

    def _precedes_punctuation_in_source(self, element: Element) -> bool:
        """Return True if punctuation directly follows an element in the source, without white space in between."""
        text_after = self._source[element.end : element.end + _MOST_CHARACTERS]
        word_after = WORDS_AND_LETTERS.match(text_after)
        return word_after is not None and _is_punctuation(word_after[0])

    def _is_punctuation_except(self, exception: str, position: int) -> bool:
        """Return True if the translation has a punctuation character at a position, and it is not the exception."""
        character = self._target[position]
        return _is_punctuation(character) and character != exception

    def _position_after_word(self, word: int, element: Element) -> int:
        """Return the character position at which an element without words is placed after a word of the translation.

        Args:
            word: the index of the word; -1 if the element is placed at the start of the translation.
            element: the element.
        """
        if word < 0:
            return 0
        characters = self._words.target_words[word]
        if self._precedes_final_punctuation(element):
            return self._find_final_punctuation(characters)
        return characters.end

    def _precedes_final_punctuation(self, element: Element) -> bool:
        """Return True if an element belongs before the punctuation of a word, as in "word<sup>[1]</sup>.".

        In "word.<sup>[1]</sup>", it stays after the punctuation.
        """
        if not element.follows_word:
            return False
        follows_punctuation = element.start > 0 and _is_punctuation(self._source[element.start - 1])
        return not follows_punctuation

    def _find_final_punctuation(self, word: CharacterRange) -> int:
        """Return the position at which the punctuation at the end of a translated word starts.

        At least one character of the word is before this position.
        """
        position = word.end
        first_allowed_position = word.start + 1
        while position > first_allowed_position and _is_punctuation(self._target[position - 1]):
            position -= 1
        return position


def _enclose_in_tags(element: Element, content: list[Token]) -> list[Token]:
    """Return some content between the start tag and the end tag of an element."""
    return [Tag(element, is_opening=True), *content, Tag(element, is_opening=False)]


def _collect_words(ranges: Sequence[_WordRange]) -> set[int]:
    """Return the indices of all words in the given ranges."""
    words: set[int] = set()
    for word_range in ranges:
        words.update(range(word_range.start, word_range.end))
    return words


def _choose_first_place(places: Sequence[int | None], otherwise: int) -> int:
    """Return the first place that is not None, or `otherwise` if all of them are None."""
    for place in places:
        if place is not None:
            return place
    return otherwise


def _weigh_links(links_inside: int, links_outside: int, is_strict: bool) -> float:
    """Return the weight of a word with so many links to source words inside and outside of an element.

    For example, two links inside and one outside give the weight 1/3 if `is_strict` (see `TagPlacement._weight`), and
    2/3 otherwise. The word must have at least one link.
    """
    num_links = links_inside + links_outside
    if links_inside == 0:
        return _WEIGHT_OF_OTHER_WORD
    if not is_strict:
        return links_inside / num_links
    if links_inside == links_outside:
        # A tie counts slightly in favor of the element.
        return _WEIGHT_OF_TIED_WORD
    return (links_inside - links_outside) / num_links


def _find_heaviest_range(weights: Sequence[float]) -> range:
    """Return the range of indices at which the weights have the largest sum (Kadane's algorithm).

    For example, the weights 1.0, -0.1, 1.0, -1.0 and 1.0 have the largest sum in `range(0, 3)`. The result is empty if
    no sum is greater than 0.
    """
    heaviest_range = range(0)
    largest_sum = 0.0
    # The current range ends with the last index that was visited.
    start = 0
    sum_from_start = 0.0
    for index, weight in enumerate(weights):
        if sum_from_start <= 0:
            # The earlier indices do not increase the sum, so the current range starts anew.
            start = index
            sum_from_start = 0.0
        sum_from_start += weight
        if sum_from_start > largest_sum:
            largest_sum = sum_from_start
            heaviest_range = range(start, index + 1)
    return heaviest_range


def _move_outside(occupied: list[_WordRange], place: int) -> int:
    """Move a place between two words out of the occupied ranges, and return the new place.

    A place is the index of the word that follows it. A place inside a range is moved to the nearer end of this range.
    For example, if the words 2 to 5 are occupied, the place 3 becomes 2, and the place 6 stays unchanged. The ranges
    must be sorted and must not overlap.
    """
    num_ranges_before = bisect_left(occupied, place, key=lambda word_range: word_range.start)
    if num_ranges_before == 0:
        return place
    # Only the last range that starts before the place can contain it.
    last_range_before = occupied[num_ranges_before - 1]
    if place >= last_range_before.end:
        return place
    return _find_nearer_end(last_range_before, place)


def _find_nearer_end(words: _WordRange, place: int) -> int:
    """Return the start or the end of a range, whichever is nearer to a place inside the range; the end if both are."""
    distance_to_start = place - words.start
    distance_to_end = words.end - place
    if distance_to_start < distance_to_end:
        return words.start
    return words.end


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
