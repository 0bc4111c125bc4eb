"""The text of inline elements for the model, and white space between the words, tags and protected parts of its
translation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .inline_elements import CLOSING_PUNCTUATION, OPENING_PUNCTUATION, Element, Tag, Token, is_spaced_letter
from .markup_tree import collapse_spaces, write


@dataclass
class _Joint:
    """What is between two neighbors, words or protected parts: white space, and tags in it.

    Args:
        part_before, part_after (`Element`, *optional*): the neighbors that are protected parts.
        character_before, character_after (`str`): the last and the first character of neighbors that are words; empty
            for protected parts and at the ends of the text.
        tags (`list[Tag]`): start and end tags.
        spaces (`list[str]`): the white space before the first tag, between tags, and after the last one.
        space_of_text (`str`): the white space that the text for the model has here.
    """

    part_before: Element | None = None
    part_after: Element | None = None
    character_before: str = ""
    character_after: str = ""
    tags: list[Tag] = field(default_factory=list)
    spaces: list[str] = field(default_factory=lambda: [""])
    space_of_text: str = ""

    @property
    def space(self) -> str:
        """All white space, with one space for a run of them."""
        return collapse_spaces("".join(self.spaces))

    @property
    def closeness(self) -> int:
        """How close the neighbors are: without space, with a no-break space, or with a space between them."""
        if not self.space:
            return 2
        return 0 if " " in self.space else 1

    @property
    def key(self) -> tuple[Element | None, tuple[Tag, ...], Element | None]:
        """Equal for joints of a text and of its translation that have the same tags and protected neighbors."""
        return self.part_before, tuple(self.tags), self.part_after

    @property
    def is_at_start(self) -> bool:
        """Whether nothing comes before it."""
        return self.part_before is None and not self.character_before

    @property
    def is_at_end(self) -> bool:
        """Whether nothing comes after it."""
        return self.part_after is None and not self.character_after

    def layout(self, space: str) -> list[str]:
        """Spaces around the tags, with this one outside of elements: after end tags, before start tags."""
        count = 0
        while count < len(self.tags) and not self.tags[count].is_opening:
            count += 1
        spaces = [""] * (len(self.tags) + 1)
        spaces[count] = space
        return spaces


@dataclass
class _Gap:
    """What is between two words: joints, and the protected parts between these."""

    joints: list[_Joint]
    parts: list[Element]

    @property
    def has_space_in_parts(self) -> bool:
        """Whether a protected part begins or ends with white space."""
        return any(part.content != part.content.strip() for part in self.parts)


class SpacedText:
    """A text with inline elements, from which the text for the model is made, and which shows where spaces belong.

    Where a translation has the tags and protected parts of the text, between words with the same space, all white space
    around them is that of the document. Elsewhere, protected parts have spaces as in the document, but none before
    punctuation.

    Args:
        tokens (`Sequence[Token]`): characters, tags and protected parts, in order. `start`, `end` and `follows_word` of
            the elements are set.

    Attributes:
        text (`str`): the text for the model, without protected parts and white space at its ends.
    """

    def __init__(self, tokens: Sequence[Token]):
        words, gaps = _divide(tokens)
        self._joint_before: dict[Element, _Joint] = {}
        self._joint_after: dict[Element, _Joint] = {}
        self._joints: dict[tuple[Element | None, tuple[Tag, ...], Element | None], _Joint] = {}
        pieces: list[str] = []
        length = 0
        opened: list[Element] = []
        for index, gap in enumerate(gaps):
            space = self._space_of_text(gap)
            self._add_gap(gap, space, length, opened)
            if index < len(words):
                for element in opened:
                    element.start = length + len(space)
                opened.clear()
                pieces += [space, collapse_spaces(words[index])]
                length += len(pieces[-2]) + len(pieces[-1])
        self.text = "".join(pieces)

    @staticmethod
    def _space_of_text(gap: _Gap) -> str:
        """The space between two words of the text for the model; punctuation follows the word before it."""
        first, last = gap.joints[0], gap.joints[-1]
        if first.is_at_start or last.is_at_end:
            return ""
        space = collapse_spaces("".join(joint.space for joint in gap.joints))
        if not gap.parts:
            return space
        if not space and not gap.has_space_in_parts:
            return ""
        follows = last.character_after in CLOSING_PUNCTUATION and not last.space
        precedes = first.character_before in OPENING_PUNCTUATION and not first.space
        return "" if follows or precedes else " "

    def _add_gap(self, gap: _Gap, space: str, end: int, opened: list[Element]) -> None:
        """Remember the joints of a gap, and set where the elements in it begin and end.

        Args:
            gap: the gap.
            space: the white space that the text has there.
            end: the length of the text before it.
            opened: elements that begin at the next word; those of the gap are added.
        """
        for joint in gap.joints:
            joint.space_of_text = space
            if joint.tags or gap.parts:
                self._joints[joint.key] = joint
            for tag in joint.tags:
                if tag.is_opening:
                    tag.element.start = tag.element.end = end
                    opened.append(tag.element)
                elif tag.element in opened:
                    opened.remove(tag.element)
                else:
                    tag.element.end = end
            if joint.part_before is not None:
                self._joint_after[joint.part_before] = joint
            if joint.part_after is not None:
                joint.part_after.start = joint.part_after.end = end
                self._joint_before[joint.part_after] = joint
        for part in gap.parts:
            part.follows_word = self._follows_word(part)

    def _follows_word(self, part: Element) -> bool:
        """Return True if a part is more closely connected with the word before it than with what comes after it."""
        before = self._joint_before[part]
        after = self._joint_after[part]
        if before.is_at_start or before.closeness <= after.closeness:
            return False
        if before.part_before is not None:
            return before.part_before.follows_word
        return before.space != "" or _attaches(before.character_before)

    def write(self, tokens: Sequence[Token], escape: Callable[[str], str]) -> str:
        """Write a translation whose tags and protected parts have their places, with spaces as in the text.

        Args:
            tokens (`Sequence[Token]`): characters of the translation, tags, and protected parts.
            escape (`Callable`): writes text.
        """
        words, gaps = _divide(tokens)
        written = []
        for index, gap in enumerate(gaps):
            for joint, space in zip(gap.joints, self._spaces(gap), strict=True):
                written.append(self._write_joint(joint, space, escape))
                if joint.part_after is not None:
                    written.append(write(joint.part_after.node, escape))
            if index < len(words):
                written.append(escape(words[index]))
        return "".join(written)

    def _write_joint(self, joint: _Joint, space: str, escape: Callable[[str], str]) -> str:
        """Write tags with a space among them, which is where the text has it if the text has these tags together."""
        spaces = joint.layout(space)
        joint_of_text = self._joints.get(joint.key)
        if joint_of_text is not None:
            has_parts = joint.part_before is not None or joint.part_after is not None
            if space == (joint_of_text.space if has_parts else joint_of_text.space_of_text):
                spaces = joint_of_text.spaces
        written = escape(spaces[0])
        for tag, space_after in zip(joint.tags, spaces[1:], strict=True):
            node = tag.element.node
            written += node.opening if tag.is_opening else node.closing
            written += escape(space_after)
        return written

    def _spaces(self, gap: _Gap) -> list[str]:
        """The space of each joint between two words of a translation."""
        space = ""
        for joint in gap.joints:
            space += "".join(joint.spaces)
        if not gap.parts:
            return [space]
        spaces = [self._space_before(gap.parts[0], gap.joints[0], space)]
        for joint in gap.joints[1:-1]:
            spaces.append(self._space_between(joint))
        spaces.append(self._space_after(gap.parts[-1], gap.joints[-1], space))
        if space and not any(spaces) and not gap.has_space_in_parts:
            # The protected parts replace none of the space between the two words.
            is_attached = _attaches(self._joint_before[gap.parts[0]].character_before)
            spaces[-1 if is_attached else 0] = space
        return spaces

    def _space_before(self, part: Element, joint: _Joint, space: str) -> str:
        """The space between a word, or the start of the translation, and a protected part.

        `space` is what the translation has between this word and the next one.
        """
        joint_of_text = self._joint_before[part]
        if joint.is_at_start:
            return joint_of_text.space if joint_of_text.is_at_start else ""
        if joint.character_before in OPENING_PUNCTUATION:
            is_same = joint_of_text.character_before and joint_of_text.character_before in OPENING_PUNCTUATION
            return joint_of_text.space if is_same else space
        if joint_of_text.space or _attaches(joint_of_text.character_before):
            return joint_of_text.space
        return " " if _needs_space(part, joint.character_before, space) else ""

    def _space_after(self, part: Element, joint: _Joint, space: str) -> str:
        """The space between a protected part and a word, or the end of the translation; see `_space_before`."""
        joint_of_text = self._joint_after[part]
        if joint.is_at_end:
            return joint_of_text.space if joint_of_text.is_at_end else ""
        if joint.character_after in CLOSING_PUNCTUATION:
            is_same = joint_of_text.character_after and joint_of_text.character_after in CLOSING_PUNCTUATION
            return joint_of_text.space if is_same else space
        if joint_of_text.space or joint_of_text.character_after.isalnum():
            return joint_of_text.space
        return " " if _needs_space(part, joint.character_after, space) else ""

    def _space_between(self, joint: _Joint) -> str:
        """The space between two protected parts."""
        before, after = joint.part_before, joint.part_after
        assert before is not None
        assert after is not None
        joint_of_text = self._joint_after[before]
        if joint_of_text.part_after is after:
            return joint_of_text.space
        return joint_of_text.space or self._joint_before[after].space


def _needs_space(part: Element, neighbor: str, space: str) -> bool:
    """Return True if a protected part and a letter next to it would be read as one word.

    Parts without text, such as images, are set off only where the translation has a `space` between words anyway.
    """
    return is_spaced_letter(neighbor) and (space != "" or any(map(str.isalnum, part.content)))


def _attaches(character: str) -> bool:
    """Return True if what follows a character without space belongs to it, as the mark of a footnote does."""
    return character.isalnum() or (character != "" and character in CLOSING_PUNCTUATION)


def _divide(tokens: Sequence[Token]) -> tuple[list[str], list[_Gap]]:
    """Divide tokens into words, which may have white space inside, and the gaps before, between and after them."""
    words: list[str] = []
    gaps = [_Gap([_Joint()], [])]
    for token in tokens:
        joint = gaps[-1].joints[-1]
        if isinstance(token, Tag):
            joint.tags.append(token)
            joint.spaces.append("")
        elif isinstance(token, Element):
            joint.part_after = token
            gaps[-1].parts.append(token)
            gaps[-1].joints.append(_Joint(part_before=token))
        else:
            _divide_characters(token, words, gaps)
    return words, gaps


def _divide_characters(characters: str, words: list[str], gaps: list[_Gap]) -> None:
    """Add characters: white space at their ends to gaps, and what is between to the words."""
    text = characters.strip()
    if not text:
        gaps[-1].joints[-1].spaces[-1] += characters
        return
    start = characters.index(text)
    joint = gaps[-1].joints[-1]
    joint.spaces[-1] += characters[:start]
    joint.character_after = text[0]
    words.append(text)
    after = _Joint(character_before=text[-1])
    after.spaces[-1] += characters[start + len(text) :]
    gaps.append(_Gap([after], []))
