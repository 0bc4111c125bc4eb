"""The beam search of section 6.1, as in the authors' code: what goes on and what has ended, side by side.

Nothing here knows the model: log-probabilities in, hypotheses out. Shapes have named axes: batch (sentences), beams,
candidates, vocabulary, generated (length so far, in tokens). Of the batch those sentences are live that have not left.
"""

from collections.abc import Callable

import torch


# Far below the log-probability of any hypothesis, and still a number: minus infinity has no differences.
_NO_HYPOTHESIS = -1e9
_NO_ROW = -1
# Words in a group; and the number of scores from which finding the best by groups takes less time on CPUs.
_GROUP, _FEWEST_FOR_GROUPS = 64, 2**17


def gnmt_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / (5 + 1))^alpha of Wu et al. 2016, which section 6.1 uses.

    |Y| counts the generated tokens, `</s>` included.
    """
    return ((5 + length) / 6) ** alpha


def hf_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """transformers' own: |Y|^alpha."""
    return length**alpha


LENGTH_PENALTIES: dict[str, Callable] = {"gnmt": gnmt_length_penalty, "hf": hf_length_penalty}


def exists(scores: torch.Tensor) -> torch.Tensor:
    """Whether scores are those of hypotheses, or stand where there is none; in the shape of the scores."""
    return scores > _NO_HYPOTHESIS / 2


