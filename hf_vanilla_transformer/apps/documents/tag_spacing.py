"""Remove tags and protected elements from the text that the model sees, and restore their spacing in the translation.

The words of a text are separated by gaps, which contain white space, tags, and protected elements. The protected
elements divide a gap into joints, each of which contains white space and tags. For example, in
"open <b> <code>x</code></b> now", there is one gap between "open" and "now". It has two joints around the protected
`<code>`: the first contains the tag `<b>` with a space on each side, and the second contains the tag `</b>` with a
space after it.

The gaps and joints of the source record the white space around its tags and protected elements. If a gap of the
translation has the same tags and protected elements, it gets the same white space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .inline_elements import CLOSING_PUNCTUATION, OPENING_PUNCTUATION, Element, Tag, Token, is_spaced_letter
from .markup_tree import collapse_spaces, write_node


@dataclass(frozen=True)
class _JointKey:
    """The tags and protected elements by which a joint of the translation finds the same joint of the source.

    A joint is the white space and tags between two neighbors; see [`_Joint`]. The elements before and after the joint
    are None if it is next to a word or an end of the text instead.
    """

    element_before: Element | None
    tags: tuple[Tag, ...]
    element_after: Element | None


@dataclass(frozen=True)
class _Neighbor:
    """What is next to a protected element on one side of it: a word, an end of the text, or a different element.

    White space and tags between the element and its neighbor do not matter.

    Args:
        character (`str`): the character of the word that is nearest to the element; empty if the neighbor is not a
            word.
        is_text_end (`bool`): True if the text starts or ends on this side of the element.
        is_attached_punctuation (`bool`): True if the character is punctuation that is usually next to the element
            without white space: an opening bracket before it, or a period after it, for example.
        continues_in_element (`bool`): True if the element belongs to the word if there is no white space between them.
            For example, the "s" in "<code>k</code>s" belongs to "k".
    """

    character: str
    is_text_end: bool
    is_attached_punctuation: bool
    continues_in_element: bool


@dataclass
class _Joint:
    """The white space and tags between two neighbors, which may be words, protected elements, or ends of the text.

    Args:
        element_before, element_after (`Element`, *optional*): the neighbors if they are protected elements.
        character_before, character_after (`str`): the last character of the word before the joint, and the first
            character of the word after it. They are empty if the neighbor is not a word.
        tags (`list[Tag]`): the tags in order.
        spaces (`list[str]`): the white space before the first tag, between the tags, and after the last one. The list
            has one more item than `tags`.
    """

    element_before: Element | None = None
    element_after: Element | None = None
    character_before: str = ""
    character_after: str = ""
    tags: list[Tag] = field(default_factory=list)
    spaces: list[str] = field(default_factory=lambda: [""])

    @property
    def space(self) -> str:
        """All white space of the joint, with each run of spaces collapsed into one space."""
        return collapse_spaces("".join(self.spaces))

    @property
    def closeness(self) -> int:
        """How close the neighbors are: 2 without any space, 1 with only no-break spaces, 0 with ordinary spaces."""
        if not self.space:
            return 2
        return 0 if " " in self.space else 1

    @property
    def key(self) -> _JointKey:
        """The key with which a joint of the translation finds the corresponding joint of the source."""
        return _JointKey(self.element_before, tuple(self.tags), self.element_after)

    @property
    def is_at_start(self) -> bool:
        """True if the joint is at the start of the text."""
        return self.element_before is None and not self.character_before

    @property
    def is_at_end(self) -> bool:
        """True if the joint is at the end of the text."""
        return self.element_after is None and not self.character_after

    @property
    def follows_opening_punctuation(self) -> bool:
        """True if the word before the joint ends with an opening bracket or quotation mark."""
        return self.character_before in OPENING_PUNCTUATION

    @property
    def precedes_closing_punctuation(self) -> bool:
        """True if the word after the joint starts with a period, a closing bracket, or similar punctuation."""
        return self.character_after in CLOSING_PUNCTUATION

    @property
    def neighbor_before(self) -> _Neighbor:
        """What is before the joint: the neighbor of the protected element after the joint."""
        return _Neighbor(
            character=self.character_before,
            is_text_end=self.is_at_start,
            is_attached_punctuation=self.follows_opening_punctuation,
            continues_in_element=_can_have_suffix(self.character_before),
        )

    @property
    def neighbor_after(self) -> _Neighbor:
        """What is after the joint: the neighbor of the protected element before the joint."""
        return _Neighbor(
            character=self.character_after,
            is_text_end=self.is_at_end,
            is_attached_punctuation=self.precedes_closing_punctuation,
            continues_in_element=self.character_after.isalnum(),
        )

    @property
    def expected_space(self) -> str:
        """The white space of a joint in the translation that corresponds exactly to this joint of the source.

        In general, this is the space of the source. However, if the joint is at an end of the text and not next to a
        protected element, it is empty, because the model sees no space there.
        """
        has_elements = self.element_before is not None or self.element_after is not None
        if not has_elements and (self.is_at_start or self.is_at_end):
            return ""
        return self.space

    def spaces_outside_elements(self, space: str) -> list[str]:
        """Return the value of `spaces` that puts the white space `space` outside of all elements.

        The space is placed after the end tags and before the start tags, as in "one</b> <i>two".
        """
        # Only end tags before the first start tag count: the space goes between them and this start tag.
        number_of_end_tags = 0
        for tag in self.tags:
            if tag.is_opening:
                break
            number_of_end_tags += 1
        # The space with the index n is placed after n tags.
        spaces = [""] * (len(self.tags) + 1)
        spaces[number_of_end_tags] = space
        return spaces


@dataclass
class _Gap:
    """The protected elements between two words, and the white space and tags before, between, and after them.

    Args:
        joints (`list[_Joint]`): the joints; there is one more than there are elements.
        elements (`list[Element]`): the protected elements.
        word_after (`str`): the word that follows the gap; empty at the end of the text.
    """

    joints: list[_Joint] = field(default_factory=lambda: [_Joint()])
    elements: list[Element] = field(default_factory=list)
    word_after: str = ""

    def add_space(self, space: str) -> None:
        """Add white space at the end of the gap."""
        self.joints[-1].spaces[-1] += space

    def add_tag(self, tag: Tag) -> None:
        """Add a tag at the end of the gap."""
        self.joints[-1].tags.append(tag)
        self.joints[-1].spaces.append("")

    def add_element(self, element: Element) -> None:
        """Add a protected element at the end of the gap."""
        # The element ends the last joint and starts a new one.
        self.joints[-1].element_after = element
        self.elements.append(element)
        self.joints.append(_Joint(element_before=element))

    def end_before(self, word: str) -> None:
        """Record the word that follows the gap."""
        self.joints[-1].character_after = word[0]
        self.word_after = word

    @property
    def tags(self) -> list[Tag]:
        """The tags of all joints in order."""
        tags: list[Tag] = []
        for joint in self.joints:
            tags += joint.tags
        return tags

    @property
    def all_space(self) -> str:
        """The white space of all joints in order, as one string."""
        space = ""
        for joint in self.joints:
            space += "".join(joint.spaces)
        return space

    @property
    def has_space_in_elements(self) -> bool:
        """True if the text of a protected element starts or ends with white space."""
        for element in self.elements:
            text = element.all_text
            if text != text.strip():
                return True
        return False

    @property
    def space_for_model(self) -> str:
        """The white space between the gap's two words in the text that the model sees, without protected elements.

        For example, "press <kbd>k</kbd> now" becomes "press now" with one space. The result is empty at the start and
        at the end of the text.
        """
        if self.joints[0].is_at_start or self.joints[-1].is_at_end:
            return ""
        if not self.elements:
            # The only joint has the white space of the source.
            return self.joints[0].space
        if self._needs_no_space:
            return ""
        return " "

    @property
    def _needs_no_space(self) -> bool:
        """True if the words around the protected elements follow each other directly when the elements are removed."""
        first_joint = self.joints[0]
        last_joint = self.joints[-1]
        # No white space separates the words, so "one<wbr>two" becomes "onetwo".
        nothing_separates_words = not self.all_space and not self.has_space_in_elements
        # Punctuation directly follows an element, so "press <kbd>k</kbd>, then" becomes "press, then".
        ends_with_punctuation = last_joint.precedes_closing_punctuation and not last_joint.space
        # An element directly follows a bracket, so "(<kbd>k</kbd> now)" becomes "(now)".
        starts_with_bracket = first_joint.follows_opening_punctuation and not first_joint.space
        return nothing_separates_words or ends_with_punctuation or starts_with_bracket


class SpacedText:
    """A source text whose inline elements and spacing are removed for the model, and restored in the translation.

    If the translation has the same tags and protected elements between two words as the source, and the same space
    between the words, then all white space around the tags and elements is copied from the source. Otherwise, protected
    elements keep the spaces next to them, except that there is no space before punctuation.

    Args:
        tokens (`Sequence[Token]`): the strings, tags, and protected elements of the text in order. The constructor sets
            the attributes `start`, `end` and `follows_word` of the elements.

    Attributes:
        text (`str`): the text that the model sees, without protected elements and without white space at its ends.
    """

    def __init__(self, tokens: Sequence[Token]):
        # `_record_joints` stores the joints of the source in these three dictionaries, so that `write` can look up
        # their white space. A joint is the white space and the tags between two neighbors, which are words, protected
        # elements, or ends of the text.
        # The joints with tags or next to protected elements, by their tags and neighbors.
        self._source_joints_by_key: dict[_JointKey, _Joint] = {}
        # For each protected element, the joint directly before it and the joint directly after it.
        self._source_joint_before: dict[Element, _Joint] = {}
        self._source_joint_after: dict[Element, _Joint] = {}

        # A gap is everything between two words: white space, tags, and protected elements.
        gaps = _divide_tokens(tokens)
        # This sets the attributes `start` and `end` of all elements.
        self.text = _join_and_set_ranges(gaps)
        for gap in gaps:
            self._record_joints(gap)
        # This must be last, because it reads the recorded joints.
        self._set_follows_word(gaps)

    def _record_joints(self, gap: _Gap) -> None:
        """Record the joints between two words of the source: the white space and tags around protected elements.

        `write` looks them up to restore this white space in the translation.
        """
        for joint in gap.joints:
            # A joint without tags in a gap without elements is only white space between two words. Nothing is recorded
            # for it, because the translation contains its own white space.
            if joint.tags or gap.elements:
                self._source_joints_by_key[joint.key] = joint
        # The joints and elements of a gap alternate, so the element with the index n is between the joints n and n + 1.
        for index, element in enumerate(gap.elements):
            self._source_joint_before[element] = gap.joints[index]
            self._source_joint_after[element] = gap.joints[index + 1]

    def _set_follows_word(self, gaps: list[_Gap]) -> None:
        """Set the attribute `follows_word` of all protected elements in the gaps."""
        # `_follows_word` reads the attribute of the element before, so the elements must be visited in order.
        for gap in gaps:
            for element in gap.elements:
                element.follows_word = self._follows_word(element)

    def _follows_word(self, element: Element) -> bool:
        """Return True if a protected element belongs to the word before it.

        This is the case if there is less space before the element than after it. For example, the footnote mark in
        "a word<sup>[1]</sup> here" belongs to "word".

        The method reads the attribute `follows_word` of a protected element directly before this one, so it must be
        called for the elements in order.
        """
        joint_before = self._source_joint_before[element]
        joint_after = self._source_joint_after[element]
        is_closer_to_text_before = joint_before.closeness > joint_after.closeness
        if joint_before.is_at_start or not is_closer_to_text_before:
            return False
        # From here on, there is no ordinary space before the element: either a no-break space, or no space.
        preceding_element = joint_before.element_before
        if preceding_element is not None:
            # Two adjacent protected elements, such as "[1][2]" after a word, belong to the same word, or both to none.
            return preceding_element.follows_word
        if joint_before.space:
            # A no-break space connects the element with whatever precedes it.
            return True
        return _can_have_suffix(joint_before.character_before)

    def write(self, tokens: Sequence[Token], escape: Callable[[str], str]) -> str:
        """Return the markup of a translation, with white space around tags and protected elements as in the source.

        Args:
            tokens (`Sequence[Token]`): the strings, tags, and protected elements of the translation in order.
            escape (`Callable`): the function that escapes text for HTML or XML.
        """
        written: list[str] = []
        for gap in _divide_tokens(tokens):
            spaces = self._choose_spaces(gap)
            # The joints of a gap contain its white space and tags. They alternate with the protected elements.
            for joint, space in zip(gap.joints, spaces, strict=True):
                written.append(self._write_joint(joint, space, escape))
                if joint.element_after is not None:
                    written.append(write_node(joint.element_after.node, escape))
            written.append(escape(gap.word_after))
        return "".join(written)

    def _write_joint(self, joint: _Joint, space: str, escape: Callable[[str], str]) -> str:
        """Return the markup of a joint of the translation: its tags, with `space` distributed around them.

        A joint is the white space and tags between two neighbors, which may be words or protected elements.
        """
        # The key consists of the tags, and of the protected elements before and after them. This is None if the source
        # has no joint with the same key. Its `expected_space` is the white space that the translation has at this joint
        # if it is spaced like the source.
        source_joint = self._source_joints_by_key.get(joint.key)
        if source_joint is not None and source_joint.expected_space == space:
            # The white space is divided among the tags as in the source.
            spaces = source_joint.spaces
        else:
            # All of it is placed after the end tags and before the start tags, as in "one</b> <i>two".
            spaces = joint.spaces_outside_elements(space)
        # There is one space more than there are tags, and spaces may be empty. The first space is before the first tag,
        # and each other space follows a tag.
        written = escape(spaces[0])
        for tag, space_after_tag in zip(joint.tags, spaces[1:], strict=True):
            node = tag.element.node
            written += node.opening if tag.is_opening else node.closing
            written += escape(space_after_tag)
        return written

    def _choose_spaces(self, gap: _Gap) -> list[str]:
        """Return the white space for each joint of a gap of the translation.

        The model does not see the protected elements of the gap, so its translation contains only the space between
        the two words around the gap. The spaces beside the elements come from the source.
        """
        # The gap contains no other white space yet.
        word_space = gap.all_space
        if not gap.elements:
            return [word_space]

        spaces = self._choose_spaces_beside_elements(gap, word_space)
        words_are_separated = any(spaces) or gap.has_space_in_elements
        if words_are_separated or not word_space:
            return spaces
        # All spaces are empty, but the space that the model has written between the words must not be lost.
        if self._belongs_to_word_before(gap.elements[0]):
            return [*spaces[:-1], word_space]
        return [word_space, *spaces[1:]]

    def _choose_spaces_beside_elements(self, gap: _Gap, word_space: str) -> list[str]:
        """Return the white space before, between, and after the protected elements of a gap of the translation.

        `word_space` is the white space that the model has written between the words before and after the gap.
        """
        spaces = [self._choose_space_before(gap.elements[0], gap.joints[0], word_space)]
        for element_before, element_after in pairwise(gap.elements):
            spaces.append(self._space_between(element_before, element_after))
        spaces.append(self._choose_space_after(gap.elements[-1], gap.joints[-1], word_space))
        return spaces

    def _belongs_to_word_before(self, element: Element) -> bool:
        """Return True if an element follows a word in the source to which it may belong, as a footnote mark does."""
        character_before = self._source_joint_before[element].character_before
        return _can_have_suffix(character_before)

    def _choose_space_before(self, element: Element, joint: _Joint, word_space: str) -> str:
        """Return the white space between a protected element and the word or end of the text before it.

        Args:
            element: the first protected element of a gap in the translation.
            joint: the white space and tags before the element in the translation.
            word_space: the white space that the model has written between the words before and after the gap.
        """
        source_joint = self._source_joint_before[element]
        return _choose_space_beside(
            element,
            neighbor=joint.neighbor_before,
            source_neighbor=source_joint.neighbor_before,
            source_space=source_joint.space,
            word_space=word_space,
        )

    def _choose_space_after(self, element: Element, joint: _Joint, word_space: str) -> str:
        """Return the white space between a protected element and the word or end of the text after it.

        Args:
            element: the last protected element of a gap in the translation.
            joint: the white space and tags after the element in the translation.
            word_space: the white space that the model has written between the words before and after the gap.
        """
        source_joint = self._source_joint_after[element]
        return _choose_space_beside(
            element,
            neighbor=joint.neighbor_after,
            source_neighbor=source_joint.neighbor_after,
            source_space=source_joint.space,
            word_space=word_space,
        )

    def _space_between(self, element_before: Element, element_after: Element) -> str:
        """Return the white space between two protected elements that are adjacent in the translation.

        The result is the space after the first element in the source. If there is no space after it, the result is the
        space before the second element in the source.
        """
        space_after_first = self._source_joint_after[element_before].space
        if space_after_first:
            return space_after_first
        return self._source_joint_before[element_after].space


def _join_and_set_ranges(gaps: list[_Gap]) -> str:
    """Return the text that the model sees, and set the attributes `start` and `end` of all elements in the gaps.

    A gap contains the white space, tags, and protected elements between two words. The text has the white space of each
    gap, without its tags and protected elements, and the word after the gap.
    """
    text = ""
    for gap in gaps:
        end_of_last_word = len(text)
        text += gap.space_for_model
        start_of_next_word = len(text)
        text += collapse_spaces(gap.word_after)
        _set_ranges_of_elements(gap, end_of_last_word, start_of_next_word)
    return text


def _set_ranges_of_elements(gap: _Gap, end_of_last_word: int, start_of_next_word: int) -> None:
    """Set the attributes `start` and `end` of the elements that start or end between two words of the source.

    Args:
        gap: the white space, tags, and protected elements between two words.
        end_of_last_word, start_of_next_word: the positions of the gap in the text that the model sees.
    """
    # The white space of the gap is outside of the elements: they start at the next word, and end at the last word.
    for tag in gap.tags:
        element = tag.element
        if tag.is_opening:
            element.start = start_of_next_word
        else:
            element.end = end_of_last_word
            # If both tags are in this gap, the start is after the end now. The range must be empty instead.
            element.start = min(element.start, element.end)
    for protected_element in gap.elements:
        protected_element.start = end_of_last_word
        protected_element.end = end_of_last_word


def _choose_space_beside(
    element: Element, neighbor: _Neighbor, source_neighbor: _Neighbor, source_space: str, word_space: str
) -> str:
    """Return the white space of the translation between a protected element and its neighbor on one side.

    In the comments, the element is "k", and an arrow leads from the source to the translation.

    Args:
        element: the protected element.
        neighbor: what is next to the element in the translation.
        source_neighbor: what is next to the element on the same side in the source.
        source_space: the white space on this side of the element in the source.
        word_space: the white space that the model has written between the words before and after the element.
    """
    both_are_text_ends = neighbor.is_text_end and source_neighbor.is_text_end
    both_are_attached_punctuation = neighbor.is_attached_punctuation and source_neighbor.is_attached_punctuation
    if both_are_text_ends or both_are_attached_punctuation:
        return source_space
    if neighbor.is_text_end:
        # "press k" -> "k drücken": the translation starts without a space.
        return ""
    if neighbor.is_attached_punctuation:
        # "press k" -> "(k drücken)": the model has written no space after the bracket.
        return word_space

    # From here on, the neighbor in the translation is a word.
    if source_space:
        # "press k" -> "Taste k"
        return source_space
    if source_neighbor.continues_in_element:
        # "many ks" -> "viele ks": the element and the "s" are not separated in the source either.
        return ""
    if _needs_space(element, neighbor.character, word_space):
        # "k now" -> "jetzt k": the element has no word before it in the source, so it had no space.
        return " "
    return ""


def _needs_space(element: Element, adjacent_character: str, word_space: str) -> bool:
    """Return True if a protected element needs a space to separate it from the character next to it.

    This is the case if the character is a letter or digit and the element contains letters or digits, because readers
    would read both as one word. An element without text, such as an image, needs a space only if the translation has
    one between the words.
    """
    # In scripts without spaces, and next to punctuation, no space is added.
    if not is_spaced_letter(adjacent_character):
        return False
    return word_space != "" or any(map(str.isalnum, element.all_text))


def _can_have_suffix(character: str) -> bool:
    """Return True if an element directly after a character belongs to the word before it, as a footnote mark does.

    This applies to letters, digits, and closing punctuation, but not, for example, to an opening bracket.
    """
    return character.isalnum() or character in CLOSING_PUNCTUATION


def _divide_tokens(tokens: Sequence[Token]) -> list[_Gap]:
    """Divide tokens into words and the gaps before, between, and after them.

    Here, a "word" is all text between two tags or protected elements, such as "one two", so it may contain white space.

    Returns:
        `list[_Gap]`: the gaps, each with the word that follows it. No word follows the last gap.
    """
    gaps = [_Gap()]
    for token in tokens:
        current_gap = gaps[-1]
        if isinstance(token, Tag):
            current_gap.add_tag(token)
        elif isinstance(token, Element):
            current_gap.add_element(token)
        elif not token.strip():
            # The string is empty or only white space.
            current_gap.add_space(token)
        else:
            gaps.append(_end_gap(current_gap, token))
    return gaps


def _end_gap(gap: _Gap, text: str) -> _Gap:
    """End a gap with the word in a text, and return the gap after this word.

    White space around the word is added to the two gaps.
    """
    word = text.strip()
    space_before, _, space_after = text.partition(word)
    gap.add_space(space_before)
    gap.end_before(word)
    next_gap = _Gap(joints=[_Joint(character_before=word[-1])])
    next_gap.add_space(space_after)
    return next_gap
