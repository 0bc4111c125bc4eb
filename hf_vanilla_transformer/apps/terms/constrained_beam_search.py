"""Search for translations that must contain given phrases (lexically constrained beam search).

In an ordinary beam search, hypotheses that contain a required phrase would soon be dropped, because a forced token
often has a low probability. Therefore Post and Vilar (2018) divide the candidates of each step into banks. A bank
consists of the candidates that still need the same number of tokens for their phrases. Candidates compete only within
their bank, and the beam takes some candidates from each bank. As in Hu et al. (2019), all sentences of a batch are
searched together.

A phrase has one or more alternatives, and one of them must occur. An alternative is a list of tokens. All alternatives
of a sentence are laid out one after the other, and each of their tokens is called a position. For example, the phrases
[[5, 6], [7]] (the tokens 5 and 6, or the token 7) and [[5, 8]] have these positions:

    position    0  1  2  3  4
    token       5  6  7  5  8
    phrase      0  0  0  1  1

After the token 5, a hypothesis has matched positions 0 and 3, so either phrase needs only one more token. If 6 follows,
it matches position 1. This is the last position of its alternative, so phrase 0 occurs.

Shapes use the axis names of `model/beam_search.py`, and four more: phrases (of a sentence), positions (as above),
hypotheses (running ones or candidates), and next_tokens (tokens that might follow each hypothesis).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from ...model.beam_search import NO_HYPOTHESIS, BeamSearch, Candidates, exists, top_tokens
from ...support.user_errors import InputError


_NO_TOKEN = -1
# A phrase is a tuple of alternatives, each a tuple of token ids.
Phrase = tuple[tuple[int, ...], ...]


class _PhraseCounts(NamedTuple):
    """How often phrases must still occur after each possible next token of each hypothesis.

    Args:
        missing (`torch.LongTensor` of shape `(active, hypotheses, next_tokens, phrases)`): how many more times each
            phrase must occur; negative if it occurs more often than required.
        revocable (`torch.LongTensor` of shape `(active, hypotheses, next_tokens, phrases)`): how many occurrences count
            now, but would no longer count if a letter followed; see [`States`].
    """

    missing: torch.Tensor
    revocable: torch.Tensor

    def letter_would_harm(self) -> torch.Tensor:
        """Return True where a letter, if it followed, would revoke occurrences of a phrase that would then be missing.

        The result has shape `(active, hypotheses, next_tokens)`.
        """
        has_revocable = self.revocable > 0
        would_be_missing = self.missing + self.revocable > 0
        return (has_revocable & would_be_missing).any(dim=3)


class States(NamedTuple):
    """How far each hypothesis has matched the required phrases of its sentence, and which phrases it still lacks.

    Args:
        matched (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): for each position, whether a hypothesis
            ends with the tokens of the position's alternative up to this position.
        missing (`torch.LongTensor` of shape `(active, hypotheses, phrases)`): how many more times each phrase must
            occur; negative if it occurs more often than required.
        revocable (`torch.LongTensor` of shape `(active, hypotheses, phrases)`): the number of occurrences that count
            now, but would no longer count if a letter followed, because then the phrase would end inside a word.
        ends_in_letter (`torch.BoolTensor` of shape `(active, hypotheses)`): whether a hypothesis ends with a letter. If
            it does, a letter that follows belongs to the same word.
    """

    matched: torch.Tensor
    missing: torch.Tensor
    revocable: torch.Tensor
    ends_in_letter: torch.Tensor

    @property
    def counts(self) -> _PhraseCounts:
        """The counts of phrases before any next token. The axis next_tokens has size 1."""
        return _PhraseCounts(self.missing[:, :, None], self.revocable[:, :, None])

    def take(self, chosen: torch.Tensor) -> "States":
        """Return the states of the hypotheses with the chosen indices, `(active, candidates)`."""
        return States(*(_take_hypotheses(values, chosen) for values in self))

    def select(self, sentences: torch.Tensor) -> "States":
        """Return the states of the sentences with the given indices in the batch, `(remaining,)`."""
        return States(*(values[sentences] for values in self))


def _take_hypotheses(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Select the values of the hypotheses with the given indices.

    The values have shape `(active, hypotheses, ...)`, the indices `(active, candidates)`, and the result
    `(active, candidates, ...)`.
    """
    # gather() needs indices with all axes of the values, so each index is repeated over the other axes.
    other_axes = values.shape[2:]
    ones = [1] * len(other_axes)
    indices = chosen.view(*chosen.shape, *ones).expand(-1, -1, *other_axes)
    return values.gather(1, indices)


class Tables(NamedTuple):
    """The required phrases of a sentence, stored as tensors for the search.

    For a batch, the tensors are padded, and have two additional axes at the front: `active`, and an axis of size 1 that
    stands for the hypotheses. For example, `token_of_position` then has the shape `(active, 1, positions)`.

    Tracked tokens are the tokens that the search considers at every step, even if they are improbable: all tokens of
    phrases, because they may match a position, and the tokens that end a hypothesis.

    Args:
        token_of_position (`torch.LongTensor` of shape `(positions,)`): the token of each position.
        phrase_of_position (`torch.LongTensor` of shape `(positions,)`): the index of each position's phrase.
        tracked_index_of_position (`torch.LongTensor` of shape `(positions,)`): the index of each position's token in
            `tracked_tokens`.
        is_first (`torch.BoolTensor` of shape `(positions,)`): whether a position is the first of its alternative.
        is_last (`torch.BoolTensor` of shape `(positions,)`): whether a position is the last of its alternative.
        letter_follows (`torch.BoolTensor` of shape `(positions,)`): whether the next token of the alternative begins
            with a letter.
        saved_tokens (`torch.LongTensor` of shape `(positions,)`): how many tokens fewer a hypothesis needs after it has
            matched a position, compared with a hypothesis that needs the whole phrase. It is 0 at the last position,
            because then the phrase is no longer missing.
        tracked_tokens (`torch.LongTensor` of shape `(tracked,)`): the distinct tracked tokens.
        phrase_lengths (`torch.LongTensor` of shape `(phrases,)`): the number of tokens that each phrase needs, see
            [`_shortest_length`].
        required_counts (`torch.LongTensor` of shape `(phrases,)`): how many times each phrase must occur.
    """

    token_of_position: torch.Tensor
    phrase_of_position: torch.Tensor
    tracked_index_of_position: torch.Tensor
    is_first: torch.Tensor
    is_last: torch.Tensor
    letter_follows: torch.Tensor
    saved_tokens: torch.Tensor
    tracked_tokens: torch.Tensor
    phrase_lengths: torch.Tensor
    required_counts: torch.Tensor


