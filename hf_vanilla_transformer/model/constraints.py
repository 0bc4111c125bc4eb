"""Lexically constrained beam search: every hypothesis contains the phrases that its sentence must have.

Post and Vilar (2018) share the beam between banks, one for each number of tokens that the phrases still need, so that
hypotheses with more of the phrases are not compared with those that have fewer. As in Hu et al. (2019), a batch is
searched at once. What a hypothesis contains is the state of an automaton (Aho and Corasick 1975), held in tables.

Shapes have the named axes of `beam_search`, and: nodes (of a sentence's automaton), letters (the tokens that occur in
its phrases), phrases.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from .beam_search import NO_HYPOTHESIS, BeamSearch, exists, top_tokens


_SHAPE = "give a list of phrases for each sentence; a phrase is a list of token ids, or a list of such alternatives"
_NO_TOKEN = -1
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
        ValueError: if a token id is out of range or ends a sentence, a phrase is empty or also forbidden, or the
            settings are not those of a beam search.
    """
    given = getattr(settings, "forced_phrases", None)
    if given is None:
        return
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"forced_phrases is of type {type(given).__name__}; {_SHAPE}.")
    eos = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    unusable = {settings.pad_token_id, *eos}
    forbidden = [*(settings.bad_words_ids or []), *([token] for token in settings.suppress_tokens or [])]
    phrases = [
        [_allowed(_as_phrase(phrase, vocab_size, unusable), forbidden) for phrase in _as_sequence(of_sentence)]
        for of_sentence in given
    ]
    settings.forced_phrases = phrases if any(phrases) else None
    if settings.forced_phrases is not None and (settings.do_sample or (settings.num_beams or 1) < 2):
        fault = "do_sample is True" if settings.do_sample else f"num_beams is {settings.num_beams or 1}"
        raise ValueError(
            f"forced_phrases needs beam search, but {fault}; give num_beams of 2 or more, and no sampling."
        )


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
            raise ValueError(
                f"forced_phrases contains token {token}; give ids from 0 to {vocab_size - 1} without </s> and padding."
            )
    if not all(alternatives):
        raise ValueError(f"forced_phrases contains an empty phrase, {given!r}; give at least one token.")
    return alternatives


def _allowed(phrase: Phrase, forbidden: Sequence[Sequence[int]]) -> Phrase:
    """A phrase without the alternatives that contain a forbidden sequence of tokens."""
    allowed = tuple(each for each in phrase if not any(_contains(each, tuple(other)) for other in forbidden))
    if not allowed:
        raise ValueError(
            f"forced_phrases contains {[list(each) for each in phrase]}, which bad_words_ids or suppress_tokens "
            "forbids; remove it from one of them."
        )
    return allowed


def _contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[start : start + len(part)] == part for start in range(len(tokens)))


