"""Lexically constrained beam search: every hypothesis contains the phrases that its sentence must have.

Post and Vilar (2018) share the beam between banks, one for each number of tokens that the phrases still need, so that
hypotheses with more of the phrases are not compared with those that have fewer. As in Hu et al. (2019), a batch is
searched at once.

Shapes have the named axes of `beam_search`, and: phrases (of a sentence), positions (the tokens of all alternatives of
a sentence's phrases, one after the other), hypotheses (running ones or candidates).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from .beam_search import NO_HYPOTHESIS, BeamSearch, exists, top_tokens
from .input_error import InputError


_SHAPE = "give a list of phrases for each sentence; a phrase is a list of token ids, or a list of such alternatives"
_NO_TOKEN = _NO_PHRASE = -1
# Kinds of positions, as bits: first and last of an alternative, and before a token that begins with a letter.
_FIRST, _LAST, _LETTER_FOLLOWS = 1, 2, 4
# The alternatives of a phrase, each a tuple of token ids.
Phrase = tuple[tuple[int, ...], ...]


def prepare_phrases(settings: Any, vocab_size: int) -> None:
    """Check `settings.forced_phrases`, and replace it by `Phrase`s, or by None if no sentence has one.

    Alternatives that `bad_words_ids` or `suppress_tokens` forbid are removed.

    Args:
        settings (`GenerationConfig`): of this call of `generate()`.
        vocab_size (`int`): number of target tokens.

    Raises:
        TypeError: if `forced_phrases` has another shape.
        ValueError: if a token id is out of range or ends a sentence, a phrase is empty or also forbidden, the settings
            are not those of a beam search, or `letter_edges` has another shape.
    """
    given = getattr(settings, "forced_phrases", None)
    if given is None:
        return
    eos = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    unusable = {settings.pad_token_id, *eos}
    forbidden = [*(settings.bad_words_ids or []), *([token] for token in settings.suppress_tokens or [])]
    phrases = [
        [_allowed(_as_phrase(phrase, vocab_size, unusable), forbidden) for phrase in _as_sequence(of_sentence)]
        for of_sentence in _as_sequence(given)
    ]
    settings.forced_phrases = phrases if any(phrases) else None
    settings.letter_edges = _letter_edges(getattr(settings, "letter_edges", None), vocab_size)
    if settings.forced_phrases is not None:
        check_is_beam_search(settings)


def check_is_beam_search(settings: Any) -> None:
    """Raise ValueError if settings, a `GenerationConfig`, are not those of a beam search."""
    if settings.do_sample or (settings.num_beams or 1) < 2:
        fault = "do_sample is True" if settings.do_sample else f"num_beams is {settings.num_beams or 1}"
        raise InputError(
            f"forced_phrases and glossaries need beam search, but {fault}; give num_beams of 2 or more, no sampling."
        )


def _letter_edges(given: Any, vocab_size: int) -> torch.Tensor:
    edges = torch.zeros(3, vocab_size, dtype=torch.bool) if given is None else torch.as_tensor(given)
    if edges.shape != (3, vocab_size) or edges.dtype != torch.bool:
        raise InputError(
            f"letter_edges is of shape {tuple(edges.shape)} and {edges.dtype}; give a bool tensor of shape "
            f"(3, {vocab_size})."
        )
    return edges


def _as_sequence(value: Any) -> Sequence:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"forced_phrases contains {value!r}; {_SHAPE}.")
    return value


def _as_phrase(given: Any, vocab_size: int, unusable: set[int | None]) -> Phrase:
    is_one = all(isinstance(each, int) for each in _as_sequence(given))
    alternatives = tuple(dict.fromkeys(tuple(_as_sequence(each)) for each in ([given] if is_one else given)))
    for token in (token for alternative in alternatives for token in alternative):
        if not isinstance(token, int) or isinstance(token, bool):
            raise TypeError(f"forced_phrases contains {token!r} in the place of a token id; {_SHAPE}.")
        if not 0 <= token < vocab_size or token in unusable:
            raise InputError(
                f"forced_phrases contains token {token}; give ids from 0 to {vocab_size - 1} without </s> and padding."
            )
    if not all(alternatives):
        raise InputError(f"forced_phrases contains an empty phrase, {given!r}; give at least one token.")
    return alternatives


def _allowed(phrase: Phrase, forbidden: Sequence[Sequence[int]]) -> Phrase:
    """A phrase without the alternatives that contain a forbidden sequence of tokens."""
    allowed = tuple(each for each in phrase if not any(_contains(each, tuple(other)) for other in forbidden))
    if not allowed:
        raise InputError(
            f"forced_phrases contains {[list(each) for each in phrase]}, which bad_words_ids or suppress_tokens "
            "forbids; remove it from one of them."
        )
    return allowed


def _contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[start : start + len(part)] == part for start in range(len(tokens)))


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
    """

    def __init__(self, phrases: list[list[Phrase]], letter_edges: torch.Tensor):
        self._begins, self._ends, self._is_empty = letter_edges
        begins = self._begins.tolist()
        tables = zip(*(_tables(each, begins) for each in phrases), strict=True)
        self._tokens, self._kinds, self._saved, owners, self._lengths, self._required = (
            pad_sequence(list(table), batch_first=True, padding_value=fill).to(letter_edges.device)
            for table, fill in zip(tables, (_NO_TOKEN, 0, 0, _NO_PHRASE, 0, 0), strict=True)
        )
        # The phrase of each position, one-hot, (batch, positions, phrases).
        self._owners = (owners[..., None] == torch.arange(self._required.shape[1], device=owners.device)).float()

    def start(self) -> States:
        """The states of empty hypotheses, one for each sentence."""
        nothing = torch.zeros_like(self._required)
        states = (self._tokens < _NO_TOKEN, self._required, nothing, nothing.sum(dim=1) > 0)
        return States(*(each[:, None] for each in states))

    def follow(self, states: States, tokens: torch.Tensor) -> States:
        """The states after one more token of each hypothesis, `(active, hypotheses)`."""
        touches = (states.ends_in_letter & self._begins[tokens])[..., None]
        is_first, is_last = (self._kinds & _FIRST > 0)[:, None], (self._kinds & _LAST > 0)[:, None]
        may_follow = torch.where(is_first, ~touches, states.begun.roll(1, dims=2))
        begun = may_follow & (tokens[..., None] == self._tokens[:, None])
        occurs = (torch.bmm((begun & is_last).float(), self._owners) > 0).long()
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
        missing = states.missing.clamp(min=0)
        is_missing = torch.bmm((missing > 0).float(), self._owners.transpose(1, 2)) > 0
        # The next letter of a phrase that has begun would undo an occurrence that another needs.
        is_open = ((states.open_ends > 0) & (states.missing + states.open_ends > 0)).any(dim=2, keepdim=True)
        undoes = is_open & (self._kinds & _LETTER_FOLLOWS > 0)[:, None]
        saved = self._saved[:, None] * (states.begun & is_missing & ~undoes)
        return (missing * self._lengths[:, None]).sum(dim=2) - saved.amax(dim=2)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the given sentences of the batch, `(kept,)`."""
        for name in ("_tokens", "_kinds", "_saved", "_owners", "_lengths", "_required"):
            setattr(self, name, getattr(self, name)[sentences])


def _tables(phrases: list[Phrase], begins: list[bool]) -> tuple[torch.Tensor, ...]:
    """The alternatives of a sentence's phrases, one after the other; `begins`: whether each token begins with a letter.

    Returns:
        Of each position: the token; its kinds, bits of `_FIRST`, `_LAST` and `_LETTER_FOLLOWS`; how many tokens less
        than a whole phrase are needed after it; and the number of its phrase, all `(positions,)`. Of each phrase, the
        tokens that it takes anywhere, and how many times it is required, both `(phrases,)`.
    """
    required = Counter(tuple(sorted(phrase)) for phrase in phrases)
    lengths, rows = [], []
    for number, phrase in enumerate(required):
        # An alternative that begins with a letter cannot follow every token.
        anywhere = [each for each in phrase if not begins[each[0]]] or phrase
        lengths.append(min(map(len, anywhere)))
        for tokens in phrase:
            for place, token in enumerate(tokens, start=1):
                is_last = place == len(tokens)
                kinds = _FIRST * (place == 1) | _LAST * is_last
                kinds |= _LETTER_FOLLOWS * (not is_last and begins[tokens[place]])
                saved = 0 if is_last else max(0, lengths[-1] - len(tokens) + place)
                rows.append((token, kinds, saved, number))
    columns = torch.tensor(rows, dtype=torch.long).view(len(rows), 4).unbind(1)
    return (*columns, torch.tensor(lengths, dtype=torch.long), torch.tensor([*required.values()], dtype=torch.long))


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
        if len(phrases) != len(prompts):
            raise InputError(
                f"forced_phrases has {len(phrases)} lists for {len(prompts)} sentences; give a list for each sentence, "
                "empty where it has no phrase."
            )
        self._eos, self._phrases = eos, PhraseStates(phrases, letter_edges)
        # What is considered after every hypothesis, (active, forced): the tokens of the phrases, and the end.
        forced = [
            sorted({*eos.tolist(), *(token for phrase in each for tokens in phrase for token in tokens)})
            for each in phrases
        ]
        rows = [torch.tensor(each, dtype=torch.long) for each in forced]
        self._forced = pad_sequence(rows, batch_first=True, padding_value=_NO_TOKEN).to(prompts.device)
        states = self._phrases.start()
        for tokens in prompts.split(1, dim=1):
            states = self._phrases.follow(states, tokens)
        self._check_limits(self._phrases.needed(states)[:, 0] + min(1, len(eos)))
        # The states of the running hypotheses and of the candidates, and the number of tokens that these need.
        self._states = self._next_states = states.take(torch.zeros_like(self.limits)[:, None].expand(-1, num_beams))
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
        _, best = top_tokens(log_probs, min(self.num_candidates, log_probs.shape[1]))
        best = best.view(active, num_beams, -1)
        forced = self._forced[:, None].expand(-1, num_beams, -1)
        is_new = (forced != _NO_TOKEN) & (forced[..., None] != best[:, :, None]).all(dim=3)
        by_beam = torch.cat([best, forced.clamp(min=0)], dim=2)
        totals = self._scores[..., None] + log_probs.view(active, num_beams, -1).gather(2, by_beam)
        totals[..., best.shape[2] :].masked_fill_(~is_new, NO_HYPOTHESIS)
        tokens, beams = by_beam.flatten(1), torch.arange(num_beams, device=best.device)
        beams = beams.repeat_interleave(by_beam.shape[2]).expand_as(tokens)
        self._next_states = self._phrases.follow(self._states.take(beams), tokens)
        self._needed = self._phrases.needed(self._next_states)
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
        self._states = self._next_states.take(chosen)
        return scores, chosen

    def drop_finished(self) -> torch.Tensor:
        """As [`BeamSearch.drop_finished`]."""
        kept = super().drop_finished()
        self._phrases.select(kept)
        self._states, self._forced = self._states.select(kept), self._forced[kept]
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
