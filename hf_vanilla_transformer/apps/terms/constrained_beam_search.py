"""Lexically constrained beam search: every hypothesis contains the phrases that its sentence must have.

Post and Vilar (2018) share the beam between banks, one for each number of tokens that the phrases still need, so that
hypotheses with more of the phrases are not compared with those that have fewer. As in Hu et al. (2019), a batch is
searched at once.

Shapes have the named axes of `model/beam_search.py`, and: phrases (of a sentence), positions (the tokens of all
alternatives of a sentence's phrases, one after the other), hypotheses (running ones or candidates).
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
# Kinds of positions, as bits: first and last of an alternative, and before a token that begins with a letter.
_FIRST, _LAST, _LETTER_FOLLOWS = 1, 2, 4
# The alternatives of a phrase, each a tuple of token ids.
Phrase = tuple[tuple[int, ...], ...]


class States(NamedTuple):
    """What hypotheses contain of the phrases of their sentences.

    Args:
        begun (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): whether the tokens end in those of an
            alternative up to each position.
        missing (`torch.LongTensor` of shape `(active, hypotheses, phrases)`): occurrences that each phrase lacks;
            negative where it has more.
        open_ends (`torch.LongTensor` of shape `(active, hypotheses, phrases)`): occurrences at the end of the tokens
            that count only if no letter follows.
        ends_in_letter (`torch.BoolTensor` of shape `(active, hypotheses)`): whether a letter would touch the last one.
    """

    begun: torch.Tensor
    missing: torch.Tensor
    open_ends: torch.Tensor
    ends_in_letter: torch.Tensor

    def take(self, chosen: torch.Tensor) -> "States":
        """The states of hypotheses `chosen`, `(active, candidates)`."""
        return States(
            *(
                each.gather(1, chosen.view(*chosen.shape, *[1] * (each.ndim - 2)).expand(-1, -1, *each.shape[2:]))
                for each in self
            )
        )

    def select(self, sentences: torch.Tensor) -> "States":
        """Those of the given sentences of the batch, `(kept,)`."""
        return States(*(each[sentences] for each in self))


class Tables(NamedTuple):
    """The alternatives of a sentence's phrases, one after the other; of a batch, padded.

    Args:
        tokens (`torch.LongTensor` of shape `(positions,)`): the token of each position.
        kinds (`torch.LongTensor` of shape `(positions,)`): bits of `_FIRST`, `_LAST` and `_LETTER_FOLLOWS`.
        saved (`torch.LongTensor` of shape `(positions,)`): how many tokens less than a whole phrase are needed after
            the position.
        owners (`torch.LongTensor` of shape `(positions,)`): the number of the phrase of each position.
        columns (`torch.LongTensor` of shape `(positions,)`): the index of each position's token in `own_tokens`.
        own_tokens (`torch.LongTensor` of shape `(own,)`): the distinct tokens of all phrases, and those that end a
            hypothesis.
        lengths (`torch.LongTensor` of shape `(phrases,)`): the tokens that each phrase takes anywhere.
        required (`torch.LongTensor` of shape `(phrases,)`): how many times each phrase must occur.
    """

    tokens: torch.Tensor
    kinds: torch.Tensor
    saved: torch.Tensor
    owners: torch.Tensor
    columns: torch.Tensor
    own_tokens: torch.Tensor
    lengths: torch.Tensor
    required: torch.Tensor


# What fills up each of the tables of a sentence with fewer positions, tokens or phrases than another one.
_PADDING = (_NO_TOKEN, 0, 0, 0, 0, _NO_TOKEN, 0, 0)


class PhraseStates:
    """The phrases of a batch of sentences, and what its hypotheses contain of them.

    A phrase occurs where one of its alternatives ends. Occurrences may overlap, so a longer phrase counts for those
    inside it; a phrase that is given n times must occur at n positions. All alternatives are matched at once, position
    by position (the Shift-And algorithm of Baeza-Yates and Gonnet 1992).

    Args:
        phrases (`list[list[Phrase]]`): of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): whether each token begins, and ends, with a
            letter, and whether it has no text. An occurrence counts only as a whole: not if two letters meet at one of
            its edges, with or without tokens between them that have no text.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
    """

    def __init__(self, phrases: list[list[Phrase]], letter_edges: torch.Tensor, eos: torch.Tensor):
        self._begins, self._ends, self._is_empty = letter_edges
        self._tables = _pad([_tables(of_sentence, self._begins, eos) for of_sentence in phrases])
        vocabulary = letter_edges.shape[1]
        # One more column, for the padding of `own_tokens`.
        is_own = torch.zeros(len(phrases), vocabulary + 1, dtype=torch.bool, device=letter_edges.device)
        is_own.scatter_(1, self.own_tokens.where(self.own_tokens != _NO_TOKEN, vocabulary), True)
        self._is_own = is_own[:, :vocabulary]

    @property
    def own_tokens(self) -> torch.Tensor:
        """The distinct tokens of each sentence's phrases and those that end a hypothesis, then -1: `(active, own)`."""
        return self._tables.own_tokens

    def start(self) -> States:
        """The states of empty hypotheses, one for each sentence."""
        required = self._tables.required
        states = States(
            begun=torch.zeros_like(self._tables.tokens, dtype=torch.bool),
            missing=required,
            open_ends=torch.zeros_like(required),
            ends_in_letter=torch.zeros(len(required), dtype=torch.bool, device=required.device),
        )
        return States(*(state[:, None] for state in states))

    def follow(self, states: States, tokens: torch.Tensor) -> States:
        """The states after one more token of each hypothesis, `(active, hypotheses)`."""
        touches = (states.ends_in_letter & self._begins[tokens])[..., None]
        begun = self._may_follow(states, touches) & (tokens[..., None] == self._tables.tokens[:, None])
        occurs = self._occurrences(begun, torch.zeros_like(self._tables.columns), 1)[:, :, 0]
        is_empty = self._is_empty[tokens]
        ends_in_letter = self._ends[tokens] | (is_empty & states.ends_in_letter)
        missing = states.missing + states.open_ends * touches - occurs
        open_ends = (occurs + states.open_ends * is_empty[..., None]) * ends_in_letter[..., None]
        return States(begun, missing, open_ends, ends_in_letter)

    def needed(self, states: States) -> torch.Tensor:
        """The number of tokens with which hypotheses can have all of their phrases, `(active, hypotheses)`.

        It is 0 for those that have them, and one token lowers it by at least 1: the next of the phrase that has begun,
        or else the first of a missing one, unless a letter that may not follow begins all of its alternatives. Phrases
        that overlap may take fewer.
        """
        missing, open_ends = states.missing[:, :, None], states.open_ends[:, :, None]
        return self._count_needed(states.begun, missing, open_ends, torch.zeros_like(self._tables.columns))[:, :, 0]

    def needed_after_own_tokens(self, states: States) -> torch.Tensor:
        """Compute [`needed`] after each hypothesis and each of `own_tokens`, `(active, hypotheses, own)`.

        Only its own token reaches a position. So time and memory grow with positions + own tokens x phrases, and not
        with own tokens x positions, as they would if each hypothesis followed each token.
        """
        tokens = self.own_tokens.clamp(min=0)
        ended_in_letter = states.ends_in_letter[..., None]
        touches = ended_in_letter & self._begins[tokens][:, None]
        is_empty = self._is_empty[tokens][:, None]
        ends_in_letter = self._ends[tokens][:, None] | (is_empty & ended_in_letter)

        may_follow = self._may_follow(states, _at_positions(touches, self._tables.columns))
        begun = may_follow & (self._tables.tokens != _NO_TOKEN)[:, None]
        occurs = self._occurrences(begun, self._tables.columns, tokens.shape[1])

        open_before = states.open_ends[:, :, None]
        missing = states.missing[:, :, None] + open_before * touches[..., None] - occurs
        open_ends = (occurs + open_before * is_empty[..., None]) * ends_in_letter[..., None]
        return self._count_needed(begun, missing, open_ends, self._tables.columns)

    def needed_after_other_tokens(self, states: States, tokens: torch.Tensor) -> torch.Tensor:
        """Compute [`needed`] after tokens that are in no phrase; both are of shape `(active, hypotheses, others)`."""
        touches = states.ends_in_letter[..., None] & self._begins[tokens]
        untouched = self._tokens_of_missing(states.missing)[..., None]
        touched = self._tokens_of_missing(states.missing + states.open_ends)[..., None]
        return touched.where(touches, untouched)

    def are_own(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of the tokens `(active, hypotheses, candidates)` are among `own_tokens`, in their shape."""
        return self._is_own.gather(1, tokens.flatten(1)).view(tokens.shape)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the given sentences of the batch, `(kept,)`."""
        self._tables = Tables(*(table[sentences] for table in self._tables))
        self._is_own = self._is_own[sentences]

    def _may_follow(self, states: States, touches: torch.Tensor) -> torch.Tensor:
        """Whether its token may come next at each position, `(active, hypotheses, positions)`.

        `touches` has one value for all positions, or one for each: whether two letters would meet.
        """
        is_first = (self._tables.kinds & _FIRST > 0)[:, None]
        return torch.where(is_first, ~touches, states.begun.roll(1, dims=2))

    def _occurrences(self, begun: torch.Tensor, columns: torch.Tensor, num_columns: int) -> torch.Tensor:
        """Count 1 where a phrase ends at any position of a column, `(active, hypotheses, columns, phrases)`."""
        num_phrases = self._tables.required.shape[1]
        num_cells = num_columns * num_phrases
        cells = (columns * num_phrases + self._tables.owners)[:, None].expand_as(begun)
        ends = begun & (self._tables.kinds & _LAST > 0)[:, None]
        # Positions where nothing ends mark a cell that is left out.
        marks = begun.new_zeros(*begun.shape[:2], num_cells + 1).scatter_(2, cells.where(ends, num_cells), True)
        return marks[..., :num_cells].unflatten(2, (num_columns, num_phrases)).long()

    def _count_needed(
        self, begun: torch.Tensor, missing: torch.Tensor, open_ends: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor:
        """Count the tokens that hypotheses need, `(active, hypotheses, columns)`.

        Args:
            begun (`torch.BoolTensor` of shape `(active, hypotheses, positions)`): as in [`States`].
            missing (`torch.LongTensor` of shape `(active, hypotheses, columns, phrases)`): as in [`States`].
            open_ends (`torch.LongTensor` of shape `(active, hypotheses, columns, phrases)`): as in [`States`].
            columns (`torch.LongTensor` of shape `(active, positions)`): to which each position belongs.
        """
        cells = columns * missing.shape[3] + self._tables.owners
        is_missing = _at_positions((missing > 0).flatten(2), cells)
        # The next letter of a phrase that has begun would undo an occurrence that another needs.
        is_open = ((open_ends > 0) & (missing + open_ends > 0)).any(dim=3)
        undoes = _at_positions(is_open, columns) & (self._tables.kinds & _LETTER_FOLLOWS > 0)[:, None]
        saved = self._tables.saved[:, None] * (begun & is_missing & ~undoes)
        whole = self._tokens_of_missing(missing.flatten(1, 2)).view(missing.shape[:3])
        most_saved = torch.zeros_like(whole).scatter_reduce(2, columns[:, None].expand_as(saved), saved, "amax")
        return whole - most_saved

    def _tokens_of_missing(self, missing: torch.Tensor) -> torch.Tensor:
        """The tokens that missing phrases take if none of them has begun; `missing` has one more, last axis."""
        return (missing.clamp(min=0) * self._tables.lengths[:, None]).sum(dim=2)


def _at_positions(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Take the value of each position's column: `(active, hypotheses, positions)` of `(.., columns)`."""
    return values.gather(2, columns[:, None].expand(-1, values.shape[1], -1))


def _tables(phrases: list[Phrase], begins: torch.Tensor, eos: torch.Tensor) -> Tables:
    """Tables of a sentence's phrases; `begins`: whether each token begins with a letter.

    Without a loop over tokens, which would hold the interpreter for a second where phrases are many and long.
    """
    required = Counter(tuple(sorted(phrase)) for phrase in phrases)
    alternatives: list[tuple[int, ...]] = []
    owners: list[int] = []
    lengths: list[int] = []
    for number, phrase in enumerate(required):
        # An alternative that begins with a letter cannot follow every token.
        anywhere = [tokens for tokens in phrase if not begins[tokens[0]]] or phrase
        lengths.append(min(map(len, anywhere)))
        alternatives += phrase
        owners += [number] * len(phrase)

    device = begins.device
    tokens = torch.tensor(list(chain.from_iterable(alternatives)), dtype=torch.long, device=device)
    lengths_of_alternatives = torch.tensor(list(map(len, alternatives)), dtype=torch.long, device=device)
    lengths_of_phrases = torch.tensor(lengths, dtype=torch.long, device=device)
    owners_of_alternatives = torch.tensor(owners, dtype=torch.long, device=device)
    starts = lengths_of_alternatives.cumsum(0) - lengths_of_alternatives

    owners_of_positions = owners_of_alternatives.repeat_interleave(lengths_of_alternatives)
    places = torch.arange(len(tokens), device=device) - starts.repeat_interleave(lengths_of_alternatives)
    # The tokens of the alternative that come after each position.
    left = lengths_of_alternatives.repeat_interleave(lengths_of_alternatives) - places - 1
    is_last = left == 0
    letter_follows = begins[tokens].roll(-1) & ~is_last
    kinds = _FIRST * (places == 0) + _LAST * is_last + _LETTER_FOLLOWS * letter_follows
    saved = (lengths_of_phrases[owners_of_positions] - left).clamp(min=0).masked_fill(is_last, 0)
    own_tokens, columns = torch.cat([tokens, eos.to(device)]).unique(return_inverse=True)
    return Tables(
        tokens=tokens,
        kinds=kinds,
        saved=saved,
        owners=owners_of_positions,
        columns=columns[: len(tokens)],
        own_tokens=own_tokens,
        lengths=lengths_of_phrases,
        required=torch.tensor(list(required.values()), dtype=torch.long, device=device),
    )


def _pad(tables: list[Tables]) -> Tables:
    """Join the tables of several sentences; a first axis `batch` is added."""
    joined = []
    # Each table is a tuple of columns, so `zip` gives the same column of all sentences.
    for columns, fill in zip(zip(*tables, strict=True), _PADDING, strict=True):
        joined.append(pad_sequence(list(columns), batch_first=True, padding_value=fill))
    return Tables(*joined)


def check_number_of_lists(phrases: Sequence[Sequence], prompts: torch.Tensor) -> None:
    """Raise ValueError unless there is a list of phrases for each of the prompts `(batch, length)`."""
    if len(phrases) != len(prompts):
        raise InputError(
            f"phrases has {len(phrases)} lists for {len(prompts)} sentences; give a list for each sentence, "
            "empty where it has no phrase."
        )


class ConstrainedBeamSearch(BeamSearch):
    """A beam search whose hypotheses contain all phrases of their sentences, those of a forced prefix included.

    In each step the candidates are the best of each bank, and every token of a phrase is considered after every
    hypothesis. The running hypotheses are the best of each bank, then the second best, and so on; where there are more
    banks than beams, those that need the fewest tokens. So there is always a hypothesis that can have all phrases in
    time. A sentence without phrases is searched as by [`BeamSearch`].

    Args:
        num_beams (`int`): as in [`BeamSearch`].
        phrases (`list[list[Phrase]]`): of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): see [`PhraseStates`].
        prompts (`torch.LongTensor` of shape `(batch, length)`): tokens before the first generated one.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
        **options: arguments of [`BeamSearch`].

    Raises:
        ValueError: if there are not as many lists of phrases as sentences, or a sentence's phrases may not fit into its
            limit.
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
        self._eos, self._phrases = eos, PhraseStates(phrases, letter_edges, eos)
        states = self._phrases.start()
        for tokens in prompts.split(1, dim=1):
            states = self._phrases.follow(states, tokens)
        self._check_limits(self._phrases.needed(states)[:, 0] + min(1, len(eos)))
        # The states of the running hypotheses, and the number of tokens that the candidates need.
        self._states = states.take(torch.zeros_like(self.limits)[:, None].expand(-1, num_beams))
        self._needed = self._phrases.needed(self._states)

    def _check_limits(self, needed: torch.Tensor) -> None:
        for sentence in (needed > self.limits).nonzero()[:1, 0].tolist():
            raise InputError(
                f"the phrases of sentence {sentence} of the batch take up to {int(needed[sentence])} tokens, </s> "
                f"included, but its limit is {int(self.limits[sentence])}; give more max_new_tokens or fewer phrases."
            )

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Extend as [`BeamSearch.extend`] does, also by the tokens of phrases; `do_sample` must be False."""
        active, num_beams = self._scores.shape
        log_probs = log_probs.view(active, num_beams, -1)
        # Every token of a phrase and every end is a candidate, so those among the best tokens are no second one.
        own = self._phrases.own_tokens[:, None].expand(-1, num_beams, -1)
        _, best = top_tokens(log_probs.flatten(0, 1), min(self.num_candidates, log_probs.shape[2]))
        best = best.view(active, num_beams, -1)
        are_candidates = torch.cat([~self._phrases.are_own(best), own != _NO_TOKEN], dim=2)
        by_beam = torch.cat([best, own.clamp(min=0)], dim=2)
        totals = self._scores[..., None] + log_probs.gather(2, by_beam)
        totals = totals.where(are_candidates, NO_HYPOTHESIS)
        needed_after_best = self._phrases.needed_after_other_tokens(self._states, best)
        needed_after_own = self._phrases.needed_after_own_tokens(self._states)
        self._needed = torch.cat([needed_after_best, needed_after_own], dim=2).flatten(1)

        tokens = by_beam.flatten(1)
        beams = torch.arange(num_beams, device=best.device)
        beams = beams.repeat_interleave(by_beam.shape[2]).expand_as(tokens)
        is_early_end = torch.isin(tokens, self._eos) & (self._needed > 0)
        scores = _only(totals.flatten(1), ~is_early_end)
        scores = _only(scores, _ranks(scores, self._needed) < self.num_candidates)
        self._candidates = scores, beams, tokens
        self.length += 1
        return beams + self._first_rows[:active], tokens

    def prune(self, is_finished: torch.Tensor, is_truncated: torch.Tensor) -> None:
        """As [`BeamSearch.prune`], without candidates that cannot continue and lack a phrase."""
        scores, beams, tokens = self._candidates
        lacks_phrases = (is_finished | is_truncated) & (self._needed > 0)
        self._candidates = _only(scores, ~lacks_phrases), beams, tokens
        super().prune(is_finished, is_truncated)

    def _best_running(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_banks = self._needed.max() + 1
        order = _ranks(scores, self._needed) * num_banks + self._needed
        order = order.where(exists(scores), torch.iinfo(order.dtype).max)
        chosen = order.topk(self.num_beams, largest=False).indices
        scores, by_score = scores.gather(1, chosen).sort(dim=1, descending=True)
        chosen = chosen.gather(1, by_score)
        _, beams, tokens = self._candidates
        self._states = self._phrases.follow(self._states.take(beams.gather(1, chosen)), tokens.gather(1, chosen))
        return scores, chosen

    def drop_finished(self) -> torch.Tensor:
        """As [`BeamSearch.drop_finished`]."""
        kept = super().drop_finished()
        self._phrases.select(kept)
        self._states = self._states.select(kept)
        return kept


def _only(scores: torch.Tensor, are_kept: torch.Tensor) -> torch.Tensor:
    """The scores of the kept candidates that exist; others become no hypotheses, and so do NaN and minus infinity."""
    return scores.where(are_kept & exists(scores), NO_HYPOTHESIS)


def _ranks(scores: torch.Tensor, banks: torch.Tensor) -> torch.Tensor:
    """The rank of each candidate among those of its bank, 0 for the best score; all are `(active, candidates)`."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, banks.gather(1, order).argsort(dim=1, stable=True))
    sorted_banks = banks.gather(1, order)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    is_first = torch.ones_like(order, dtype=torch.bool)
    is_first[:, 1:] = sorted_banks[:, 1:] != sorted_banks[:, :-1]
    firsts = places.where(is_first, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter(1, order, places - firsts)