class _Continuations(NamedTuple):
    """Flags of possible next tokens of hypotheses. Each tensor has shape `(active, hypotheses, next_tokens)`.

    Args:
        letters_meet (`torch.BoolTensor`): whether the token begins with a letter that directly follows a letter, so
            that both belong to one word.
        token_has_no_text (`torch.BoolTensor`): whether the token has no text. Its second axis may have size 1.
        hypothesis_ends_in_letter (`torch.BoolTensor`): whether the hypothesis ends with a letter after the token.
    """

    letters_meet: torch.Tensor
    token_has_no_text: torch.Tensor
    hypothesis_ends_in_letter: torch.Tensor


class _PositionGroups:
    """The positions of each sentence, grouped by phrase and by the next token with which each position is compared.

    The methods convert values between the axis of positions and the axes of the groups, which are next_tokens and
    phrases.

    Args:
        next_token_of_position (`torch.LongTensor` of shape `(active, 1, positions)`): the index of each position's
            token on the axis next_tokens.
        phrase_of_position (`torch.LongTensor` of shape `(active, 1, positions)`): the index of each position's phrase.
        num_next_tokens (`int`): the size of the axis next_tokens.
        num_phrases (`int`): the size of the axis phrases.
    """

    def __init__(
        self,
        next_token_of_position: torch.Tensor,
        phrase_of_position: torch.Tensor,
        num_next_tokens: int,
        num_phrases: int,
    ):
        self.next_token_of_position = next_token_of_position
        # The index of each position's group on a single axis of next_tokens * phrases, (active, 1, positions).
        self.group_of_position = next_token_of_position * num_phrases + phrase_of_position
        self.num_next_tokens = num_next_tokens
        self.num_phrases = num_phrases

    def at_positions(self, values: torch.Tensor) -> torch.Tensor:
        """Look up the value of each position's next token.

        The values have shape `(active, hypotheses, next_tokens)`, and the result `(active, hypotheses, positions)`.
        """
        return _gather_for_hypotheses(values, self.next_token_of_position)

    def phrases_at_positions(self, values: torch.Tensor) -> torch.Tensor:
        """Look up the value of each position's next token and phrase.

        The values have shape `(active, hypotheses, next_tokens, phrases)`, and the result
        `(active, hypotheses, positions)`.
        """
        values_of_groups = values.flatten(2)  # (active, hypotheses, next_tokens * phrases)
        return _gather_for_hypotheses(values_of_groups, self.group_of_position)

    def any_in_group(self, flags: torch.Tensor) -> torch.Tensor:
        """Return True for each group in which a position has the flag True.

        A group consists of all positions with the same next token and the same phrase. The flags have shape
        `(active, hypotheses, positions)`, and the result `(active, hypotheses, next_tokens, phrases)`. The flags of
        padding must be False, because padding is assigned to the first group.

        For example, suppose that there are three groups, and that four positions belong to the groups [0, 0, 1, 2]. If
        their flags are [False, True, False, True], the groups get [True, False, True].
        """
        num_active, num_hypotheses, _ = flags.shape
        num_groups = self.num_next_tokens * self.num_phrases
        # scatter_() writes True to one group for each position. If the flag of a position is False, the position must
        # not mark its own group. It then writes to an additional last group, which is cut off afterwards. In the
        # example, the positions write to the groups [3, 0, 3, 2].
        extra_group = num_groups
        group_to_mark = self.group_of_position.where(flags, extra_group)  # (active, hypotheses, positions)
        is_marked = flags.new_zeros(num_active, num_hypotheses, num_groups + 1)
        is_marked.scatter_(2, group_to_mark, True)
        # (active, hypotheses, next_tokens * phrases)
        any_flag_of_group = is_marked[:, :, :num_groups]
        return any_flag_of_group.unflatten(2, (self.num_next_tokens, self.num_phrases))

    def largest_of_next_token(self, counts: torch.Tensor) -> torch.Tensor:
        """Return the largest count among the positions of each next token, or 0 for a token that has no positions.

        The counts have shape `(active, hypotheses, positions)`, and the result `(active, hypotheses, next_tokens)`.
        """
        num_active, num_hypotheses, _ = counts.shape
        # The initial zeros take part in the maximum. No count is negative, and the counts of padding are 0.
        largest = counts.new_zeros(num_active, num_hypotheses, self.num_next_tokens)
        return largest.scatter_reduce_(2, self.next_token_of_position.expand_as(counts), counts, "amax")


