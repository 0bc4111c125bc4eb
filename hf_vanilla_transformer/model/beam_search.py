"""The beam search of section 6.1, as in the authors' code: running and finished hypotheses compete.

The search is independent of the model: log-probabilities in, hypotheses out. Shapes have named axes: batch (sentences),
beams, candidates, vocabulary, generated (length so far, in tokens), active (sentences still in the batch; finished ones
may be pruned).
"""

from collections.abc import Callable

import torch

from .operations import replaceable


# Far below the log-probability of any hypothesis, but finite, because differences of minus infinity are NaN.
NO_HYPOTHESIS = -1e9
_NO_ROW = -1


def gnmt_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / (5 + 1))^alpha of Wu et al. 2016, which section 6.1 uses.

    |Y| counts the generated tokens, `</s>` included.
    """
    return ((5 + length) / 6) ** alpha


def hf_length_penalty(length: float | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """transformers' length penalty: |Y|^alpha."""
    return length**alpha


LENGTH_PENALTIES: dict[str, Callable] = {"gnmt": gnmt_length_penalty, "hf": hf_length_penalty}


def exists(scores: torch.Tensor) -> torch.Tensor:
    """Which scores belong to a hypothesis, and not to an empty slot; in the shape of `scores`."""
    return scores > NO_HYPOTHESIS / 2


