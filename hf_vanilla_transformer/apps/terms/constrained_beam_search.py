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

Shapes use the axis names of `model/beam_search.py`, and three more: phrases (of a sentence), positions (as above), and
hypotheses (running ones or candidates).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from ...model.beam_search import NO_HYPOTHESIS, BeamSearch, exists, top_tokens
from ...support.user_errors import InputError


_NO_TOKEN = -1
# A phrase is a tuple of alternatives, each a tuple of token ids.
Phrase = tuple[tuple[int, ...], ...]


class States(NamedTuple):
    """The progress of each hypothesis toward its sentence's phrases: partial matches and missing phrases.

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

    def take(self, chosen: torch.Tensor) -> "States":
        """Return the states of the chosen hypotheses, whose indices have the shape `(active, candidates)`."""
        return States(*(_take_hypotheses(values, chosen) for values in self))

    def select(self, sentences: torch.Tensor) -> "States":
        """Return the states of the given sentences, which are indices into the batch, of shape `(remaining,)`."""
        return States(*(values[sentences] for values in self))


def _take_hypotheses(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Select the values `(active, hypotheses, ...)` of the hypotheses with the given indices `(active, candidates)`."""
    other_axes = values.shape[2:]
    ones = [1] * len(other_axes)
    indices = chosen.view(*chosen.shape, *ones).expand(-1, -1, *other_axes)
    return values.gather(1, indices)


class Tables(NamedTuple):
    """The required phrases of a sentence, stored as tensors for the search.

    For a batch, the tensors are padded and have an additional first axis, `batch`.

    Tracked tokens are the tokens that the search considers at every step, even if they are improbable: all tokens of
    phrases, because they may match a position, and the tokens that end a hypothesis.

    Args:
        tokens (`torch.LongTensor` of shape `(positions,)`): the token of each position.
        is_first (`torch.BoolTensor` of shape `(positions,)`): whether a position is the first of its alternative.
        is_last (`torch.BoolTensor` of shape `(positions,)`): whether a position is the last of its alternative.
        letter_follows (`torch.BoolTensor` of shape `(positions,)`): whether the next token of the alternative begins
            with a letter.
        saved (`torch.LongTensor` of shape `(positions,)`): how many tokens fewer a hypothesis needs after it has
            matched a position, compared with a hypothesis that needs the whole phrase. It is 0 at the last position,
            because then the phrase is no longer missing.
        phrases (`torch.LongTensor` of shape `(positions,)`): the index of the phrase of each position.
        columns (`torch.LongTensor` of shape `(positions,)`): the index of each position's token in `tracked_tokens`.
        tracked_tokens (`torch.LongTensor` of shape `(tracked,)`): the distinct tracked tokens.
        lengths (`torch.LongTensor` of shape `(phrases,)`): for each phrase, the number of tokens in the shortest
            alternative that may follow any token, i.e. that does not begin with a letter. If there is none, all
            alternatives are considered.
        required (`torch.LongTensor` of shape `(phrases,)`): how many times each phrase must occur.
    """

    tokens: torch.Tensor
    is_first: torch.Tensor
    is_last: torch.Tensor
    letter_follows: torch.Tensor
    saved: torch.Tensor
    phrases: torch.Tensor
    columns: torch.Tensor
    tracked_tokens: torch.Tensor
    lengths: torch.Tensor
    required: torch.Tensor