def _gather_for_hypotheses(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Look up values by the same indices for every hypothesis.

    The values have shape `(active, hypotheses, n)`, the indices `(active, 1, positions)`, and the result
    `(active, hypotheses, positions)`.
    """
    num_hypotheses = values.shape[1]
    return values.gather(2, indices.expand(-1, num_hypotheses, -1))


class PhraseStates:
    """Tracks, token by token, which phrases each hypothesis of a batch contains, and which are still missing.

    A phrase occurs where one of its alternatives ends. Occurrences may overlap, so a phrase inside a longer phrase
    counts as well. If a phrase is given n times, it must occur n times in the hypothesis. All alternatives are
    matched concurrently, position by position, with the Shift-And algorithm (Baeza-Yates and Gonnet 1992).

    An occurrence counts only if it consists of whole words. It does not count if its first or last token is part of a
    longer word. This is the case if the letters of two tokens meet there. Tokens without text do not separate letters.

    Args:
        phrases (`list[list[Phrase]]`): the phrases of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): for each token, whether it begins with a letter,
            whether it ends with a letter, and whether it has no text.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
    """

    def __init__(self, phrases: list[list[Phrase]], letter_edges: torch.Tensor, eos: torch.Tensor):
        # Each row is a mask of the vocabulary, (vocabulary,).
        self._begins_with_letter, self._ends_with_letter, self._has_no_text = letter_edges

        tables = [_build_tables(phrases_of_sentence, self._begins_with_letter, eos) for phrases_of_sentence in phrases]
        self._tables = _pad_tables(tables)
        self._group_positions()
        # A mask of the vocabulary for each sentence, (active, vocabulary).
        self._is_tracked = _mark_tokens(self.tracked_tokens, vocab_size=letter_edges.shape[1])

    @property
    def tracked_tokens(self) -> torch.Tensor:
        """The tracked tokens of each sentence (see [`Tables`]), padded with -1, of shape `(active, tracked)`."""
        return self._tables.tracked_tokens[:, 0]

    def start(self) -> States:
        """Return the initial states: one empty hypothesis per sentence, for which all phrases are missing."""
        # The tables have an axis of size 1 for the hypotheses, so they already have the shape of one hypothesis.
        required_counts = self._tables.required_counts  # (active, 1, phrases)
        return States(
            matched=torch.zeros_like(self._tables.token_of_position, dtype=torch.bool),
            missing=required_counts,
            revocable=torch.zeros_like(required_counts),
            ends_in_letter=torch.zeros(required_counts.shape[:2], dtype=torch.bool, device=required_counts.device),
        )

    def follow(self, states: States, tokens: torch.Tensor) -> States:
        """Return the states after each hypothesis is extended by one token; `tokens` is `(active, hypotheses)`.

        The positions are the tokens of all alternatives of a sentence's phrases. The states count for each phrase how
        many more times it must occur (`missing`), and how many of its occurrences would no longer count if a letter
        followed, because then they would end inside a word (`revocable`).
        """
        # The methods below allow several next tokens for each hypothesis. Here it has one, so this axis has size 1.
        next_tokens = tokens[:, :, None]  # (active, hypotheses, 1)
        # `continuations.letters_meet` is True where the token begins with a letter that directly follows a letter.
        continuations = self._compare_letters(states, next_tokens)

        # A position is matched if it may follow the positions that were matched before, and its token is the next one.
        # If letters meet, the next token continues a word, so no phrase may begin with it.
        has_next_token = self._tables.token_of_position == next_tokens  # (active, hypotheses, positions)
        matched = self._may_match(states, continuations.letters_meet) & has_next_token
        # `_groups_for_one_token` assigns all positions to the same next token, and each position to its phrase.
        counts = self._update_counts(states, matched, continuations, self._groups_for_one_token)
        # The counts have the axis next_tokens, which states do not have, so its single index is selected.
        return States(
            matched,
            missing=counts.missing[:, :, 0],
            revocable=counts.revocable[:, :, 0],
            ends_in_letter=continuations.hypothesis_ends_in_letter[:, :, 0],
        )

    def needed(self, states: States) -> torch.Tensor:
        """Return how many more tokens each hypothesis needs for its phrases, of shape `(active, hypotheses)`.

        The number is 0 for hypotheses that contain all phrases. Otherwise, a suitable next token lowers it by at least
        1: the next token of a matched alternative, or the first token of a missing phrase. There is one exception: if
        the hypothesis ends with a letter, a phrase whose alternatives all begin with a letter cannot follow directly.
        The number is an upper bound, because overlapping phrases may take fewer tokens.
        """
        # The method below counts after each next token. Here it counts once, so this axis has size 1.
        needed = self._count_needed(states.matched, states.counts, self._groups_for_one_token)
        return needed[:, :, 0]

    def needed_after_tracked_tokens(self, states: States) -> torch.Tensor:
        """Return how many tokens each hypothesis will need after each tracked token, `(active, hypotheses, tracked)`.

        For each tracked token, the result is the same as [`follow`] with this token and then [`needed`], and must stay
        so. However, all tracked tokens are computed at once. Each position is compared only with its own token, because
        no other token can match it. [`needed_after_other_tokens`] computes the same for all other tokens.
        """
        # Padding becomes the token 0, because tokens are used as indices. The results for padding are never used.
        tracked_tokens = self._tables.tracked_tokens.clamp(min=0)  # (active, 1, tracked)
        continuations = self._compare_letters(states, tracked_tokens)  # each (active, hypotheses, tracked)

        # These groups assign each position to its own token, which is its next token, and to its phrase.
        groups = self._groups_by_tracked_token
        # If letters meet, the next token continues a word, so no phrase may begin with it.
        letters_meet_at_positions = groups.at_positions(continuations.letters_meet)  # (active, hypotheses, positions)
        # In `follow`, padding is never matched because it differs from the next token. Here, no tokens are compared.
        is_padding = self._tables.token_of_position == _NO_TOKEN  # (active, 1, positions)
        matched = self._may_match(states, letters_meet_at_positions) & ~is_padding  # (active, hypotheses, positions)

        counts = self._update_counts(states, matched, continuations, groups)  # (active, hypotheses, tracked, phrases)
        return self._count_needed(matched, counts, groups)

    def needed_after_other_tokens(self, states: States, tokens: torch.Tensor) -> torch.Tensor:
        """Return how many tokens each hypothesis will need after tokens that are in no phrase; see [`needed`].

        The tokens and the result have shape `(active, hypotheses, next_tokens)`. The tokens match no position, so the
        result depends only on whether letters meet: the hypothesis ends with a letter, and the token begins with one,
        so that the token continues a word.

        For each phrase, `missing` counts how many more times it must occur, and `revocable` counts its occurrences that
        no longer count if letters meet.
        """
        counts = states.counts  # each (active, hypotheses, 1, phrases)
        # If letters meet, the revocable occurrences end inside a word, so they no longer count.
        needed_if_letters_meet = self._tokens_of_missing(counts.missing + counts.revocable)  # (active, hypotheses, 1)
        needed_otherwise = self._tokens_of_missing(counts.missing)  # (active, hypotheses, 1)

        ended_in_letter = states.ends_in_letter[:, :, None]  # (active, hypotheses, 1)
        # `_begins_with_letter` is a mask of the vocabulary.
        letters_meet = ended_in_letter & self._begins_with_letter[tokens]  # (active, hypotheses, next_tokens)
        # Both numbers are the same for all next tokens. Their last axis has size 1, so it broadcasts over next_tokens,
        # and `letters_meet` chooses one of the two numbers for each token.
        return needed_if_letters_meet.where(letters_meet, needed_otherwise)

    def are_tracked(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return True for each token that is a tracked token of its sentence.

        The tokens and the result have shape `(active, hypotheses, candidates)`.
        """
        # `_is_tracked` has one row per sentence, so the other two axes are on one axis during the look-up.
        return self._is_tracked.gather(1, tokens.flatten(1)).view(tokens.shape)

    def select(self, sentences: torch.Tensor) -> None:
        """Drop all sentences except for the given ones, which are indices `(remaining,)` into the batch."""
        self._tables = Tables(*(table[sentences] for table in self._tables))
        self._group_positions()
        self._is_tracked = self._is_tracked[sentences]

    def _group_positions(self) -> None:
        """Group the positions of the current tables, and store the groups in two attributes."""
        tables = self._tables
        num_phrases = tables.required_counts.shape[2]
        # Each hypothesis has one next token, with which all positions are compared.
        self._groups_for_one_token = _PositionGroups(
            next_token_of_position=torch.zeros_like(tables.token_of_position),
            phrase_of_position=tables.phrase_of_position,
            num_next_tokens=1,
            num_phrases=num_phrases,
        )
        # The next tokens are all tracked tokens, and each position is compared only with its own token.
        self._groups_by_tracked_token = _PositionGroups(
            next_token_of_position=tables.tracked_index_of_position,
            phrase_of_position=tables.phrase_of_position,
            num_next_tokens=tables.tracked_tokens.shape[2],
            num_phrases=num_phrases,
        )

    def _compare_letters(self, states: States, tokens: torch.Tensor) -> _Continuations:
        """Find out whether next tokens continue the words in which the hypotheses end.

        Args:
            states (`States`): the states of the hypotheses before the tokens.
            tokens (`torch.LongTensor` of shape `(active, hypotheses or 1, next_tokens)`): the next tokens. The second
                axis has size 1 if they are the same for all hypotheses.
        """
        # These masks of the vocabulary are looked up for each token, so the results have the shape of `tokens`.
        token_begins_with_letter = self._begins_with_letter[tokens]
        token_ends_with_letter = self._ends_with_letter[tokens]
        token_has_no_text = self._has_no_text[tokens]

        # Whether the hypotheses end with a letter before the tokens, (active, hypotheses, 1).
        ended_in_letter = states.ends_in_letter[:, :, None]
        # The two flags below have shape (active, hypotheses, next_tokens).
        letters_meet = ended_in_letter & token_begins_with_letter
        # A token without text does not change how the hypothesis ends.
        hypothesis_ends_in_letter = token_ends_with_letter | (token_has_no_text & ended_in_letter)
        return _Continuations(letters_meet, token_has_no_text, hypothesis_ends_in_letter)

    def _may_match(self, states: States, letters_meet: torch.Tensor) -> torch.Tensor:
        """Return a mask of the positions that the next token may match, of shape `(active, hypotheses, positions)`.

        The first position of an alternative may be matched unless the alternative would begin inside a word. Any other
        position may be matched if the position before it is matched now.

        Args:
            states (`States`): the states of the hypotheses.
            letters_meet (`torch.BoolTensor` of shape `(active, hypotheses, positions or 1)`): whether the next token
                would continue a word.
        """
        # roll() shifts the flags by one position. The last flag arrives at position 0, where it has no effect, because
        # position 0 is the first of its alternative, or padding.
        previous_is_matched = states.matched.roll(1, dims=2)
        return torch.where(self._tables.is_first, ~letters_meet, previous_is_matched)

    def _update_counts(
        self, states: States, matched: torch.Tensor, continuations: _Continuations, groups: _PositionGroups
    ) -> _PhraseCounts:
        """Return how often phrases must still occur after each possible next token.

        Args:
            states (`States`): the states of the hypotheses before the tokens.
            matched (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): whether each position is matched by
                the next token with which it is compared.
            continuations (`_Continuations`): how the texts of the hypotheses continue with the next tokens.
            groups (`_PositionGroups`): the next token and the phrase of each position.
        """
        # The flags of the next tokens are the same for all phrases: (active, hypotheses, next_tokens, 1).
        letters_meet = continuations.letters_meet[:, :, :, None]
        token_has_no_text = continuations.token_has_no_text[:, :, :, None]
        hypothesis_ends_in_letter = continuations.hypothesis_ends_in_letter[:, :, :, None]
        # The counts before the tokens are the same for all next tokens: each (active, hypotheses, 1, phrases).
        counts_before = states.counts
        # A phrase occurs if the last position of one of its alternatives is matched. `is_last` is False for padding.
        ends_alternative = matched & self._tables.is_last  # (active, hypotheses, positions)
        new_occurrences = groups.any_in_group(ends_alternative).long()

        # All tensors below have shape (active, hypotheses, next_tokens, phrases), because the axes of size 1 broadcast.
        # The product of a count and a flag is the count where the flag is True, and 0 elsewhere.
        # If letters meet, the revocable occurrences turn out to end inside a word, so they no longer count.
        revoked = counts_before.revocable * letters_meet
        missing = counts_before.missing + revoked - new_occurrences
        # An earlier occurrence stays revocable only if the token has no text.
        still_revocable = counts_before.revocable * token_has_no_text
        # An occurrence can be revoked only if it ends with a letter, which a second letter may follow.
        revocable = (new_occurrences + still_revocable) * hypothesis_ends_in_letter
        return _PhraseCounts(missing, revocable)

    def _count_needed(self, matched: torch.Tensor, counts: _PhraseCounts, groups: _PositionGroups) -> torch.Tensor:
        """Return how many more tokens hypotheses need for their phrases, of shape `(active, hypotheses, next_tokens)`.

        A phrase is missing if it must occur more times. Each of these times counts with the length of the phrase. A
        hypothesis that ends with the first tokens of a missing phrase needs only the rest of it once, so it saves some
        tokens, which are subtracted. If several alternatives are partly matched, only the one that saves most is
        subtracted, because the next token may continue one of them and not the others.

        For example, the phrases [[5, 6, 7]] and [[8]], each with a single alternative, have 4 tokens. If both are
        missing, a hypothesis that ends with 5 and 6 saves 2 of them, so it needs 2 more tokens.

        Args:
            matched (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): as in [`States`].
            counts (`_PhraseCounts`): the counts of phrases after each next token.
            groups (`_PositionGroups`): the next token and the phrase of each position.
        """
        tokens_of_missing = self._tokens_of_missing(counts.missing)  # (active, hypotheses, next_tokens)
        saves_tokens = matched & self._may_save_tokens(counts, groups)  # (active, hypotheses, positions)
        # The table has the number of tokens that each position saves if it is matched. The product is this number where
        # the flag is True, and 0 elsewhere.
        saved_tokens = self._tables.saved_tokens * saves_tokens  # (active, hypotheses, positions)
        most_saved = groups.largest_of_next_token(saved_tokens)  # (active, hypotheses, next_tokens)
        return tokens_of_missing - most_saved

    def _may_save_tokens(self, counts: _PhraseCounts, groups: _PositionGroups) -> torch.Tensor:
        """Return a mask of the positions that save tokens if they are matched, `(active, hypotheses, positions)`.

        A position saves tokens if its phrase is missing, and if its alternative can continue without harm. Continuing
        does harm if the next token of the alternative begins with a letter, and the letter would revoke an occurrence
        without which a phrase would be missing.
        """
        phrase_is_missing = groups.phrases_at_positions(counts.missing > 0)  # (active, hypotheses, positions)
        letter_would_harm = groups.at_positions(counts.letter_would_harm())  # (active, hypotheses, positions)
        continuing_harms = letter_would_harm & self._tables.letter_follows
        return phrase_is_missing & ~continuing_harms

    def _tokens_of_missing(self, missing: torch.Tensor) -> torch.Tensor:
        """Count the tokens of all missing phrases. Partial matches are not taken into account.

        `missing` has shape `(active, hypotheses, next_tokens, phrases)`, and the result has no axis for phrases.
        """
        phrase_lengths = self._tables.phrase_lengths[:, :, None]  # (active, 1, 1, phrases)
        return (missing.clamp(min=0) * phrase_lengths).sum(dim=3)