def top_tokens(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best words behind each hypothesis, best first: their scores and ids, both `(rows, count)`.

    Of `(rows, vocabulary)` scores. A single one is the first of equal ones.
    """
    rows, words = scores.shape
    if scores.device.type != "cpu" or scores.numel() < _FEWEST_FOR_GROUPS or words < _GROUP * count:
        return _top(scores, count)
    # torch's own goes through a row number by number. The best are in the groups whose best are best, or in no group.
    in_groups = words // _GROUP * _GROUP
    _, groups = _top(scores[:, :in_groups].unflatten(1, (-1, _GROUP)).amax(dim=2), count)
    ids = (groups[..., None] * _GROUP + torch.arange(_GROUP, device="cpu")).flatten(1)
    ids = torch.cat([ids, torch.arange(in_groups, words, device="cpu").expand(rows, -1)], dim=1)
    best, chosen = _top(scores.gather(1, ids), count)
    return best, ids.gather(1, chosen)


def _top(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    # Only of the maximum torch says which it takes of equal ones.
    return scores.max(dim=1, keepdim=True) if count == 1 else scores.topk(count)


def _may_be_any(are: torch.Tensor) -> bool:
    """Whether one is True, or could be: a GPU would have to be waited for to know."""
    return are.device.type != "cpu" or bool(are.any())


class _Best:
    """The best hypotheses of each sentence among those that were cut, or have ended; best first.

    Each is known by its score, `(batch, beams)`, and its end, `(batch, beams, 3)`: its length, which of the beams it
    continues, and its last token.
    """

    def __init__(self, sentences: int, num_beams: int, device: torch.device):
        self.scores = torch.full((sentences, num_beams), _NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self.ends = torch.zeros((sentences, num_beams, 3), dtype=torch.long, device=device)

    def add(self, sentences: torch.Tensor, scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Take `(live, candidates)` scores and their ends, of the sentences given, `(live,)`, where they are better."""
        best, chosen = torch.cat([self.scores[sentences], scores], dim=1).topk(self.scores.shape[1])
        ends = torch.cat([self.ends[sentences], ends], dim=1)
        self.scores[sentences] = best
        self.ends[sentences] = ends.gather(1, chosen[..., None].expand(-1, -1, 3))


class BeamSearch:
    """The hypotheses of a batch of sentences.

    A step is [`extend`], which makes candidates of the running hypotheses, and [`prune`], which is told those that have
    ended. The best that have ended, by log P / lp(Y), are kept beside the best that go on, by log P. A sentence is done
    when none that goes on can win any more, or none may go on.

    Of each step it remembers which beam every running hypothesis continued, and by which token; the tokens before are
    only looked up at the end, in [`best`].

    With one beam it is greedy search: the best candidate is the only one.

    Args:
        num_beams (`int`): hypotheses that go on, and as many that have ended, of each sentence.
        num_return_sequences (`int`): how many of the best are asked for.
        num_ends (`int`): number of tokens that end a hypothesis.
        length_penalty (`Callable`): lp, of a number of tokens or of a tensor of them.
        early_stopping (`bool` or `"never"`): when a sentence is done. `"never"`: no running hypothesis could enter the
            best `num_return_sequences`, were it to end at its most favourable length. `False`: nor the best `num_beams`
            if it ended now. `True`: `num_beams` have ended.
        limits (`torch.LongTensor` of shape `(batch,)`): most generated tokens of each sentence.
        fill (`int`): token behind the end of a hypothesis.
    """

    def __init__(
        self,
        num_beams: int,
        *,
        num_return_sequences: int,
        num_ends: int,
        length_penalty: Callable,
        early_stopping: bool | str,
        limits: torch.Tensor,
        fill: int,
    ):
        sentences, device = len(limits), limits.device
        self.num_beams, self.num_return_sequences = num_beams, num_return_sequences
        self.num_candidates = num_beams * max(2, 1 + num_ends) if num_beams > 1 else 1
        self.length_penalty, self.favors_length = length_penalty, length_penalty(2) > length_penalty(1)
        self.early_stopping, self.limits = early_stopping, limits
        self.length = 0
        self._fill, self._sentences = fill, sentences
        self._live = torch.arange(sentences, device=device)
        # log P of the running hypotheses, (live, beams). All begin alike; all but one are left out of the first step.
        self._scores = torch.full((sentences, num_beams), _NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self._scores[:, 0] = 0
        self._is_done = torch.zeros((sentences, 1), dtype=torch.bool, device=device)
        self._ended, self._cut = (_Best(sentences, num_beams, device) for _ in range(2))
        self._nothing_ended = True
        # log P, the beams that they continue, and last tokens, each (live, candidates).
        self._candidates = (self._scores,) * 3
        # Of each step the beams that were continued, and by which tokens, each (batch, beams).
        self._history: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._first_rows = self._live[:, None] * num_beams
        # Of the running hypotheses: the rows of the model's last batch that they continue, (live * beams,), and their
        # last tokens, (live * beams, 1).
        self.rows = self.tokens = self._live

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Make candidates of the running hypotheses with every token behind them, and keep the best of each sentence.

        Args:
            log_probs (`torch.FloatTensor` of shape `(live * beams, vocabulary)`): of the token that comes next.
            do_sample (`bool`): draw candidates without replacement, by their probabilities, instead of the best.

        Returns:
            The rows that the candidates continue, and their last tokens, both `(live, candidates)`.
        """
        vocabulary = log_probs.shape[-1]
        if do_sample:
            totals = (self._scores[..., None] + log_probs.view(*self._scores.shape, vocabulary)).flatten(1)
            chosen = torch.multinomial(totals.softmax(dim=-1), min(self.num_candidates, totals.shape[1]))
            totals, beams, tokens = totals.gather(1, chosen), chosen // vocabulary, chosen % vocabulary
        else:
            # The best of a sentence are among the best of each of its hypotheses.
            of_each, tokens = top_tokens(log_probs, min(self.num_candidates, vocabulary))
            totals = (self._scores[..., None] + of_each.view(*self._scores.shape, -1)).flatten(1)
            totals, chosen = totals.topk(min(self.num_candidates, totals.shape[1]))
            beams, tokens = chosen // of_each.shape[1], tokens.view(len(totals), -1).gather(1, chosen)
        self._candidates = totals, beams, tokens
        self.length += 1
        return beams + self._first_rows[: len(beams)], tokens

    def prune(self, has_ended: torch.Tensor, is_cut: torch.Tensor) -> None:
        """Share the candidates out among those that have ended and those that go on.

        Args:
            has_ended (`torch.BoolTensor` of shape `(live, candidates)`): by a token such as `</s>`.
            is_cut (`torch.BoolTensor` of shape `(live, candidates)`): whether no token may follow. Those that have not
                ended stand behind all that have.
        """
        scores, beams, tokens = self._candidates
        if _may_be_any(has_ended):
            self._keep(self._ended, has_ended)
            self._nothing_ended = False
        is_cut = is_cut & ~has_ended
        if _may_be_any(is_cut):
            self._keep(self._cut, is_cut)
        may_go_on = exists(scores) & ~(has_ended | is_cut)
        self._is_done = self._is_done | ~may_go_on.any(dim=1, keepdim=True)
        # Those of a sentence that is done go on as long as it is in the batch, but count no more.
        self._scores, chosen = scores.masked_fill(has_ended | is_cut & ~self._is_done, _NO_HYPOTHESIS).topk(
            self.num_beams
        )
        if not self._nothing_ended:
            self._is_done = self._is_done | self._is_decided(self._scores[:, :1])
        beams, tokens = beams.gather(1, chosen), tokens.gather(1, chosen)
        self.rows, self.tokens = (beams + self._first_rows[: len(beams)]).flatten(), tokens.view(-1, 1)
        self._history.append((self._of_batch(beams), self._of_batch(tokens)))

    def _keep(self, best: _Best, are_new: torch.Tensor) -> None:
        """Put those new candidates that count among the best, by log P / lp(Y)."""
        scores, beams, tokens = self._candidates
        counts = are_new & exists(scores) & ~self._is_done
        scores = (scores / self.length_penalty(self.length)).masked_fill(~counts, _NO_HYPOTHESIS)
        best.add(self._live, scores, torch.stack([torch.full_like(beams, self.length), beams, tokens], dim=-1))

    def _of_batch(self, of_live: torch.Tensor) -> torch.Tensor:
        """`(live, beams)` to `(batch, beams)`."""
        if len(of_live) == self._sentences:
            return of_live
        return of_live.new_zeros(self._sentences, self.num_beams).index_copy_(0, self._live, of_live)

    def _is_decided(self, best_running: torch.Tensor) -> torch.Tensor:
        """Whether no running hypothesis can win any more, `(live, 1)`, of the best log P of each sentence's."""
        needed = self.num_return_sequences if self.early_stopping == "never" else self.num_beams
        worst = self._ended.scores[self._live, needed - 1, None]
        if self.early_stopping is True:
            return exists(worst)
        length: int | torch.Tensor = self.length
        if self.early_stopping == "never" and self.favors_length:
            length = self.limits[:, None]
        return exists(worst) & (best_running / self.length_penalty(length) <= worst)

    def drop_finished(self) -> torch.Tensor:
        """Have the sentences that are done leave the batch; returns which of the live ones stay, `(kept,)`."""
        kept = (~self._is_done[:, 0]).nonzero()[:, 0]
        self._live, self.limits = self._live[kept], self.limits[kept]
        self._scores, self._is_done = self._scores[kept], self._is_done[kept]
        return kept

    @property
    def are_full(self) -> torch.Tensor:
        """Whether candidates are as long as their sentence's limit, `(live, 1)`."""
        return self.length >= self.limits[:, None]

    @property
    def num_live(self) -> int:
        """Number of sentences that have not left."""
        return len(self._live)

    @property
    def num_running(self) -> int:
        """Number of sentences that are not done."""
        return self.num_live - int(self._is_done.sum())

    def best(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best hypotheses of each sentence, best first; those that were cut come behind those that have ended.

        Where there are fewer than are asked for, the rest have no tokens, and scores below all others.

        Returns:
            Generated tokens, `(batch * num_return_sequences, generated)`; log P / lp(Y), `(batch *
            num_return_sequences,)`; and for each token the row of the model's batch that it came from, in the shape of
            the tokens, -1 behind the end.
        """
        scores = torch.cat([self._ended.scores, self._cut.scores], dim=1)
        ends = torch.cat([self._ended.ends, self._cut.ends], dim=1)
        order = exists(scores).int().argsort(dim=1, descending=True, stable=True)[:, : self.num_return_sequences]
        scores, ends = scores.gather(1, order), ends.gather(1, order[..., None].expand(-1, -1, 3))
        lengths = ends[..., 0].where(exists(scores), 0)
        tokens = torch.full((*lengths.shape, int(lengths.max())), self._fill, device=lengths.device)
        rows = torch.full_like(tokens, _NO_ROW)
        beam = torch.zeros_like(lengths)
        for place in reversed(range(tokens.shape[-1])):
            is_last, is_there = lengths == place + 1, lengths > place
            beam, token = (
                torch.where(is_last, of_end, of_step.gather(1, beam))
                for of_end, of_step in zip(ends[..., 1:].unbind(-1), self._history[place], strict=True)
            )
            tokens[..., place] = token.where(is_there, self._fill)
            rows[..., place] = (beam + self._first_rows).where(is_there, _NO_ROW)
            beam = beam.where(is_there, 0)
        return tokens.flatten(0, 1), scores.flatten(), rows.flatten(0, 1)