class PhraseStates:
    """Tracks, token by token, which phrases each hypothesis of a batch contains, and which are still missing.

    A phrase occurs where one of its alternatives ends. Occurrences may overlap, so a phrase inside a longer phrase
    counts as well. If a phrase is given n times, it must occur n times in the hypothesis. All alternatives are
    matched concurrently, position by position, with the Shift-And algorithm (Baeza-Yates and Gonnet 1992).

    An occurrence counts only if it consists of whole words. It does not count if its first or last token is part of a
    longer word. This is the case if the letters of two tokens meet there. Tokens without text do not separate letters.

    Several methods compute values for each hypothesis and each of several next tokens. The axis of these next tokens is
    called columns.

    Args:
        phrases (`list[list[Phrase]]`): the phrases of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): for each token, whether it begins with a letter,
            whether it ends with a letter, and whether it has no text.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
    """

    def __init__(self, phrases: list[list[Phrase]], letter_edges: torch.Tensor, eos: torch.Tensor):
        self._begins_with_letter, self._ends_with_letter, self._has_no_text = letter_edges
        tables = [_build_tables(phrases_of_sentence, self._begins_with_letter, eos) for phrases_of_sentence in phrases]
        self._tables = _pad_tables(tables)

        vocab_size = letter_edges.shape[1]
        # The padding of `tracked_tokens` marks an additional last column, which is then removed.
        marked_tokens = self.tracked_tokens.where(self.tracked_tokens != _NO_TOKEN, vocab_size)
        is_tracked = torch.zeros(len(phrases), vocab_size + 1, dtype=torch.bool, device=letter_edges.device)
        is_tracked.scatter_(1, marked_tokens, True)
        self._is_tracked = is_tracked[:, :vocab_size]

    @property
    def tracked_tokens(self) -> torch.Tensor:
        """The tracked tokens of each sentence (see [`Tables`]), padded with -1, of shape `(active, tracked)`."""
        return self._tables.tracked_tokens

    def start(self) -> States:
        """Return the initial states: one empty hypothesis per sentence, for which all phrases are missing."""
        required = self._tables.required
        return States(
            matched=torch.zeros_like(self._tables.tokens, dtype=torch.bool)[:, None],
            missing=required[:, None],
            revocable=torch.zeros_like(required)[:, None],
            ends_in_letter=torch.zeros(len(required), dtype=torch.bool, device=required.device)[:, None],
        )

    def follow(self, states: States, tokens: torch.Tensor) -> States:
        """Return the states after each hypothesis is extended by one token; `tokens` is `(active, hypotheses)`."""
        letters_meet = (states.ends_in_letter & self._begins_with_letter[tokens])[..., None]
        is_token_of_position = tokens[..., None] == self._tables.tokens[:, None]
        matched = self._may_come_next(states, letters_meet) & is_token_of_position
        only_column = torch.zeros_like(self._tables.columns)
        occurs = self._count_occurrences(matched, only_column, num_columns=1)[:, :, 0]

        has_no_text = self._has_no_text[tokens]
        ends_in_letter = self._ends_with_letter[tokens] | (has_no_text & states.ends_in_letter)
        # If letters meet, revocable occurrences are missing again. After a token without text they stay revocable.
        missing = states.missing + states.revocable * letters_meet - occurs
        revocable = (occurs + states.revocable * has_no_text[..., None]) * ends_in_letter[..., None]
        return States(matched, missing, revocable, ends_in_letter)

    def needed(self, states: States) -> torch.Tensor:
        """Return how many more tokens each hypothesis needs for its phrases, of shape `(active, hypotheses)`.

        The number is 0 for hypotheses that contain all phrases. Otherwise, a suitable next token lowers it by at least
        1: the next token of a matched alternative, or the first token of a missing phrase. There is one exception: if
        the hypothesis ends with a letter, a phrase whose alternatives all begin with a letter cannot follow directly.
        The number is an upper bound, because overlapping phrases may take fewer tokens.
        """
        missing = states.missing[:, :, None]
        revocable = states.revocable[:, :, None]
        only_column = torch.zeros_like(self._tables.columns)
        return self._count_needed(states.matched, missing, revocable, only_column)[:, :, 0]

    def needed_after_tracked_tokens(self, states: States) -> torch.Tensor:
        """Return how many tokens each hypothesis will need after each tracked token; see [`needed`].

        The result has shape `(active, hypotheses, tracked)`. Only one token matches a given position, so the position
        belongs to the column of this token. Therefore time and memory grow with positions + tracked tokens x phrases.
        Calls of [`follow`] for each token would grow with tracked tokens x positions.
        """
        # The padding of `tracked_tokens` is replaced by a valid token. The results for it are never used.
        tokens = self.tracked_tokens.clamp(min=0)
        ended_in_letter = states.ends_in_letter[..., None]
        letters_meet = ended_in_letter & self._begins_with_letter[tokens][:, None]
        has_no_text = self._has_no_text[tokens][:, None]
        ends_in_letter = self._ends_with_letter[tokens][:, None] | (has_no_text & ended_in_letter)

        may_come_next = self._may_come_next(states, _at_positions(letters_meet, self._tables.columns))
        matched = may_come_next & (self._tables.tokens != _NO_TOKEN)[:, None]
        occurs = self._count_occurrences(matched, self._tables.columns, num_columns=tokens.shape[1])

        # This is the same update as in `follow`, with one more axis.
        revocable_before = states.revocable[:, :, None]
        missing = states.missing[:, :, None] + revocable_before * letters_meet[..., None] - occurs
        revocable = (occurs + revocable_before * has_no_text[..., None]) * ends_in_letter[..., None]
        return self._count_needed(matched, missing, revocable, self._tables.columns)

    def needed_after_other_tokens(self, states: States, tokens: torch.Tensor) -> torch.Tensor:
        """Return how many tokens each hypothesis will need after tokens that are in no phrase; see [`needed`].

        The tokens and the result have shape `(active, hypotheses, tokens)`. These tokens match no position, so it
        matters only whether they begin with a letter.
        """
        letters_meet = states.ends_in_letter[..., None] & self._begins_with_letter[tokens]
        needed_otherwise = self._tokens_of_missing(states.missing)[..., None]
        needed_if_letters_meet = self._tokens_of_missing(states.missing + states.revocable)[..., None]
        return needed_if_letters_meet.where(letters_meet, needed_otherwise)

    def are_tracked(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a mask of the tokens `(active, hypotheses, candidates)` that are tracked tokens of their sentence."""
        return self._is_tracked.gather(1, tokens.flatten(1)).view(tokens.shape)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the given sentences, which are indices into the batch, of shape `(remaining,)`, and drop all others."""
        self._tables = Tables(*(table[sentences] for table in self._tables))
        self._is_tracked = self._is_tracked[sentences]

    def _may_come_next(self, states: States, letters_meet: torch.Tensor) -> torch.Tensor:
        """Return a mask of the positions that the next token may match, of shape `(active, hypotheses, positions)`.

        The first position of an alternative may be matched unless the alternative would begin inside a word. Any other
        position may be matched if the position before it is matched now.

        Args:
            states (`States`): the states of the hypotheses.
            letters_meet (`torch.BoolTensor` of shape `(active, hypotheses, positions or 1)`): whether the next token
                would continue a word.
        """
        matched_before = states.matched.roll(1, dims=2)
        return torch.where(self._tables.is_first[:, None], ~letters_meet, matched_before)

    def _count_occurrences(self, matched: torch.Tensor, columns: torch.Tensor, num_columns: int) -> torch.Tensor:
        """Return 1 for each column and phrase where an alternative of the phrase ends with the column's token, else 0.

        Args:
            matched (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): as in [`States`].
            columns (`torch.LongTensor` of shape `(active, positions)`): the column of each position.
            num_columns (`int`): number of columns.

        Returns:
            `torch.LongTensor` of shape `(active, hypotheses, columns, phrases)`.
        """
        num_phrases = self._tables.required.shape[1]
        num_cells = num_columns * num_phrases
        # For each position, the index of its column and phrase in the flattened result.
        cells = (columns * num_phrases + self._tables.phrases)[:, None].expand_as(matched)
        ends_here = matched & self._tables.is_last[:, None]
        # Positions where no alternative ends mark an additional last cell, which is then removed.
        marked_cells = cells.where(ends_here, num_cells)
        is_marked = matched.new_zeros(*matched.shape[:2], num_cells + 1).scatter_(2, marked_cells, True)
        return is_marked[..., :num_cells].unflatten(2, (num_columns, num_phrases)).long()

    def _count_needed(
        self, matched: torch.Tensor, missing: torch.Tensor, revocable: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor:
        """Return how many more tokens hypotheses need for their phrases, of shape `(active, hypotheses, columns)`.

        This is the number of tokens in all missing phrases, minus the largest number of tokens that a matched part of
        an alternative saves.

        Args:
            matched (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): as in [`States`].
            missing (`torch.LongTensor` of shape `(active, hypotheses, columns, phrases)`): as in [`States`].
            revocable (`torch.LongTensor` of shape `(active, hypotheses, columns, phrases)`): as in [`States`].
            columns (`torch.LongTensor` of shape `(active, positions)`): the column of each position.
        """
        cells = columns * missing.shape[3] + self._tables.phrases
        is_missing = _at_positions((missing > 0).flatten(2), cells)
        # A matched alternative saves nothing if its next token begins with a letter that would revoke an occurrence
        # that is needed.
        has_needed_revocable = ((revocable > 0) & (missing + revocable > 0)).any(dim=3)
        next_token_revokes = _at_positions(has_needed_revocable, columns) & self._tables.letter_follows[:, None]
        saved = self._tables.saved[:, None] * (matched & is_missing & ~next_token_revokes)

        whole_phrases = self._tokens_of_missing(missing.flatten(1, 2)).view(missing.shape[:3])
        columns_of_saved = columns[:, None].expand_as(saved)
        most_saved = torch.zeros_like(whole_phrases).scatter_reduce(2, columns_of_saved, saved, "amax")
        return whole_phrases - most_saved

    def _tokens_of_missing(self, missing: torch.Tensor) -> torch.Tensor:
        """Return the number of tokens in all missing phrases, without regard to partial matches.

        `missing` has shape `(active, hypotheses, phrases)`, and the result has shape `(active, hypotheses)`.
        """
        return (missing.clamp(min=0) * self._tables.lengths[:, None]).sum(dim=2)


def _at_positions(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Look up, for each position, the value of its column.

    The values have shape `(active, hypotheses, columns)`, and the result has shape `(active, hypotheses, positions)`.
    """
    return values.gather(2, columns[:, None].expand(-1, values.shape[1], -1))


def _build_tables(phrases: list[Phrase], begins_with_letter: torch.Tensor, eos: torch.Tensor) -> Tables:
    """Convert the phrases of one sentence into [`Tables`].

    A Python loop over tokens is avoided, because it would take a second for many long phrases, and would block other
    threads during this time.

    Args:
        phrases (`list[Phrase]`): the phrases of the sentence.
        begins_with_letter (`torch.BoolTensor` of shape `(vocabulary,)`): whether each token begins with a letter.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
    """
    # Phrases with the same alternatives are one phrase that must occur several times.
    required = Counter(tuple(sorted(phrase)) for phrase in phrases)
    alternatives: list[tuple[int, ...]] = []
    phrase_of_alternative: list[int] = []
    phrase_lengths: list[int] = []
    for number, phrase in enumerate(required):
        alternatives += phrase
        phrase_of_alternative += [number] * len(phrase)
        # An alternative that begins with a letter cannot follow every token, so the search cannot rely on it.
        always_possible = [tokens for tokens in phrase if not begins_with_letter[tokens[0]]]
        phrase_lengths.append(min(map(len, always_possible or phrase)))

    device = begins_with_letter.device
    tokens = torch.tensor(list(chain.from_iterable(alternatives)), dtype=torch.long, device=device)
    alternative_lengths = torch.tensor(list(map(len, alternatives)), dtype=torch.long, device=device)
    phrases_of_alternatives = torch.tensor(phrase_of_alternative, dtype=torch.long, device=device)
    lengths = torch.tensor(phrase_lengths, dtype=torch.long, device=device)

    # For each position: its phrase, its index in its alternative, and how many tokens of the alternative follow.
    phrases_of_positions = phrases_of_alternatives.repeat_interleave(alternative_lengths)
    starts = alternative_lengths.cumsum(0) - alternative_lengths
    places = torch.arange(len(tokens), device=device) - starts.repeat_interleave(alternative_lengths)
    num_following = alternative_lengths.repeat_interleave(alternative_lengths) - places - 1

    is_last = num_following == 0
    letter_follows = begins_with_letter[tokens].roll(-1) & ~is_last
    saved = (lengths[phrases_of_positions] - num_following).clamp(min=0).masked_fill(is_last, 0)
    tracked_tokens, columns = torch.cat([tokens, eos.to(device)]).unique(return_inverse=True)
    return Tables(
        tokens=tokens,
        is_first=places == 0,
        is_last=is_last,
        letter_follows=letter_follows,
        saved=saved,
        phrases=phrases_of_positions,
        columns=columns[: len(tokens)],
        tracked_tokens=tracked_tokens,
        lengths=lengths,
        required=torch.tensor(list(required.values()), dtype=torch.long, device=device),
    )


def _pad_tables(tables: list[Tables]) -> Tables:
    """Pad the tables of several sentences to equal sizes, and stack them along a new first axis `batch`."""
    padded = {}
    for name in Tables._fields:
        fill = _NO_TOKEN if name in ("tokens", "tracked_tokens") else 0
        table_of_sentences = [getattr(table, name) for table in tables]
        padded[name] = pad_sequence(table_of_sentences, batch_first=True, padding_value=fill)
    return Tables(**padded)


def check_number_of_lists(phrases: Sequence[Sequence], prompts: torch.Tensor) -> None:
    """Raise ValueError unless `phrases` has one list for each row of the prompts `(batch, length)`."""
    if len(phrases) != len(prompts):
        raise InputError(
            f"phrases has {len(phrases)} lists for {len(prompts)} sentences; give a list for each sentence, "
            "empty where it has no phrase."
        )


class ConstrainedBeamSearch(BeamSearch):
    """A beam search that returns only hypotheses with all required phrases of their sentences.

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
        states = self._phrases.start()
        for tokens in prompts.split(1, dim=1):
            states = self._phrases.follow(states, tokens)
        num_tokens_to_end = min(1, len(eos))
        self._check_limits(self._phrases.needed(states)[:, 0] + num_tokens_to_end)
        # The states of the running hypotheses, which are all equal at the start.
        first_hypothesis = torch.zeros_like(self.limits)[:, None].expand(-1, num_beams)
        self._states = states.take(first_hypothesis)
        # The number of tokens that each candidate needs for its phrases, which is the number of its bank.
        self._needed = self._phrases.needed(self._states)

    def _check_limits(self, needed: torch.Tensor) -> None:
        """Raise ValueError if the number of tokens that a sentence needs, from `(batch,)`, exceeds its length limit."""
        sentences = (needed > self.limits).nonzero()[:, 0].tolist()
        if sentences:
            sentence = sentences[0]
            raise InputError(
                f"the phrases of sentence {sentence} of the batch take up to {int(needed[sentence])} tokens, </s> "
                f"included, but its limit is {int(self.limits[sentence])}; give more max_new_tokens or fewer phrases."
            )

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Extend the running hypotheses by the best tokens and by all tracked tokens, and keep the best of each bank.

        The arguments and the result are as in [`BeamSearch.extend`], except that `do_sample` has no effect.
        """
        num_active, num_beams = self._scores.shape
        log_probs_by_beam = log_probs.view(num_active, num_beams, -1)
        num_best = min(self.num_candidates, log_probs_by_beam.shape[2])
        _, best_tokens = top_tokens(log_probs_by_beam.flatten(0, 1), num_best)
        best_tokens = best_tokens.view(num_active, num_beams, -1)
        tracked_tokens = self._phrases.tracked_tokens[:, None].expand(-1, num_beams, -1)

        # A tracked token among the best tokens would become a candidate twice, so it is removed from the best tokens.
        is_candidate = torch.cat([~self._phrases.are_tracked(best_tokens), tracked_tokens != _NO_TOKEN], dim=2)
        tokens_by_beam = torch.cat([best_tokens, tracked_tokens.clamp(min=0)], dim=2)
        scores_by_beam = self._scores[..., None] + log_probs_by_beam.gather(2, tokens_by_beam)
        scores_by_beam = scores_by_beam.where(is_candidate, NO_HYPOTHESIS)
        needed_after_best = self._phrases.needed_after_other_tokens(self._states, best_tokens)
        needed_after_tracked = self._phrases.needed_after_tracked_tokens(self._states)
        self._needed = torch.cat([needed_after_best, needed_after_tracked], dim=2).flatten(1)

        # From here on, the candidates of all beams are on one axis.
        tokens = tokens_by_beam.flatten(1)
        beams = torch.arange(num_beams, device=tokens.device)
        beams = beams.repeat_interleave(tokens_by_beam.shape[2]).expand_as(tokens)
        ends_too_early = torch.isin(tokens, self._eos) & (self._needed > 0)
        scores = _keep_scores(scores_by_beam.flatten(1), ~ends_too_early)
        is_among_best = _rank_within_banks(scores, self._needed) < self.num_candidates
        scores = _keep_scores(scores, is_among_best)

        self._candidates = (scores, beams, tokens)
        self.length += 1
        return beams + self._first_rows[:num_active], tokens

    def prune(self, is_finished: torch.Tensor, is_truncated: torch.Tensor) -> None:
        """Drop candidates that end without all of their phrases, then continue as [`BeamSearch.prune`] does."""
        scores, beams, tokens = self._candidates
        lacks_phrases = (is_finished | is_truncated) & (self._needed > 0)
        self._candidates = (_keep_scores(scores, ~lacks_phrases), beams, tokens)
        super().prune(is_finished, is_truncated)

    def _best_running(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the next running hypotheses from all banks in turn, and update their phrase states.

        The arguments and the result are as in [`BeamSearch._best_running`].
        """
        # Sort by the rank within the bank first, and by the bank second.
        num_banks = self._needed.max() + 1
        order = _rank_within_banks(scores, self._needed) * num_banks + self._needed
        order = order.where(exists(scores), torch.iinfo(order.dtype).max)
        chosen = order.topk(self.num_beams, largest=False).indices

        # `BeamSearch` expects the best hypothesis first.
        chosen_scores, by_score = scores.gather(1, chosen).sort(dim=1, descending=True)
        chosen = chosen.gather(1, by_score)

        _, beams, tokens = self._candidates
        states_before = self._states.take(beams.gather(1, chosen))
        self._states = self._phrases.follow(states_before, tokens.gather(1, chosen))
        return chosen_scores, chosen

    def drop_finished(self) -> torch.Tensor:
        """Remove finished sentences from the batch, and return the indices `(remaining,)` of the other sentences."""
        remaining = super().drop_finished()
        self._phrases.select(remaining)
        self._states = self._states.select(remaining)
        return remaining


def _keep_scores(scores: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """Return the scores of the candidates to keep, and mark all other candidates as nonexistent.

    Candidates whose score is NaN or minus infinity are never kept.
    """
    return scores.where(is_kept & exists(scores), NO_HYPOTHESIS)


def _rank_within_banks(scores: torch.Tensor, banks: torch.Tensor) -> torch.Tensor:
    """Return the rank of each candidate within its bank, where the best score has rank 0.

    The scores, the banks and the result have shape `(active, candidates)`.
    """
    # Sort by score, and then by bank. The second sort is stable, so it keeps the order by score within each bank.
    by_score = scores.argsort(dim=1, descending=True, stable=True)
    order = by_score.gather(1, banks.gather(1, by_score).argsort(dim=1, stable=True))
    sorted_banks = banks.gather(1, order)

    # The rank is the distance from the first candidate of the bank.
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    is_first_of_bank = torch.ones_like(order, dtype=torch.bool)
    is_first_of_bank[:, 1:] = sorted_banks[:, 1:] != sorted_banks[:, :-1]
    bank_starts = places.where(is_first_of_bank, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter(1, order, places - bank_starts)