def _mark_tokens(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Convert lists of tokens `(batch, tokens)`, padded with `_NO_TOKEN`, into a mask `(batch, vocabulary)`."""
    # Padding marks an additional last token, which is then removed.
    marked_tokens = tokens.where(tokens != _NO_TOKEN, vocab_size)
    is_marked = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
    is_marked.scatter_(1, marked_tokens, True)
    return is_marked[:, :vocab_size]


def _build_tables(phrases: list[Phrase], begins_with_letter: torch.Tensor, eos: torch.Tensor) -> Tables:
    """Convert the phrases of one sentence into [`Tables`].

    Args:
        phrases (`list[Phrase]`): the phrases of the sentence.
        begins_with_letter (`torch.BoolTensor` of shape `(vocabulary,)`): whether each token begins with a letter.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
    """
    device = begins_with_letter.device
    # Phrases with the same alternatives, in any order, are one phrase that must occur several times.
    count_of_phrase = Counter(tuple(sorted(phrase)) for phrase in phrases)
    distinct_phrases = list(count_of_phrase)
    shortest_lengths = [_shortest_length(phrase, begins_with_letter) for phrase in distinct_phrases]
    phrase_lengths = _make_tensor(shortest_lengths, device)
    positions = _lay_out(distinct_phrases, device)
    tracked = _find_tracked_tokens(positions.tokens, eos.to(device))
    return Tables(
        token_of_position=positions.tokens,
        phrase_of_position=positions.phrases,
        tracked_index_of_position=tracked.index_of_position,
        is_first=positions.num_preceding == 0,
        is_last=positions.num_following == 0,
        letter_follows=_find_following_letters(positions, begins_with_letter),
        saved_tokens=_count_saved_tokens(positions, phrase_lengths),
        tracked_tokens=tracked.tokens,
        phrase_lengths=phrase_lengths,
        required_counts=_make_tensor(count_of_phrase.values(), device),
    )


def _make_tensor(numbers: Iterable[int], device: torch.device) -> torch.Tensor:
    """Return integers as a tensor of dtype long and of shape `(numbers,)`."""
    return torch.tensor(list(numbers), dtype=torch.long, device=device)


class _TrackedTokens(NamedTuple):
    """The tokens that the search considers at every step: the tokens of phrases, and the EOS tokens.

    Args:
        tokens (`torch.LongTensor` of shape `(tracked,)`): the distinct tokens.
        index_of_position (`torch.LongTensor` of shape `(positions,)`): the index of each position's token in `tokens`.
    """

    tokens: torch.Tensor
    index_of_position: torch.Tensor


def _find_tracked_tokens(token_of_position: torch.Tensor, eos: torch.Tensor) -> _TrackedTokens:
    """Find the distinct tokens among those of the positions, `(positions,)`, and the EOS tokens, `(num_eos,)`.

    For example, the tokens [7, 5, 7] of the positions and the EOS token 2 have the distinct tokens [2, 5, 7], among
    which those of the positions have the indices [2, 1, 2].
    """
    all_tokens = torch.cat([token_of_position, eos])
    distinct_tokens, indices = all_tokens.unique(return_inverse=True)
    # The other indices, at the end, belong to the EOS tokens, which have no positions.
    num_positions = len(token_of_position)
    return _TrackedTokens(distinct_tokens, index_of_position=indices[:num_positions])


def _shortest_length(phrase: Phrase, begins_with_letter: torch.Tensor) -> int:
    """Return the number of tokens in the shortest alternative that may follow any token.

    An alternative that begins with a letter cannot follow every token, so the search cannot rely on it. If all
    alternatives do, the shortest one counts.
    """
    reliable_alternatives = [tokens for tokens in phrase if not begins_with_letter[tokens[0]]]
    if not reliable_alternatives:
        reliable_alternatives = list(phrase)
    return min(len(tokens) for tokens in reliable_alternatives)


class _Positions(NamedTuple):
    """The tokens of all alternatives, one alternative after the other. All tensors have shape `(positions,)`.

    Args:
        tokens (`torch.LongTensor`): the token of each position.
        phrases (`torch.LongTensor`): the index of each position's phrase.
        num_preceding (`torch.LongTensor`): how many tokens of the alternative precede the position.
        num_following (`torch.LongTensor`): how many tokens of the alternative follow the position.
    """

    tokens: torch.Tensor
    phrases: torch.Tensor
    num_preceding: torch.Tensor
    num_following: torch.Tensor


def _lay_out(phrases: list[Phrase], device: torch.device) -> _Positions:
    """Concatenate all alternatives of the phrases, and describe the position of each of their tokens.

    A Python loop over tokens is avoided, because it would take a second for many long phrases, and would block other
    threads during this time.
    """
    # In the example of the comments, the first phrase has the alternatives [5, 6] and [7], and the second one [5, 8].
    alternatives = list(chain.from_iterable(phrases))
    tokens = _make_tensor(chain.from_iterable(alternatives), device)  # [5, 6, 7, 5, 8]

    # The tensors about alternatives have shape (alternatives,).
    phrase_of_alternative = _repeat_indices(_make_tensor(map(len, phrases), device))  # [0, 0, 1]
    lengths = _make_tensor(map(len, alternatives), device)  # [2, 1, 2]
    starts = lengths.cumsum(0) - lengths  # [0, 2, 3]

    # The tensors about positions have shape (positions,), where each token has a position.
    alternative_of_position = _repeat_indices(lengths)  # [0, 0, 1, 2, 2]
    num_preceding = torch.arange(len(tokens), device=device) - starts[alternative_of_position]  # [0, 1, 0, 0, 1]
    num_following = lengths[alternative_of_position] - num_preceding - 1  # [1, 0, 0, 1, 0]
    phrase_of_position = phrase_of_alternative[alternative_of_position]  # [0, 0, 0, 1, 1]
    return _Positions(tokens, phrases=phrase_of_position, num_preceding=num_preceding, num_following=num_following)


def _repeat_indices(counts: torch.Tensor) -> torch.Tensor:
    """Repeat each index of the counts as often as its count says. For example, [2, 1, 2] gives [0, 0, 1, 2, 2]."""
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _find_following_letters(positions: _Positions, begins_with_letter: torch.Tensor) -> torch.Tensor:
    """Return True for each position after which its alternative has a token that begins with a letter, `(positions,)`.

    Args:
        positions (`_Positions`): the positions of one sentence.
        begins_with_letter (`torch.BoolTensor` of shape `(vocabulary,)`): whether each token begins with a letter.
    """
    token_begins_with_letter = begins_with_letter[positions.tokens]
    # roll() moves each flag to the position before. At the last position of an alternative, the flag belongs to a
    # different alternative.
    next_begins_with_letter = token_begins_with_letter.roll(-1)
    has_next_token = positions.num_following > 0
    return next_begins_with_letter & has_next_token


def _count_saved_tokens(positions: _Positions, phrase_lengths: torch.Tensor) -> torch.Tensor:
    """Count the tokens that a hypothesis saves by having matched each position, `(positions,)`; see [`Tables`].

    A position is one token of one alternative of a phrase. For example, after two of the three tokens of a phrase, one
    token is needed instead of three, so two are saved.

    Args:
        positions (`_Positions`): the positions of one sentence.
        phrase_lengths (`torch.LongTensor` of shape `(phrases,)`): the number of tokens that each phrase needs.
    """
    # How many tokens a hypothesis needs that has matched nothing, and one that has matched the position. The second one
    # needs the tokens that follow the position in its alternative.
    needed_for_phrase = phrase_lengths[positions.phrases]
    needed_after_position = positions.num_following
    # The rest of a long alternative may be longer than the shortest alternative. Then nothing is saved.
    saved_tokens = (needed_for_phrase - needed_after_position).clamp(min=0)
    # After the last position, the phrase is not missing, so `PhraseStates.needed` does not count its tokens. They must
    # not be subtracted a second time.
    is_last = positions.num_following == 0
    return saved_tokens.masked_fill(is_last, 0)


def _pad_tables(tables: list[Tables]) -> Tables:
    """Pad the tables of several sentences to equal sizes, and stack them.

    In the result, each tensor has two more axes at the front: one for the sentences, and one of size 1, which
    broadcasts over the hypotheses.
    """
    # Tokens are padded with an invalid token, and all other fields with 0, which is also False. This is harmless:
    #
    # - A position of padding is never matched, because its token is invalid. It also saves 0 tokens. Its phrase and its
    #   tracked token have the index 0, only because gather() needs a valid index.
    # - A phrase of padding must occur 0 times, so it is never missing.
    # - A tracked token of padding is never a candidate.
    fields_with_tokens = ("token_of_position", "tracked_tokens")
    padded = {}
    for field in Tables._fields:
        padding = _NO_TOKEN if field in fields_with_tokens else 0
        tensors_of_sentences = [getattr(tables_of_sentence, field) for tables_of_sentence in tables]
        stacked = pad_sequence(tensors_of_sentences, batch_first=True, padding_value=padding)
        padded[field] = stacked[:, None]
    return Tables(**padded)


def check_number_of_lists(phrases: Sequence[Sequence], prompts: torch.Tensor) -> None:
    """Raise ValueError unless `phrases` has one list for each row of the prompts `(batch, length)`."""
    if len(phrases) != len(prompts):
        raise InputError(
            f"phrases has {len(phrases)} lists for {len(prompts)} sentences; give a list for each sentence, "
            "empty where it has no phrase."
        )


class _Proposals(NamedTuple):
    """Possible next tokens of each running hypothesis. Each tensor has shape `(active, beams, proposals)`.

    Args:
        tokens (`torch.LongTensor`): the proposed tokens.
        are_candidates (`torch.BoolTensor`): False for tokens that are not used, because they are proposed twice, or
            stand for padding.
        needed (`torch.LongTensor`): how many tokens the hypothesis will need for its phrases after the token.
    """

    tokens: torch.Tensor
    are_candidates: torch.Tensor
    needed: torch.Tensor


class ConstrainedBeamSearch(BeamSearch):
    """A beam search that returns only hypotheses that contain all required phrases of their sentence.

    A phrase also counts if it occurs in the prompt, i.e. in a forced prefix. The search differs from [`BeamSearch`] in
    three ways:

    - Each step considers the best tokens after every hypothesis, and also EOS and all tokens of phrases.
    - A bank consists of the candidates that need the same number of tokens for their phrases. The best candidates of
      each bank are kept.
    - The next running hypotheses are the best of each bank, then the second best of each bank, and so on. If there are
      more banks than beams, the banks that need the fewest tokens come first. Therefore, there is always a hypothesis
      that can complete its phrases within the length limit.

    A sentence without phrases has a single bank, so its search is the same as in [`BeamSearch`].

    Args:
        num_beams (`int`): number of running hypotheses per sentence, as in [`BeamSearch`].
        phrases (`list[list[Phrase]]`): the phrases of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): see [`PhraseStates`].
        prompts (`torch.LongTensor` of shape `(batch, length)`): tokens before the first generated one.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
        **options: arguments of [`BeamSearch`].

    Raises:
        ValueError: if the number of phrase lists differs from the number of sentences, or a sentence's phrases may
            exceed its length limit.
    """

    def __init__(
        self,
        num_beams: int,
        *,
        phrases: list[list[Phrase]],
        letter_edges: torch.Tensor,
        prompts: torch.Tensor,
        eos: torch.Tensor,
        **options: Any,
    ):
        super().__init__(num_beams, num_eos=len(eos), **options)
        check_number_of_lists(phrases, prompts)
        self._eos = eos
        self._phrases = PhraseStates(phrases, letter_edges, eos)

        # At first, each sentence has a single hypothesis, its prompt, so the axis of hypotheses has size 1.
        prompt_states = self._follow_prompts(prompts)
        needed_after_prompt = self._phrases.needed(prompt_states)[:, 0]  # (batch,)
        self._check_limits(needed_after_prompt)

        # All running hypotheses begin with the states of the prompt, which is the hypothesis with the index 0.
        # `self.limits` has one element per sentence, (batch,).
        indices_of_prompts = torch.zeros_like(self.limits)[:, None].expand(-1, num_beams)  # (batch, beams)
        self._running_states = prompt_states.take(indices_of_prompts)
        # The banks of the running hypotheses, (batch, beams). Each call of `extend` replaces them with the banks of the
        # new candidates, (active, candidates).
        self._banks = self._phrases.needed(self._running_states)

    def _follow_prompts(self, prompts: torch.Tensor) -> States:
        """Return the states after the prompts `(batch, length)`, with one hypothesis for each sentence."""
        states = self._phrases.start()
        for tokens in prompts.split(1, dim=1):  # (batch, 1)
            states = self._phrases.follow(states, tokens)
        return states

    def _check_limits(self, needed_for_phrases: torch.Tensor) -> None:
        """Raise ValueError if a sentence's phrases do not fit within its length limit.

        Args:
            needed_for_phrases (`torch.LongTensor` of shape `(batch,)`): the number of tokens that each sentence needs
                for its phrases.
        """
        # A hypothesis must also end with an EOS token, if there is one.
        num_tokens_to_end = min(1, len(self._eos))
        needed = needed_for_phrases + num_tokens_to_end
        too_long_sentences = (needed > self.limits).nonzero()[:, 0].tolist()
        if too_long_sentences:
            sentence = too_long_sentences[0]
            raise InputError(
                f"the phrases of sentence {sentence} of the batch take up to {int(needed[sentence])} tokens, </s> "
                f"included, but its limit is {int(self.limits[sentence])}; give more max_new_tokens or fewer phrases."
            )

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Extend the running hypotheses by the best tokens, EOS and tokens of phrases; keep the best of each bank.

        The method sets `self._candidates` and `self._banks`, whose tensors have shape `(active, candidates)`, and
        increments `self.length` by 1.

        Args:
            log_probs (`torch.FloatTensor` of shape `(active * beams, vocabulary)`): the log-probabilities of the next
                token.
            do_sample (`bool`): has no effect. It is an argument of [`BeamSearch.extend`].

        Returns:
            The rows of the batch that the candidates extend, and their last tokens, both `(active, candidates)`. They
            include candidates that are not kept.
        """
        log_probs_by_beam = self._split_beams(log_probs)  # (active, beams, vocabulary)
        proposals = self._propose_tokens(log_probs_by_beam)
        scores_by_beam = self._score_proposals(proposals, log_probs_by_beam)  # (active, beams, proposals)

        # From here on, the proposals of all beams are candidates on one axis: (active, candidates).
        scores = scores_by_beam.flatten(1)
        tokens = proposals.tokens.flatten(1)
        beams = _beams_of_candidates(proposals)
        # The bank of a candidate is the number of tokens that it still needs for its phrases.
        banks = proposals.needed.flatten(1)
        # Candidates that are not kept get the score `NO_HYPOTHESIS`. The rest of the search treats them as nonexistent.
        final_scores = self._keep_best_of_banks(scores, tokens, banks)

        self._candidates = Candidates(final_scores, beams, tokens)
        self._banks = banks
        self.length += 1
        return self._rows_of(beams), tokens

    def _split_beams(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Turn the shape `(active * beams, vocabulary)` into `(active, beams, vocabulary)`."""
        num_active, num_beams = self._running_scores.shape
        return log_probs.view(num_active, num_beams, -1)

    def _score_proposals(self, proposals: _Proposals, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the score of each running hypothesis after each proposed token, `(active, beams, proposals)`.

        Proposals that are not used get the score `NO_HYPOTHESIS`. `log_probs` has shape `(active, beams, vocabulary)`.
        """
        log_probs_of_proposals = log_probs.gather(2, proposals.tokens)
        scores = self._running_scores[:, :, None] + log_probs_of_proposals
        return scores.where(proposals.are_candidates, NO_HYPOTHESIS)

    def _keep_best_of_banks(self, scores: torch.Tensor, tokens: torch.Tensor, banks: torch.Tensor) -> torch.Tensor:
        """Return the scores of the `num_candidates` best candidates of each bank, and mark the others as nonexistent.

        Candidates that end without all of their phrases are dropped first. All arguments and the result have shape
        `(active, candidates)`.
        """
        # A candidate in the bank 0 contains all phrases.
        ends_too_early = torch.isin(tokens, self._eos) & (banks > 0)
        allowed_scores = _keep_scores(scores, ~ends_too_early)
        is_among_best = _rank_within_banks(allowed_scores, banks) < self.num_candidates
        return _keep_scores(allowed_scores, is_among_best)

    def _propose_tokens(self, log_probs: torch.Tensor) -> _Proposals:
        """Return the best tokens after each running hypothesis, followed by the tracked tokens of its sentence.

        Args:
            log_probs (`torch.FloatTensor` of shape `(active, beams, vocabulary)`): the log-probabilities of the next
                tokens.
        """
        num_beams = log_probs.shape[1]
        best = self._propose_best_tokens(log_probs)
        tracked = self._propose_tracked_tokens(num_beams)
        # All results have shape (active, beams, best + tracked).
        return _Proposals(
            tokens=torch.cat([best.tokens, tracked.tokens], dim=2),
            are_candidates=torch.cat([best.are_candidates, tracked.are_candidates], dim=2),
            needed=torch.cat([best.needed, tracked.needed], dim=2),
        )

    def _propose_best_tokens(self, log_probs: torch.Tensor) -> _Proposals:
        """Return the best tokens after each running hypothesis. `log_probs` has shape `(active, beams, vocabulary)`."""
        num_active, num_beams, vocab_size = log_probs.shape
        num_best = min(self.num_candidates, vocab_size)
        _, tokens_of_rows = top_tokens(log_probs.flatten(0, 1), num_best)  # (active * beams, best)
        tokens = tokens_of_rows.view(num_active, num_beams, num_best)
        # Tracked tokens, which are the tokens of phrases and EOS, are proposed separately. One of them among the best
        # tokens would become a candidate twice, so here it is not a candidate. Its number in `needed` may be wrong,
        # because it may match a phrase, but this number is not used.
        are_candidates = ~self._phrases.are_tracked(tokens)
        needed = self._phrases.needed_after_other_tokens(self._running_states, tokens)
        return _Proposals(tokens, are_candidates, needed)

    def _propose_tracked_tokens(self, num_beams: int) -> _Proposals:
        """Return the tracked tokens of each sentence: the tokens of its phrases, and EOS.

        They are the same for all running hypotheses of the sentence.
        """
        padded_tokens = self._phrases.tracked_tokens[:, None].expand(-1, num_beams, -1)  # (active, beams, tracked)
        is_padding = padded_tokens == _NO_TOKEN
        # Padding becomes a valid token, because tokens are used as indices. It is not a candidate.
        tokens = padded_tokens.clamp(min=0)
        are_candidates = ~is_padding
        needed = self._phrases.needed_after_tracked_tokens(self._running_states)
        return _Proposals(tokens, are_candidates, needed)

    def prune(self, is_finished: torch.Tensor, is_truncated: torch.Tensor) -> None:
        """Drop candidates that end without all of their phrases, then continue as [`BeamSearch.prune`] does."""
        # A candidate that needs no more tokens contains all phrases. All others must be dropped first, because
        # `BeamSearch.prune` stores the candidates that are finished or truncated as results.
        lacks_phrases = (is_finished | is_truncated) & (self._banks > 0)
        self._candidates.scores = _keep_scores(self._candidates.scores, ~lacks_phrases)
        super().prune(is_finished, is_truncated)

    def _best_running(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the next running hypotheses from all banks in turn, and update `self._running_states`.

        A bank consists of the candidates that need the same number of tokens for their phrases.
        The arguments and the result are as in [`BeamSearch._best_running`], which this method replaces. It is called
        once per step, when the candidates become running hypotheses, so the states are updated here, too.
        """
        # All tensors below have shape (active, beams). A column is the index of a candidate of the sentence.
        # The candidates are chosen by bank, but `BeamSearch` expects the best hypothesis first. For example, if the
        # columns [7, 2] have the scores [-3, -1], the order by score is [1, 0], and the sorted columns are [2, 7].
        columns_by_bank = self._choose_from_banks(scores)
        sorted_scores, order_by_score = scores.gather(1, columns_by_bank).sort(dim=1, descending=True)
        columns_by_score = columns_by_bank.gather(1, order_by_score)

        # Each chosen candidate continues a running hypothesis, its beam, by one token. The states are updated in the
        # same order as the result, so they stay the states of the running hypotheses.
        continued_beams = self._candidates.beams.gather(1, columns_by_score)
        new_tokens = self._candidates.tokens.gather(1, columns_by_score)
        states_before = self._running_states.take(continued_beams)
        self._running_states = self._phrases.follow(states_before, new_tokens)
        return sorted_scores, columns_by_score

    def _choose_from_banks(self, scores: torch.Tensor) -> torch.Tensor:
        """Choose `num_beams` candidates: the best of each bank, then the second best of each bank, and so on.

        Candidates of equal rank are chosen from the bank that needs the fewest tokens to the one that needs the most.

        Args:
            scores (`torch.FloatTensor` of shape `(active, candidates)`): the scores of the candidates.

        Returns:
            The indices of the chosen candidates, `(active, beams)`.
        """
        # The bank of each candidate is the number of tokens that it still needs, (active, candidates).
        banks = self._banks
        # The banks of candidates that exist are numbers from 0 to num_banks - 1.
        num_banks = banks.max() + 1
        # The number of better candidates in the same bank: 0 for the best of a bank, 1 for the second best, and so on.
        ranks = _rank_within_banks(scores, banks)
        # The candidates with the smallest turns are chosen. The turns sort candidates by rank, and within a rank by
        # bank. For example, with the banks 0, 1 and 2, the best candidates of the banks have the turns 0, 1 and 2, and
        # the second best have 3, 4 and 5. No two of these candidates of a sentence have the same turn.
        turns = ranks * num_banks + banks
        # Candidates that do not exist are chosen last. The largest integer is greater than every turn above.
        last_turn = torch.iinfo(turns.dtype).max
        turns = turns.where(exists(scores), last_turn)
        return turns.topk(self.num_beams, largest=False).indices

    def drop_finished(self) -> torch.Tensor:
        """Remove finished sentences from the batch, and return the indices `(remaining,)` of the other sentences."""
        remaining = super().drop_finished()
        # `self._banks` and `self._candidates` keep the removed sentences, because the next `extend` replaces both.
        self._phrases.select(remaining)
        self._running_states = self._running_states.select(remaining)
        return remaining


def _beams_of_candidates(proposals: _Proposals) -> torch.Tensor:
    """Return the beam of each candidate, `(active, candidates)`. The proposals of all beams are the candidates.

    For example, each row is [0, 0, 0, 1, 1, 1] for 2 beams with 3 proposals each.
    """
    num_active, num_beams, num_proposals = proposals.tokens.shape
    all_beams = torch.arange(num_beams, device=proposals.tokens.device)
    beams_of_one_sentence = all_beams.repeat_interleave(num_proposals)
    return beams_of_one_sentence.expand(num_active, -1)


def _keep_scores(scores: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Return the scores of the candidates to keep, and mark all other candidates as nonexistent.

    Candidates whose score is NaN or minus infinity are never kept.
    """
    return scores.where(is_kept & exists(scores), NO_HYPOTHESIS)


def _rank_within_banks(scores: torch.Tensor, banks: torch.Tensor) -> torch.Tensor:
    """Return the rank of each candidate within its bank, where the best score has rank 0.

    The scores, the banks and the result have shape `(active, candidates)`.
    """
    sorted_candidates = _sort_by_bank_and_score(scores, banks)
    sorted_banks = banks.gather(1, sorted_candidates)
    sorted_ranks = _count_from_run_start(sorted_banks)
    # Put the ranks back into the order of the candidates. Each candidate occurs once in `sorted_candidates`, so every
    # element of the empty tensor is set.
    return torch.empty_like(sorted_ranks).scatter_(1, sorted_candidates, sorted_ranks)


def _sort_by_bank_and_score(scores: torch.Tensor, banks: torch.Tensor) -> torch.Tensor:
    """Return the indices of the candidates, sorted by bank, and within a bank from the best score to the worst.

    The scores, the banks and the result have shape `(active, candidates)`.
    """
    # The second sort is stable, so it keeps the order by score within each bank.
    candidates_by_score = scores.argsort(dim=1, descending=True, stable=True)
    banks_by_score = banks.gather(1, candidates_by_score)
    order_by_bank = banks_by_score.argsort(dim=1, stable=True)
    return candidates_by_score.gather(1, order_by_bank)


def _count_from_run_start(sorted_values: torch.Tensor) -> torch.Tensor:
    """Return the distance of each element from the first element of its row that has the same value.

    For example, the sorted values [2, 2, 2, 5, 5] give [0, 1, 2, 0, 1]. The values and the result have shape `(rows,
    columns)`.
    """
    is_run_start = torch.ones_like(sorted_values, dtype=torch.bool)
    is_run_start[:, 1:] = sorted_values[:, 1:] != sorted_values[:, :-1]
    # In the example, the runs start at the columns [0, 0, 0, 3, 3]. The largest start so far is the start of the
    # element's own run.
    columns = torch.arange(sorted_values.shape[1], device=sorted_values.device).expand_as(sorted_values)
    run_starts = columns.where(is_run_start, 0).cummax(dim=1).values
    return columns - run_starts