@replaceable
def top_tokens(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best tokens of each row, best first.

    Args:
        scores (`torch.FloatTensor` of shape `(rows, vocabulary)`): of the next token.
        count (`int`): number of tokens; with 1, the first of several equal ones is taken.

    Returns:
        Their scores and their ids, both `(rows, count)`.
    """
    if count == 1:
        # torch defines which of several equal elements max() returns, but not topk().
        return scores.max(dim=1, keepdim=True)
    return scores.topk(count)


def _may_be_any(flags: torch.Tensor) -> bool:
    """Whether any element is True; always True on GPUs, where the answer would need a synchronization."""
    return flags.device.type != "cpu" or bool(flags.any())


class _Best:
    """The best finished, or truncated, hypotheses of each sentence, best first.

    A hypothesis is stored as its score, `(batch, beams)`, and its end, `(batch, beams, 3)`: its length, the beam that
    it continues, and its last token.
    """

    def __init__(self, sentences: int, num_beams: int, device: torch.device):
        self.scores = torch.full((sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self.ends = torch.zeros((sentences, num_beams, 3), dtype=torch.long, device=device)

    def add(self, sentences: torch.Tensor, scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Insert the better candidates of sentences `(active,)`: scores `(active, candidates)`, and their ends."""
        best, chosen = torch.cat([self.scores[sentences], scores], dim=1).topk(self.scores.shape[1])
        ends = torch.cat([self.ends[sentences], ends], dim=1)
        self.scores[sentences] = best
        self.ends[sentences] = ends.gather(1, chosen[..., None].expand(-1, -1, 3))


class BeamSearch:
    """The hypotheses of a batch of sentences.

    Each step calls [`extend`], which makes candidates from the running hypotheses, and then [`prune`], which takes the
    finished ones out. The search keeps the best finished hypotheses by log P / lp(Y), and the best running ones by
    log P. A sentence is done when no running hypothesis can win, or none is left.

    Each step stores the beam that every running hypothesis continued, and its token; [`best`] traces the tokens back at
    the end.

    Args:
        num_beams (`int`): number of running, and of finished, hypotheses per sentence.
        num_return_sequences (`int`): number of hypotheses to return per sentence.
        num_eos (`int`): number of EOS tokens.
        length_penalty (`Callable`): lp, a function of a number of tokens or of a tensor of them.
        early_stopping (`bool` or `"never"`): when a sentence is done. `"never"`: no running hypothesis can enter the
            best `num_return_sequences`, even if it finishes at its most favourable length. `False`: none can enter the
            best `num_beams` if it finishes now. `True`: `num_beams` hypotheses are finished.
        limits (`torch.LongTensor` of shape `(batch,)`): maximum number of generated tokens per sentence.
        fill (`int`): token after the end of a hypothesis.
    """

    def __init__(
        self,
        num_beams: int,
        *,
        num_return_sequences: int,
        num_eos: int,
        length_penalty: Callable,
        early_stopping: bool | str,
        limits: torch.Tensor,
        fill: int,
    ):
        sentences, device = len(limits), limits.device
        self.num_beams, self.num_return_sequences = num_beams, num_return_sequences
        self.num_candidates = num_beams * max(2, 1 + num_eos)
        self.length_penalty, self.favors_length = length_penalty, length_penalty(2) > length_penalty(1)
        self.early_stopping, self.limits = early_stopping, limits
        self.length = 0
        self._fill, self._sentences = fill, sentences
        self._active = torch.arange(sentences, device=device)
        # log P of the running hypotheses, (active, beams). All are equal at first, so the first step uses only one.
        self._scores = torch.full((sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self._scores[:, 0] = 0
        self._is_done = torch.zeros((sentences, 1), dtype=torch.bool, device=device)
        self._finished, self._truncated = (_Best(sentences, num_beams, device) for _ in range(2))
        self._none_finished = True
        # log P, the beams that the candidates continue, and their last tokens, each (active, candidates).
        self._candidates = (self._scores,) * 3
        # The beams continued at each step, and the tokens, each (batch, beams).
        self._history: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._first_rows = self._active[:, None] * num_beams
        # The rows of the model's last batch that the running hypotheses continue, (active * beams,), and their last
        # tokens, (active * beams, 1).
        self.rows = self.tokens = self._active

    def extend(self, log_probs: torch.Tensor, do_sample: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Extend the running hypotheses by every token, and keep the best candidates of each sentence.

        Args:
            log_probs (`torch.FloatTensor` of shape `(active * beams, vocabulary)`): of the next token.
            do_sample (`bool`): sample candidates without replacement, by their probabilities, instead of the best.

        Returns:
            The rows that the candidates continue, and their last tokens, both `(active, candidates)`.
        """
        vocabulary = log_probs.shape[-1]
        if do_sample:
            totals = (self._scores[..., None] + log_probs.view(*self._scores.shape, vocabulary)).flatten(1)
            chosen = torch.multinomial(totals.softmax(dim=-1), min(self.num_candidates, totals.shape[1]))
            totals, beams, tokens = totals.gather(1, chosen), chosen // vocabulary, chosen % vocabulary
        else:
            # The best candidates of a sentence are among the best of each of its hypotheses.
            token_scores, tokens = top_tokens(log_probs, min(self.num_candidates, vocabulary))
            totals = (self._scores[..., None] + token_scores.view(*self._scores.shape, -1)).flatten(1)
            totals, chosen = totals.topk(min(self.num_candidates, totals.shape[1]))
            beams, tokens = chosen // token_scores.shape[1], tokens.view(len(totals), -1).gather(1, chosen)
        self._candidates = totals, beams, tokens
        self.length += 1
        return beams + self._first_rows[: len(beams)], tokens

    def prune(self, is_finished: torch.Tensor, is_truncated: torch.Tensor) -> None:
        """Split the candidates into finished, truncated and running hypotheses.

        Args:
            is_finished (`torch.BoolTensor` of shape `(active, candidates)`): by a token such as `</s>`.
            is_truncated (`torch.BoolTensor` of shape `(active, candidates)`): whether no token may follow. Truncated
                hypotheses rank after all finished ones.
        """
        scores, beams, tokens = self._candidates
        if _may_be_any(is_finished):
            self._keep(self._finished, is_finished)
            self._none_finished = False
        is_truncated = is_truncated & ~is_finished
        if _may_be_any(is_truncated):
            self._keep(self._truncated, is_truncated)
        may_continue = exists(scores) & ~(is_finished | is_truncated)
        self._is_done = self._is_done | ~may_continue.any(dim=1, keepdim=True)
        # Hypotheses of a finished sentence run on while it is in the batch, but no longer count.
        self._scores, chosen = self._best_running(
            scores.masked_fill(is_finished | is_truncated & ~self._is_done, NO_HYPOTHESIS)
        )
        if not self._none_finished:
            self._is_done = self._is_done | self._is_decided(self._scores[:, :1])
        beams, tokens = beams.gather(1, chosen), tokens.gather(1, chosen)
        self.rows, self.tokens = (beams + self._first_rows[: len(beams)]).flatten(), tokens.view(-1, 1)
        self._history.append((self._expand_to_batch(beams), self._expand_to_batch(tokens)))

    def _best_running(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, and indices among the `(active, candidates)`, of the next running hypotheses, best first."""
        return scores.topk(self.num_beams)

    def _keep(self, best: _Best, are_new: torch.Tensor) -> None:
        """Insert the new candidates of unfinished sentences into `best`, by log P / lp(Y)."""
        scores, beams, tokens = self._candidates
        counts = are_new & exists(scores) & ~self._is_done
        scores = (scores / self.length_penalty(self.length)).masked_fill(~counts, NO_HYPOTHESIS)
        best.add(self._active, scores, torch.stack([torch.full_like(beams, self.length), beams, tokens], dim=-1))

    def _expand_to_batch(self, values: torch.Tensor) -> torch.Tensor:
        """`(active, beams)` to `(batch, beams)`."""
        if len(values) == self._sentences:
            return values
        return values.new_zeros(self._sentences, self.num_beams).index_copy_(0, self._active, values)

    def _is_decided(self, best_running: torch.Tensor) -> torch.Tensor:
        """Whether no running hypothesis can win, `(active, 1)`, given each sentence's best running log P."""
        needed = self.num_return_sequences if self.early_stopping == "never" else self.num_beams
        worst = self._finished.scores[self._active, needed - 1, None]
        if self.early_stopping is True:
            return exists(worst)
        length: int | torch.Tensor = self.length
        if self.early_stopping == "never" and self.favors_length:
            length = self.limits[:, None]
        return exists(worst) & (best_running / self.length_penalty(length) <= worst)

    def drop_finished(self) -> torch.Tensor:
        """Prune finished sentences from the batch; returns which of the live ones stay, `(kept,)`."""
        kept = (~self._is_done[:, 0]).nonzero()[:, 0]
        self._active, self.limits = self._active[kept], self.limits[kept]
        self._scores, self._is_done = self._scores[kept], self._is_done[kept]
        return kept

    @property
    def are_full(self) -> torch.Tensor:
        """Whether candidates have reached their sentence's length limit, `(active, 1)`."""
        return self.length >= self.limits[:, None]

    @property
    def num_active(self) -> int:
        """Number of sentences in the batch."""
        return len(self._active)

    @property
    def num_running(self) -> int:
        """Number of unfinished sentences."""
        return self.num_active - int(self._is_done.sum())

    def best(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best hypotheses of each sentence, best first; truncated ones come after finished ones.

        Missing hypotheses have no tokens, and scores below all others.

        Returns:
            Generated tokens, `(batch * num_return_sequences, generated)`; log P / lp(Y), `(batch *
            num_return_sequences,)`; and for each token the row of the model's batch that produced it, in the shape of
            the tokens, -1 after the end.
        """
        scores = torch.cat([self._finished.scores, self._truncated.scores], dim=1)
        ends = torch.cat([self._finished.ends, self._truncated.ends], dim=1)
        order = exists(scores).int().argsort(dim=1, descending=True, stable=True)[:, : self.num_return_sequences]
        scores, ends = scores.gather(1, order), ends.gather(1, order[..., None].expand(-1, -1, 3))
        lengths = ends[..., 0].where(exists(scores), 0)
        tokens = torch.full((*lengths.shape, int(lengths.max())), self._fill, device=lengths.device)
        rows = torch.full_like(tokens, _NO_ROW)
        beam = torch.zeros_like(lengths)
        for position in reversed(range(tokens.shape[-1])):
            is_last, is_token = lengths == position + 1, lengths > position
            beam, token = (
                torch.where(is_last, of_end, of_step.gather(1, beam))
                for of_end, of_step in zip(ends[..., 1:].unbind(-1), self._history[position], strict=True)
            )
            tokens[..., position] = token.where(is_token, self._fill)
            rows[..., position] = (beam + self._first_rows).where(is_token, _NO_ROW)
            beam = beam.where(is_token, 0)
        return tokens.flatten(0, 1), scores.flatten(), rows.flatten(0, 1)
