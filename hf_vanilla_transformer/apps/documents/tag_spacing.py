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

from .inline_elements import CLOSING_PUNCTUATION, OPENING_PUNCTUATION, Element, Tag, Token, is_spaced_letter
from .markup_tree import collapse_spaces, write_node


@dataclass(frozen=True)
class _JointKey:
    """The neighbors and tags that identify a joint, used to match the joints of a source and its translation."""

    element_before: Element | None
    tags: tuple[Tag, ...]
    element_after: Element | None


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
        model_space (`str`): the white space between the gap's two words in the text that the model sees. It is set only
            for the joints of a source.
    """

    element_before: Element | None = None
    element_after: Element | None = None
    character_before: str = ""
    character_after: str = ""
    tags: list[Tag] = field(default_factory=list)
    spaces: list[str] = field(default_factory=lambda: [""])
    model_space: str = ""

    @property
    def space(self) -> str:
        """All white space of the joint, with each run of spaces collapsed into one space."""
        return collapse_spaces("".join(self.spaces))

    @property
    def closeness(self) -> int:
        """The closeness of the neighbors: 2 without any space, 1 with only no-break spaces, 0 with ordinary spaces."""
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

    def spaces_outside_elements(self, space: str) -> list[str]:
        """Return the value of `spaces` that puts the white space `space` outside of all elements.

        The space is placed after the end tags and before the start tags, as in "one</b> <i>two".
        """
        number_of_end_tags = 0
        while number_of_end_tags < len(self.tags) and not self.tags[number_of_end_tags].is_opening:
            number_of_end_tags += 1
        spaces = [""] * (len(self.tags) + 1)
        spaces[number_of_end_tags] = space
        return spaces


@dataclass
class _Gap:
    """The protected elements between two words, and the joints before, between, and after these elements."""

    joints: list[_Joint]
    elements: list[Element]

    @property
    def has_space_in_elements(self) -> bool:
        """True if the text of a protected element starts or ends with white space."""
        return any(element.all_text != element.all_text.strip() for element in self.elements)


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
        self._joint_before: dict[Element, _Joint] = {}
        self._joint_after: dict[Element, _Joint] = {}
        self._joints: dict[_JointKey, _Joint] = {}
        words, gaps = _divide_tokens(tokens)
        text = ""
        # Elements whose start tag is between the previous word and the next word.
        opened: list[Element] = []
        for index, gap in enumerate(gaps):
            space = self._model_space(gap)
            self._add_gap(gap, space, len(text), opened)
            if index == len(words):
                # This is the gap after the last word.
                break
            for element in opened:
                element.start = len(text) + len(space)
            opened.clear()
            text += space + collapse_spaces(words[index])
        self.text = text

    @staticmethod
    def _model_space(gap: _Gap) -> str:
        """Return the white space between a gap's two words in the text that the model sees.

        This text does not contain protected elements. For example, "press <kbd>k</kbd> now" becomes "press now" with
        one space. "press <kbd>k</kbd>, then" becomes "press, then" without a space before the comma, because
        punctuation directly follows a word.
        """
        first_joint = gap.joints[0]
        last_joint = gap.joints[-1]
        if first_joint.is_at_start or last_joint.is_at_end:
            return ""
        space = collapse_spaces("".join(joint.space for joint in gap.joints))
        if not gap.elements:
            return space
        if not space and not gap.has_space_in_elements:
            # There is no space at all, as in "one<wbr>two".
            return ""
        is_before_punctuation = last_joint.character_after in CLOSING_PUNCTUATION and not last_joint.space
        is_after_punctuation = first_joint.character_before in OPENING_PUNCTUATION and not first_joint.space
        return "" if is_before_punctuation or is_after_punctuation else " "

    def _add_gap(self, gap: _Gap, space: str, text_length: int, opened: list[Element]) -> None:
        """Store the joints of a gap, and set the character ranges of the elements that start or end in it.

        Args:
            gap: the gap.
            space: the white space between the gap's two words in the text that the model sees.
            text_length: the length of the model's text before the gap.
            opened: a list to which the elements that start in this gap and contain the next word are added.
        """
        for joint in gap.joints:
            joint.model_space = space
            if joint.tags or gap.elements:
                self._joints[joint.key] = joint
            for tag in joint.tags:
                element = tag.element
                if tag.is_opening:
                    # This empty range is correct for an element without words. For other elements, `start` is later
                    # moved to the next word.
                    element.start = text_length
                    element.end = text_length
                    opened.append(element)
                elif element in opened:
                    # The element starts and ends in the same gap, so it contains no word.
                    opened.remove(element)
                else:
                    # The element ends before the white space of this gap.
                    element.end = text_length
            if joint.element_before is not None:
                self._joint_after[joint.element_before] = joint
            if joint.element_after is not None:
                joint.element_after.start = text_length
                joint.element_after.end = text_length
                self._joint_before[joint.element_after] = joint
        for element in gap.elements:
            element.follows_word = self._follows_word(element)

    def _follows_word(self, element: Element) -> bool:
        """Return True if a protected element belongs to the word before it.

        This is the case if there is less space before the element than after it. For example, the footnote mark in
        "a word<sup>[1]</sup> here" belongs to "word".
        """
        before = self._joint_before[element]
        after = self._joint_after[element]
        if before.is_at_start or before.closeness <= after.closeness:
            return False
        if before.element_before is not None:
            return before.element_before.follows_word
        return before.space != "" or _can_have_suffix(before.character_before)

    def write(self, tokens: Sequence[Token], escape: Callable[[str], str]) -> str:
        """Return the markup of a translation, with white space around tags and protected elements as in the source.

        Args:
            tokens (`Sequence[Token]`): the strings, tags, and protected elements of the translation in order.
            escape (`Callable`): the function that escapes text for HTML or XML.
        """
        words, gaps = _divide_tokens(tokens)
        written: list[str] = []
        for index, gap in enumerate(gaps):
            for joint, space in zip(gap.joints, self._spaces_of_joints(gap), strict=True):
                written.append(self._write_joint(joint, space, escape))
                if joint.element_after is not None:
                    written.append(write_node(joint.element_after.node, escape))
            if index < len(words):
                written.append(escape(words[index]))
        return "".join(written)

    def _write_joint(self, joint: _Joint, space: str, escape: Callable[[str], str]) -> str:
        """Return the markup of a joint of the translation: its tags, with `space` before, between, or after them.

        If the source has the same joint with the same space, the space is placed as in the source. Otherwise, it is
        placed outside the elements.
        """
        spaces = joint.spaces_outside_elements(space)
        source_joint = self._joints.get(joint.key)
        if source_joint is not None:
            has_elements = joint.element_before is not None or joint.element_after is not None
            source_space = source_joint.space if has_elements else source_joint.model_space
            if space == source_space:
                spaces = source_joint.spaces
        written = escape(spaces[0])
        for tag, space_after_tag in zip(joint.tags, spaces[1:], strict=True):
            node = tag.element.node
            written += node.opening if tag.is_opening else node.closing
            written += escape(space_after_tag)
        return written

    def _spaces_of_joints(self, gap: _Gap) -> list[str]:
        """Return the white space for each joint of a gap in the translation.

        The model's translation contains only the space between the gap's two words. For example, if "k" in
        "press k now" is protected, the model translates "press now", and the spaces around "k" come from the source.
        """
        word_space = ""
        for joint in gap.joints:
            word_space += "".join(joint.spaces)
        if not gap.elements:
            return [word_space]
        spaces = [self._space_before(gap.elements[0], gap.joints[0], word_space)]
        for joint in gap.joints[1:-1]:
            spaces.append(self._space_between(joint))
        spaces.append(self._space_after(gap.elements[-1], gap.joints[-1], word_space))
        if word_space and not any(spaces) and not gap.has_space_in_elements:
            # No joint has a space, but the two words need one. It is placed on the side on which the source does not
            # attach the element to a word.
            is_attached_to_word_before = _can_have_suffix(self._joint_before[gap.elements[0]].character_before)
            if is_attached_to_word_before:
                spaces[-1] = word_space
            else:
                spaces[0] = word_space
        return spaces

    def _space_before(self, element: Element, joint: _Joint, word_space: str) -> str:
        """Return the white space before the first protected element of a gap in the translation.

        The element follows a word or the start of the translation.

        Args:
            element: the first protected element of the gap.
            joint: the first joint of the gap.
            word_space: the white space that the translation has between the words before and after the gap.
        """
        source_joint = self._joint_before[element]
        if joint.is_at_start:
            # "k now" starts without a space, even if the source is "press k".
            return source_joint.space if source_joint.is_at_start else ""
        if joint.character_before in OPENING_PUNCTUATION:
            # "(k now)" has no space after the bracket, even if the source is "press k".
            source_character = source_joint.character_before
            has_punctuation_in_source = source_character != "" and source_character in OPENING_PUNCTUATION
            return source_joint.space if has_punctuation_in_source else word_space
        if source_joint.space or _can_have_suffix(source_joint.character_before):
            # "press k" has a space, and "a word[1]" has none, like the source.
            return source_joint.space
        # In the source, the element is at the start or after a bracket: "k now" becomes "jetzt k", with a new space.
        return " " if _needs_space(element, joint.character_before, word_space) else ""

    def _space_after(self, element: Element, joint: _Joint, word_space: str) -> str:
        """Return the white space after the last protected element of a gap in the translation.

        The element is followed by a word or by the end of the translation.

        Args:
            element: the last protected element of the gap.
            joint: the last joint of the gap.
            word_space: the white space that the translation has between the words before and after the gap.
        """
        source_joint = self._joint_after[element]
        if joint.is_at_end:
            # "press k" ends without a space, even if the source is "k now".
            return source_joint.space if source_joint.is_at_end else ""
        if joint.character_after in CLOSING_PUNCTUATION:
            # "press k." has no space before the period, even if the source is "k now".
            source_character = source_joint.character_after
            has_punctuation_in_source = source_character != "" and source_character in CLOSING_PUNCTUATION
            return source_joint.space if has_punctuation_in_source else word_space
        if source_joint.space or source_joint.character_after.isalnum():
            # "k now" has a space, and "<code>k</code>s" has none, like the source.
            return source_joint.space
        # In the source, the element is at the end or before punctuation: "press k." becomes "k drücken.", with a new
        # space.
        return " " if _needs_space(element, joint.character_after, word_space) else ""

    def _space_between(self, joint: _Joint) -> str:
        """Return the white space between two adjacent protected elements of the translation."""
        assert joint.element_before is not None
        assert joint.element_after is not None
        source_joint = self._joint_after[joint.element_before]
        if source_joint.element_after is joint.element_after:
            return source_joint.space
        # The elements are not adjacent in the source, so either element's space can be used.
        return source_joint.space or self._joint_before[joint.element_after].space


def _needs_space(element: Element, neighbor: str, word_space: str) -> bool:
    """Return True if a protected element needs a space to separate it from the character next to it.

    This is the case if the character is a letter or digit and the element contains letters or digits, because readers
    would read both as one word. An element without text, such as an image, needs a space only if the translation has
    one between the words.
    """
    if not is_spaced_letter(neighbor):
        return False
    return word_space != "" or any(map(str.isalnum, element.all_text))


def _can_have_suffix(character: str) -> bool:
    """Return True if an element directly after a character belongs to the preceding word, as a footnote mark does.

    This applies to letters, digits, and closing punctuation, but not, for example, to an opening bracket.
    """
    return character.isalnum() or (character != "" and character in CLOSING_PUNCTUATION)


def _divide_tokens(tokens: Sequence[Token]) -> tuple[list[str], list[_Gap]]:
    """Divide tokens into words and the gaps before, between, and after them.

    Here, a "word" is all text between two tags or protected elements, such as "one two", so it may contain white space.
    There is one more gap than there are words.
    """
    words: list[str] = []
    gaps = [_Gap([_Joint()], [])]
    for token in tokens:
        joint = gaps[-1].joints[-1]
        if isinstance(token, Tag):
            joint.tags.append(token)
            joint.spaces.append("")
        elif isinstance(token, Element):
            joint.element_after = token
            gaps[-1].elements.append(token)
            gaps[-1].joints.append(_Joint(element_before=token))
        else:
            _add_characters(token, words, gaps)
    return words, gaps


def _add_characters(characters: str, words: list[str], gaps: list[_Gap]) -> None:
    """Add a string to the words, and add the white space at its ends to the gaps before and after it.

    If the string contains only white space, it is added to the last gap.
    """
    word = characters.strip()
    joint = gaps[-1].joints[-1]
    if not word:
        joint.spaces[-1] += characters
        return
    start = characters.index(word)
    end = start + len(word)
    joint.spaces[-1] += characters[:start]
    joint.character_after = word[0]
    words.append(word)
    next_joint = _Joint(character_before=word[-1], spaces=[characters[end:]])
    gaps.append(_Gap([next_joint], []))