def _is_end(part: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    return part == tokens[max(0, len(tokens) - len(part)) :]


class PhraseStates:
    """What the hypotheses of a batch contain of their sentences' phrases.

    The state of a hypothesis is a node, the longest beginning of an alternative in which its tokens end, and how many
    occurrences of each phrase are missing. A phrase occurs where one of its alternatives ends. Occurrences may overlap,
    so a longer phrase counts for those inside it; a phrase that is given n times must occur at n positions.

    Args:
        phrases (`list[list[Phrase]]`): of each sentence.
        device (`torch.device`): where the tables are.
    """

    def __init__(self, phrases: list[list[Phrase]], device: torch.device):
        tables = zip(*map(_tables, phrases), strict=True)
        fills = (_NO_TOKEN, 0, 0, 0, 0, 0)
        (self.letters, self._next, self._ends, self._saved, self._lengths, self.missing) = (
            _stack(table, fill).to(device) for table, fill in zip(tables, fills, strict=True)
        )

    def follow(self, nodes: torch.Tensor, missing: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The states of candidates after their last tokens.

        Args:
            nodes, tokens (`torch.LongTensor` of shape `(active, candidates)`): before the tokens, and the tokens.
            missing (`torch.LongTensor` of shape `(active, candidates, phrases)`): before the tokens.

        Returns:
            Nodes, and missing occurrences.
        """
        matches = tokens[..., None] == self.letters[:, None]
        # Letter 0 stands for all tokens that occur in no phrase.
        letters = (matches * torch.arange(1, matches.shape[2] + 1, device=tokens.device)).sum(dim=2)
        sentences = self._sentences()
        nodes = self._next[sentences, nodes, letters]
        return nodes, (missing - self._ends[sentences, nodes]).clamp(min=0)

    def needed(self, nodes: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
        """The number of tokens with which hypotheses can have all of their phrases, `(active, candidates)`.

        It is 0 for those that have them, and one token lowers it by at least 1: the next of the phrase that has begun,
        or else the first of a missing one. Phrases that overlap may take fewer.
        """
        saved = self._saved[self._sentences(), nodes] * (missing > 0)
        return (missing * self._lengths[:, None]).sum(dim=2) - saved.amax(dim=2)

    def select(self, sentences: torch.Tensor) -> None:
        """Keep the given sentences of the batch, `(kept,)`."""
        for name in ("letters", "_next", "_ends", "_saved", "_lengths", "missing"):
            setattr(self, name, getattr(self, name)[sentences])

    def _sentences(self) -> torch.Tensor:
        return torch.arange(len(self.letters), device=self.letters.device)[:, None]


def _tables(phrases: list[Phrase]) -> tuple[torch.Tensor, ...]:
    """The automaton of a sentence.

    Returns:
        Letters, `(letters,)`; the next node, `(nodes, 1 + letters)`; whether a phrase occurs at a node, `(nodes,
        phrases)`; how many tokens less than a whole phrase are needed there, `(nodes, phrases)`; and the shortest
        length and the required number of each phrase, both `(phrases,)`.
    """
    required = Counter(tuple(sorted(phrase)) for phrase in phrases)
    alternatives = [each for phrase in required for each in phrase]
    nodes = sorted({each[:length] for each in [(), *alternatives] for length in range(len(each) + 1)}, key=len)
    index = {node: number for number, node in enumerate(nodes)}
    letters = sorted({token for each in alternatives for token in each})

    def longest_end(tokens: tuple[int, ...]) -> int:
        return next(index[tokens[start:]] for start in range(len(tokens) + 1) if tokens[start:] in index)

    shortest = {phrase: min(map(len, phrase)) for phrase in required}

    def saved(node: tuple[int, ...], phrase: Phrase) -> int:
        begun = [(each, size) for each in phrase for size in range(1, len(each)) if _is_end(each[:size], node)]
        return max((shortest[phrase] - len(each) + size for each, size in begun), default=0)

    return (
        _integers(letters),
        _integers([[0, *(longest_end((*node, letter)) for letter in letters)] for node in nodes]),
        _integers([[any(_is_end(each, node) for each in phrase) for phrase in required] for node in nodes]),
        _integers([[max(0, saved(node, phrase)) for phrase in required] for node in nodes]),
        _integers(list(shortest.values())),
        _integers(list(required.values())),
    )


def _integers(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long)


def _stack(tables: Sequence[torch.Tensor], fill: int) -> torch.Tensor:
    """Tables of different sizes as one tensor, `(batch, ...)`, filled up at their ends."""
    sizes = [max(table.shape[axis] for table in tables) for axis in range(tables[0].ndim)]
    stacked = torch.full((len(tables), *sizes), fill, dtype=torch.long)
    for row, table in zip(stacked, tables, strict=True):
        row[tuple(slice(size) for size in table.shape)] = table
    return stacked


class ConstrainedBeamSearch(BeamSearch):
    """A beam search whose hypotheses contain all phrases of their sentences, those of a forced prefix included.

    In each step the candidates are the best of each bank, and every token of a phrase is considered after every
    hypothesis. The running hypotheses are the best of each bank, then the second best, and so on; where there are more
    banks than beams, those that need the fewest tokens. So there is always a hypothesis that can have all phrases in
    time. A sentence without phrases is searched as by [`BeamSearch`].

    Args:
        num_beams (`int`): as in [`BeamSearch`].
        phrases (`list[list[Phrase]]`): of each sentence.
        prompts (`torch.LongTensor` of shape `(batch, length)`): tokens before the first generated one.
        eos (`torch.LongTensor` of shape `(num_eos,)`): tokens that end a hypothesis.
        **options: arguments of [`BeamSearch`].

    Raises:
        ValueError: if there are not as many lists of phrases as sentences, or a sentence's phrases may not fit into its
            limit.
    """

    def __init__(
        self, num_beams: int, *, phrases: list[list[Phrase]], prompts: torch.Tensor, eos: torch.Tensor, **options: Any
    ):
        super().__init__(num_beams, num_eos=len(eos), **options)
        if len(phrases) != len(prompts):
            raise ValueError(
                f"forced_phrases has {len(phrases)} lists for {len(prompts)} sentences; give a list for each sentence, "
                "empty where it has no phrase."
            )
        self._eos, self._phrases = eos, PhraseStates(phrases, prompts.device)
        nodes, missing = prompts.new_zeros(len(prompts), 1), self._phrases.missing[:, None]
        for tokens in prompts.split(1, dim=1):
            nodes, missing = self._phrases.follow(nodes, missing, tokens)
        self._check_limits(self._phrases.needed(nodes, missing)[:, 0] + min(1, len(eos)))
        # The states of the running hypotheses, (active, beams) and (active, beams, phrases).
        self._nodes, self._missing = nodes.expand(-1, num_beams), missing.expand(-1, num_beams, -1)
        # Those of the candidates, and the number of tokens that they need.
        self._next_nodes, self._next_missing, self._needed = nodes, missing, nodes

    def _check_limits(self, needed: torch.Tensor) -> None:
        for sentence in (needed > self.limits).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"the phrases of sentence {sentence} of the batch take up to {int(needed[sentence])} tokens, </s> "
                f"included, but its limit is {int(self.limits[sentence])}; give more max_new_tokens or fewer phrases."
            )

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Extend as [`BeamSearch.extend`] does, also by the tokens of phrases; `do_sample` must be False."""
        active, num_beams = self._scores.shape
        _, best = top_tokens(log_probs, min(self.num_candidates, log_probs.shape[1]))
        best = best.view(active, num_beams, -1)
        letters = self._phrases.letters[:, None].expand(-1, num_beams, -1)
        is_new = (letters != _NO_TOKEN) & (letters[..., None] != best[:, :, None]).all(dim=3)
        by_beam = torch.cat([best, letters.clamp(min=0)], dim=2)
        totals = self._scores[..., None] + log_probs.view(active, num_beams, -1).gather(2, by_beam)
        totals[..., best.shape[2] :].masked_fill_(~is_new, NO_HYPOTHESIS)
        tokens, beams = by_beam.flatten(1), torch.arange(num_beams, device=best.device)
        beams = beams.repeat_interleave(by_beam.shape[2]).expand_as(tokens)
        self._next_nodes, self._next_missing = self._phrases.follow(*self._states_of(beams), tokens)
        self._needed = self._phrases.needed(self._next_nodes, self._next_missing)
        is_early_end = torch.isin(tokens, self._eos) & (self._needed > 0)
        scores = _only(totals.flatten(1), ~is_early_end)
        scores = _only(scores, _ranks(scores, self._needed) < self.num_candidates)
        self._candidates = scores, beams, tokens
        self.length += 1
        return beams + self._first_rows[:active], tokens

    def _states_of(self, beams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._nodes.gather(1, beams), _gather(self._missing, beams)

    def prune(self, is_finished: torch.Tensor, is_truncated: torch.Tensor) -> None:
        """As [`BeamSearch.prune`], without candidates that cannot continue and lack a phrase."""
        scores, *rest = self._candidates
        lacks_phrases = (is_finished | is_truncated) & (self._needed > 0)
        self._candidates = _only(scores, ~lacks_phrases), *rest
        super().prune(is_finished, is_truncated)

    def _best_running(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_banks = self._needed.max() + 1
        order = _ranks(scores, self._needed) * num_banks + self._needed
        order = order.where(exists(scores), torch.iinfo(order.dtype).max)
        chosen = order.topk(self.num_beams, largest=False).indices
        scores, by_score = scores.gather(1, chosen).sort(dim=1, descending=True)
        chosen = chosen.gather(1, by_score)
        self._nodes, self._missing = self._next_nodes.gather(1, chosen), _gather(self._next_missing, chosen)
        return scores, chosen

    def drop_finished(self) -> torch.Tensor:
        """As [`BeamSearch.drop_finished`]."""
        kept = super().drop_finished()
        self._phrases.select(kept)
        self._nodes, self._missing = self._nodes[kept], self._missing[kept]
        return kept


def _gather(missing: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The rows `chosen`, `(active, candidates)`, of `(active, beams, phrases)`."""
    return missing.gather(1, chosen[..., None].expand(-1, -1, missing.shape[2]))


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
