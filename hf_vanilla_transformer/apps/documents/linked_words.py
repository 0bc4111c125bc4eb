"""Link the words of a source text with those of its translation, and split words in which an element starts or ends.

For example, the source "H<sub>2</sub>O" has the words "H", "2" and "O", because the element `<sub>` starts and ends
inside a word. If the translation contains "H2O", this word is split in the same way, and each part is linked with the
same part of the source.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain

from ...translation.words_of_tokens import WORDS_AND_LETTERS


# Punctuation at the ends of a word.
_SURROUNDING_PUNCTUATION = re.compile(r"^[\W_]+|[\W_]+$")


@dataclass(frozen=True)
class CharacterRange:
    """A range of characters in a text, such as a word. `end` is exclusive."""

    start: int
    end: int

    def clip(self, allowed: "CharacterRange") -> "CharacterRange":
        """Return this range without the characters outside of the allowed range."""
        start = min(max(self.start, allowed.start), allowed.end)
        end = min(max(self.end, allowed.start), allowed.end)
        return CharacterRange(start, end)


@dataclass(frozen=True)
class _Match:
    """A part of a source word that a word of the translation contains.

    Args:
        source_part: the index of the part among all source words after splitting.
        characters: the same characters in the translation.
    """

    source_part: int
    characters: CharacterRange


@dataclass(frozen=True)
class _TargetWord:
    """A word of the translation, or a part of one.

    Args:
        characters: the characters of the word.
        source_words: the indices of the source words with which this word is linked. Source words are counted after
            splitting, so each part of a split word counts.
    """

    characters: CharacterRange
    source_words: set[int]


class LinkedWords:
    """The words of a source text and its translation, and the links between them.

    Source words are split where elements start or end. Words of the translation are split where they contain the same
    characters as the parts of a split source word. If both texts contain a name or number equally often, its
    occurrences are linked in order, regardless of the given links.

    Args:
        source, target (`str`): a text and its translation.
        links (`list` of pairs of `int`): the alignment links. Each consists of the index of a source word and the index
            of a target word, where words are not split yet.
        borders (`set[int]`): the positions in the source at which elements start or end.

    Attributes:
        source_words, target_words (`list[CharacterRange]`): the words of both texts after splitting. All indices of
            words refer to these lists.
        linked_sources (`list[set[int]]`): for each target word, the source words that it is linked with.
        linked_targets (`list[list[int]]`): for each source word, the target words that it is linked with, in order.
    """

    def __init__(self, source: str, target: str, links: list[tuple[int, int]], borders: set[int]):
        # The comments follow an example: the source "press H<sub>2</sub>O", its translation "H2O pressen", and links
        # from "press" to "pressen" and from "H2O" to "H2O".
        self._source = source
        self._target = target
        parts_by_source_word = _split_words(source, borders)
        # In the example, these are "press", "H", "2" and "O". `_split_target` below compares the target with them.
        self.source_words = list(chain.from_iterable(parts_by_source_word))

        # The links are pairs of indices of whole words: (0, 1) and (1, 0). From here on, all other indices count the
        # words after splitting, so a part counts as a word. The words of the translation are "H", "2", "O" and
        # "pressen", which are linked with the source words {1}, {2}, {3} and {0}.
        links_of_whole_words = _link_equal_words(links, source, target)
        target_words = self._split_target(links_of_whole_words, _number_parts(parts_by_source_word))
        self.target_words = [word.characters for word in target_words]
        self.linked_sources = [word.source_words for word in target_words]
        self.linked_targets = _reverse_links(self.linked_sources, len(self.source_words))

        # Words do not overlap, so both lists of positions are sorted and can be searched by bisection.
        self._source_starts = [word.start for word in self.source_words]
        self._source_ends = [word.end for word in self.source_words]

    def source_words_between(self, start: int, end: int) -> range:
        """Return the indices of the source words that are at least partly between two positions of the source."""
        # The first word that ends after `start`, and the first word that does not start before `end`.
        first_word = bisect_right(self._source_ends, start)
        end_of_words = bisect_left(self._source_starts, end)
        return range(first_word, end_of_words)

    def first_source_word_from(self, position: int) -> int:
        """Return the index of the first source word that starts at a position of the source or after it."""
        return bisect_left(self._source_starts, position)

    def _split_target(self, links: set[tuple[int, int]], parts_of_source_words: list[range]) -> list[_TargetWord]:
        """Return the words of the translation, split like the source words that they are linked with.

        Args:
            links: the links between whole words. Each consists of the index of a source word and of a target word.
            parts_of_source_words: for each whole source word, the indices of its parts in `source_words`. For
                "press H<sub>2</sub>O", whose second word has three parts, these are range(0, 1) and range(1, 4).
        """
        # For each whole target word, the parts of each source word that it is linked with. A target word that is linked
        # with both source words of the example has the list [range(0, 1), range(1, 4)].
        linked_parts_by_target = defaultdict[int, list[range]](list)
        for source_index, target_index in sorted(links):
            linked_parts_by_target[target_index].append(parts_of_source_words[source_index])

        target_words: list[_TargetWord] = []
        # Links count the words that this regular expression finds.
        for target_index, match in enumerate(WORDS_AND_LETTERS.finditer(self._target)):
            word = CharacterRange(match.start(), match.end())
            target_words += self._split_target_word(word, linked_parts_by_target[target_index])
        return target_words

    def _split_target_word(self, word: CharacterRange, parts_of_linked_words: list[range]) -> list[_TargetWord]:
        """Split a word of the translation in the same way as the source word with which it is linked.

        If it is linked with several split source words, it is split like the first of them. For example, the source
        "B<sub>max</sub>" has the words "B" and "max", so the word "Bmax" of the translation is split into "B" and
        "max". If no linked source word is split, the only part is the whole word.

        Args:
            word: the characters of the whole word.
            parts_of_linked_words: for each whole source word that it is linked with, the indices of its parts. A source
                word that is not split has one part.
        """
        # The parts of all linked source words together.
        all_linked_parts: set[int] = set()
        for parts_of_word in parts_of_linked_words:
            all_linked_parts.update(parts_of_word)
        parts_of_split_words = [parts_of_word for parts_of_word in parts_of_linked_words if len(parts_of_word) > 1]
        if not parts_of_split_words:
            return [_TargetWord(word, all_linked_parts)]
        return self._split_like(parts_of_split_words[0], word, all_linked_parts)

    def _split_like(self, source_parts: range, word: CharacterRange, all_linked_parts: set[int]) -> list[_TargetWord]:
        """Split a word of the translation like a source word, and link each part of it.

        A part that corresponds to a part of the source word is linked with it, and with the parts of all other source
        words that the whole word is linked with. Any other part is linked with everything that the whole word is linked
        with.

        Args:
            source_parts: the parts of the source word.
            word: the characters of the whole word.
            all_linked_parts: the parts of all source words that the whole word is linked with, including this one.
        """
        # The parts of the other source words that the whole word is linked with.
        other_linked_parts = all_linked_parts.difference(source_parts)
        target_parts: list[_TargetWord] = []
        for target_part in self._match_parts(source_parts, word):
            if target_part.source_words:
                linked_parts = target_part.source_words | other_linked_parts
            else:
                linked_parts = all_linked_parts
            target_parts.append(_TargetWord(target_part.characters, linked_parts))
        return target_parts

    def _match_parts(self, source_parts: range, word: CharacterRange) -> list[_TargetWord]:
        """Split a word of the translation where it contains the same characters as the parts of a source word.

        For example, if the parts are "H", "2" and "O", the word "H2-O" is split into "H", "2", "-" and "O".

        Args:
            source_parts: the indices of the parts in `self.source_words`.
            word: the characters of the whole word of the translation.

        Returns:
            `list[_TargetWord]`: the parts of the translated word. Each is linked only with the part of the source word
            that it corresponds to. Characters between two matches correspond to the first part that was not found
            there or, like "-" in the example, to no part.
        """
        target_parts: list[_TargetWord] = []
        # `target_parts` contains the characters before this position, which correspond to the parts before this part.
        position = word.start
        next_part = source_parts.start
        for match in self._find_matches(source_parts, word):
            skipped_characters = CharacterRange(position, match.characters.start)
            skipped_parts = range(next_part, match.source_part)
            target_parts += _link_skipped_characters(skipped_characters, skipped_parts)
            target_parts.append(_TargetWord(match.characters, {match.source_part}))
            position = match.characters.end
            next_part = match.source_part + 1
        remaining_characters = CharacterRange(position, word.end)
        remaining_parts = range(next_part, source_parts.stop)
        target_parts += _link_skipped_characters(remaining_characters, remaining_parts)
        return target_parts

    def _find_matches(self, source_parts: range, word: CharacterRange) -> list[_Match]:
        """Find the parts of a source word in a word of the translation. Parts that do not occur there are left out."""
        matches: list[_Match] = []
        start = word.start
        for source_part in source_parts:
            characters = self._find_in_target(source_part, start, word.end)
            if characters is not None:
                matches.append(_Match(source_part, characters))
                # Only the characters after the last match are searched, so the matches are in the order of the parts.
                start = characters.end
        return matches

    def _find_in_target(self, source_word: int, start: int, end: int) -> CharacterRange | None:
        """Find the text of a source word between two positions of the translation, and return its place there.

        The result is None if the translation does not contain the same text between these positions.
        """
        characters = self.source_words[source_word]
        text = self._source[characters.start : characters.end]
        position = self._target.find(text, start, end)
        if position < 0:
            return None
        return CharacterRange(position, position + len(text))


def _split_words(text: str, borders: set[int]) -> list[list[CharacterRange]]:
    """Find the words of a text, and split them at the borders. Returns the parts of each word.

    The borders are the positions of the text at which elements start or end.
    """
    sorted_borders = sorted(borders)
    parts_of_words: list[list[CharacterRange]] = []
    for match in WORDS_AND_LETTERS.finditer(text):
        word = CharacterRange(match.start(), match.end())
        parts_of_words.append(_split_word(word, sorted_borders))
    return parts_of_words


def _number_parts(parts_by_word: list[list[CharacterRange]]) -> list[range]:
    """Return the indices of the parts of each word, where the parts of all words are counted together.

    For example, the words "press" with one part and "H2O" with three parts give range(0, 1) and range(1, 4).
    """
    indices_by_word: list[range] = []
    start = 0
    for parts in parts_by_word:
        end = start + len(parts)
        indices_by_word.append(range(start, end))
        start = end
    return indices_by_word


def _split_word(word: CharacterRange, sorted_borders: list[int]) -> list[CharacterRange]:
    """Split a word at the borders inside it.

    For example, a word from 4 to 7 and the borders [4, 5, 9] result in one part from 4 to 5 and one from 5 to 7.
    """
    # A border at the start or the end of the word does not split it.
    first_border = bisect_right(sorted_borders, word.start)
    end_of_borders = bisect_left(sorted_borders, word.end)
    parts: list[CharacterRange] = []
    start = word.start
    for border in sorted_borders[first_border:end_of_borders]:
        parts.append(CharacterRange(start, border))
        start = border
    parts.append(CharacterRange(start, word.end))
    return parts


def _link_skipped_characters(characters: CharacterRange, skipped_parts: range) -> list[_TargetWord]:
    """Make the characters of a translated word between two matches a part of this word, and link the part.

    A match is a part of the source word that was also found in the translated word. For example, the source word has
    the parts "H", "2" and "O", and the translated word is "HxO". Then "H" and "O" are matches. The characters between
    them are "x", the skipped part is "2", and the result is a list of one part, "x", which is linked with "2".

    Args:
        characters: the characters of the translated word between two matches, or before the first or after the last
            match. There may be none.
        skipped_parts: the indices of the source parts at this place, which were not found in the translated word.

    Returns:
        `list[_TargetWord]`: the part, or an empty list if there are no characters. The caller adds it to a list of
            parts.
    """
    if characters.start == characters.end:
        return []
    if not skipped_parts:
        # The translated word is "H-2", for example: no source part corresponds to "-".
        return [_TargetWord(characters, set())]
    first_skipped_part = skipped_parts[0]
    return [_TargetWord(characters, {first_skipped_part})]


def _reverse_links(linked_sources: list[set[int]], number_of_source_words: int) -> list[list[int]]:
    """Return the target words that are linked with each source word.

    Args:
        linked_sources: for each target word, the source words that are linked with it.
        number_of_source_words: the number of source words.
    """
    linked_targets: list[list[int]] = [[] for _ in range(number_of_source_words)]
    for target_word, source_words in enumerate(linked_sources):
        for source_word in source_words:
            linked_targets[source_word].append(target_word)
    return linked_targets


def _link_equal_words(links: list[tuple[int, int]], source: str, target: str) -> set[tuple[int, int]]:
    """Replace the alignment links of names and numbers with links between their occurrences in both texts.

    Only names and numbers that both texts contain equally often are treated in this way. The alignment links of these
    words are dropped, because alignments of names are often wrong. For example, "Calc" is linked with "Calc" in
    "<b>Calc</b> and Writer" and "Writer und Calc".
    """
    links_of_names = _pair_names(source, target)
    source_words_of_names = {source_word for source_word, _ in links_of_names}
    target_words_of_names = {target_word for _, target_word in links_of_names}
    new_links = set(links_of_names)
    for source_word, target_word in links:
        is_replaced = source_word in source_words_of_names or target_word in target_words_of_names
        if not is_replaced:
            new_links.add((source_word, target_word))
    return new_links


def _pair_names(source: str, target: str) -> list[tuple[int, int]]:
    """Link the occurrences of each name and number that both texts contain equally often.

    The first occurrence in the source is linked with the first one in the translation, and so on.
    """
    # For each name, the indices of the words at which it occurs.
    names_in_source = _find_names(source)
    names_in_target = _find_names(target)
    links: list[tuple[int, int]] = []
    for name, source_words in names_in_source.items():
        # This is an empty list if the name does not occur in the translation.
        target_words = names_in_target[name]
        if len(source_words) == len(target_words):
            links += zip(source_words, target_words, strict=True)
    return links


def _find_names(text: str) -> defaultdict[str, list[int]]:
    """Find the words of a text that could be names or numbers, and return the indices at which each of them occurs.

    Words are compared without case and without surrounding punctuation. Single letters are left out, because they are
    often articles or parts of other words. Single digits are included.
    """
    word_indices = defaultdict[str, list[int]](list)
    for index, word in enumerate(WORDS_AND_LETTERS.findall(text)):
        name = _SURROUNDING_PUNCTUATION.sub("", word).casefold()
        if len(name) > 1 or name.isdecimal():
            word_indices[name].append(index)
    return word_indices
