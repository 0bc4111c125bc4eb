"""Beam search (section 6.1), in which running and finished hypotheses compete, as in the authors' code.

The search is independent of the model: the caller passes log-probabilities and gets hypotheses. Docstrings name the
axes of tensors: batch (all sentences), active (the sentences that have not been pruned from the batch), beams,
candidates, vocabulary, and generated (the number of tokens generated so far).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .operations import replaceable


# This score marks an empty slot. It is far below the log-probability of any hypothesis. It is finite, because the
# difference of two infinities is NaN.
NO_HYPOTHESIS = -1e9
# Positions after the end of a hypothesis have this row number, because no row of the model's batch produced them.
_NO_ROW = -1


def gnmt_length_penalty(length: float | Tensor, alpha: float) -> float | Tensor:
    """Compute the paper's length penalty, lp(Y) = ((5 + |Y|) / (5 + 1))^alpha (section 6.1; Wu et al. 2016).

    |Y| is the number of generated tokens, including `</s>`.
    """
    return ((5 + length) / 6) ** alpha


def hf_length_penalty(length: float | Tensor, alpha: float) -> float | Tensor:
    """Compute transformers' length penalty, |Y|^alpha, where |Y| is the number of generated tokens."""
    return length**alpha


LENGTH_PENALTIES: dict[str, Callable] = {"gnmt": gnmt_length_penalty, "hf": hf_length_penalty}


def exists(scores: Tensor) -> Tensor:
    """Return True for each score that belongs to a hypothesis, and False for each empty slot."""
    return scores > NO_HYPOTHESIS / 2


@replaceable
def top_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the `count` tokens with the highest scores in each row, best first.

    Args:
        scores (`torch.FloatTensor` of shape `(rows, vocabulary)`): the scores of the next token.
        count (`int`): the number of tokens. If it is 1 and several tokens have the highest score, the first one wins.

    Returns:
        The scores and the ids of the best tokens, both of shape `(rows, count)`.
    """
    if count == 1:
        # torch defines which of several equal elements max() returns, but not which topk() returns.
        return scores.max(dim=1, keepdim=True)
    return scores.topk(count)


def _may_contain_true(flags: Tensor) -> bool:
    """Return False only if all elements are known to be False.

    The result is always True on GPUs, because reading the elements would synchronize the device.
    """
    return flags.device.type != "cpu" or bool(flags.any())


class _BestHypotheses:
    """The best finished hypotheses of each sentence. A second object of this class holds the best truncated ones.

    Each hypothesis is stored, best first, as a score in `scores`, `(batch, beams)`, and three numbers in `ends`,
    `(batch, beams, 3)`: its length, the beam that the last token continues, and the last token.
    """

    def __init__(self, num_sentences: int, num_beams: int, device: torch.device):
        self.scores = torch.full((num_sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self.ends = torch.zeros((num_sentences, num_beams, 3), dtype=torch.long, device=device)

    def add(self, sentences: Tensor, scores: Tensor, ends: Tensor) -> None:
        """Add candidates to the stored hypotheses, and keep the best ones of each sentence.

        Args:
            sentences (`torch.LongTensor` of shape `(active,)`): the indices of the candidates' sentences.
            scores (`torch.FloatTensor` of shape `(active, candidates)`): the candidates' scores.
            ends (`torch.LongTensor` of shape `(active, candidates, 3)`): the candidates' entries for `ends`.
        """
        num_beams = self.scores.shape[1]
        all_scores = torch.cat([self.scores[sentences], scores], dim=1)
        all_ends = torch.cat([self.ends[sentences], ends], dim=1)
        best_scores, best = all_scores.topk(num_beams)
        self.scores[sentences] = best_scores
        self.ends[sentences] = all_ends.gather(1, best[..., None].expand(-1, -1, 3))


class BeamSearch:
    """The state of a beam search over a batch of sentences: their running and finished hypotheses.

    Every step calls [`extend`], which makes candidates from the running hypotheses, and then [`prune`], which removes
    the candidates that have ended. For each sentence, the search keeps the running hypotheses with the highest log P,
    and the finished hypotheses with the highest log P / lp(Y). A sentence is done when none of its running hypotheses
    can still win, or when no running hypothesis is left.

    The search does not copy tokens in each step. For each running hypothesis, it stores the beam that the hypothesis
    continues and the new token. At the end, [`best`] traces the tokens back.

    Args:
        num_beams (`int`): the number of running hypotheses, and of finished hypotheses, per sentence.
        num_return_sequences (`int`): the number of hypotheses to return per sentence.
        num_eos (`int`): the number of EOS tokens.
        length_penalty (`Callable`): lp, a function of a length in tokens, or of a tensor of lengths.
        early_stopping (`bool` or `"never"`): the condition under which a sentence is done:

            - `"never"`: no running hypothesis can enter the best `num_return_sequences`, even with the most favorable
              length penalty;
            - `False`: no running hypothesis can enter the best `num_beams` if it ends now;
            - `True`: `num_beams` hypotheses are finished.
        limits (`torch.LongTensor` of shape `(batch,)`): the maximum number of generated tokens of each sentence.
        fill (`int`): the token that fills the positions after the end of a hypothesis in the result.

    Attributes:
        rows (`torch.LongTensor` of shape `(active * beams,)`): for each running hypothesis, the row of the model's last
            batch that it continues.
        tokens (`torch.LongTensor` of shape `(active * beams, 1)`): the last token of each running hypothesis.
    """

    rows: Tensor
    tokens: Tensor

    def __init__(
        self,
        num_beams: int,
        *,
        num_return_sequences: int,
        num_eos: int,
        length_penalty: Callable,
        early_stopping: bool | str,
        limits: Tensor,
        fill: int,
    ):
        num_sentences = len(limits)
        device = limits.device
        self.num_beams = num_beams
        self.num_return_sequences = num_return_sequences
        # Each EOS token ends one continuation of each hypothesis. With one more candidate per hypothesis, at least
        # `num_beams` candidates have not ended.
        self.num_candidates = num_beams * max(2, 1 + num_eos)
        self.length_penalty = length_penalty
        # True if, of two hypotheses with the same log P, the longer one has the better score.
        self.favors_length = length_penalty(2) > length_penalty(1)
        self.early_stopping = early_stopping
        self.limits = limits
        self.length = 0
        self._fill = fill
        self._num_sentences = num_sentences
        # The sentences that are still in the batch, (active,), and the row of each sentence's first beam, (batch, 1).
        self._active = torch.arange(num_sentences, device=device)
        self._first_rows = self._active[:, None] * num_beams
        # log P of the running hypotheses, (active, beams). At first, all of them are empty and would produce the same
        # candidates, so only one exists in the first step.
        self._scores = torch.full((num_sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self._scores[:, 0] = 0
        self._is_done = torch.zeros((num_sentences, 1), dtype=torch.bool, device=device)
        self._finished = _BestHypotheses(num_sentences, num_beams, device)
        self._truncated = _BestHypotheses(num_sentences, num_beams, device)
        self._has_finished = False
        # The candidates' log P, the beams that they continue, and their last tokens, each (active, candidates).
        self._candidates: tuple[Tensor, Tensor, Tensor]
        # For each step, the beams that the running hypotheses continue, and their new tokens, each (batch, beams).
        self._history: list[tuple[Tensor, Tensor]] = []

    def extend(self, log_probs: Tensor, do_sample: bool = False) -> tuple[Tensor, Tensor]:
        """Extend each running hypothesis by every token, and keep the best candidates of each sentence.

        Args:
            log_probs (`torch.FloatTensor` of shape `(active * beams, vocabulary)`): the log-probabilities of the next
                token.
            do_sample (`bool`): whether to draw candidates at random by their probabilities, without replacement,
                instead of taking the best ones.

        Returns:
            The rows of the batch that the candidates continue, and their last tokens, both `(active, candidates)`.
        """
        num_active, num_beams = self._scores.shape
        vocabulary = log_probs.shape[-1]
        if do_sample:
            # log P of each hypothesis with each token, (active, beams * vocabulary).
            all_scores = self._scores[..., None] + log_probs.view(num_active, num_beams, vocabulary)
            all_scores = all_scores.flatten(1)
            drawn = torch.multinomial(all_scores.softmax(dim=-1), min(self.num_candidates, all_scores.shape[1]))
            scores = all_scores.gather(1, drawn)
            beams = drawn // vocabulary
            tokens = drawn % vocabulary
        else:
            # The best candidates of a sentence are among the best tokens of each of its hypotheses.
            tokens_per_beam = min(self.num_candidates, vocabulary)
            best_log_probs, best_tokens = top_tokens(log_probs, tokens_per_beam)
            # log P of each hypothesis with each of its best tokens, (active, beams * tokens_per_beam).
            best_scores = self._scores[..., None] + best_log_probs.view(num_active, num_beams, tokens_per_beam)
            best_scores = best_scores.flatten(1)
            scores, best = best_scores.topk(min(self.num_candidates, best_scores.shape[1]))
            beams = best // tokens_per_beam
            tokens = best_tokens.view(num_active, -1).gather(1, best)
        self._candidates = (scores, beams, tokens)
        self.length += 1
        return beams + self._first_rows[:num_active], tokens

    def prune(self, is_finished: Tensor, is_truncated: Tensor) -> None:
        """Split the candidates into finished, truncated and running hypotheses.

        Args:
            is_finished (`torch.BoolTensor` of shape `(active, candidates)`): True for candidates that are complete, for
                example because they end with `</s>`.
            is_truncated (`torch.BoolTensor` of shape `(active, candidates)`): True for candidates that may not grow any
                longer. Truncated hypotheses rank after all finished ones.
        """
        scores, beams, tokens = self._candidates
        if _may_contain_true(is_finished):
            self._store(self._finished, is_finished)
            self._has_finished = True
        is_truncated = is_truncated & ~is_finished
        if _may_contain_true(is_truncated):
            self._store(self._truncated, is_truncated)

        can_continue = exists(scores) & ~(is_finished | is_truncated)
        self._is_done = self._is_done | ~can_continue.any(dim=1, keepdim=True)
        # A sentence that is done still needs running hypotheses while it stays in the batch. They cannot change its
        # result, so they may exceed its length limit.
        has_ended = is_finished | is_truncated & ~self._is_done
        self._scores, chosen = self._best_running(scores.masked_fill(has_ended, NO_HYPOTHESIS))
        if self._has_finished:
            self._is_done = self._is_done | self._is_decided(self._scores[:, :1])

        beams = beams.gather(1, chosen)
        tokens = tokens.gather(1, chosen)
        self.rows = (beams + self._first_rows[: len(beams)]).flatten()
        self.tokens = tokens.view(-1, 1)
        self._history.append((self._expand_to_batch(beams), self._expand_to_batch(tokens)))

    def _best_running(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the running hypotheses of the next step from candidates with scores `(active, candidates)`.

        Returns:
            Their scores, best first, and their indices among the candidates, both `(active, beams)`.
        """
        return scores.topk(self.num_beams)

    def _store(self, best: _BestHypotheses, has_ended: Tensor) -> None:
        """Add the candidates that have just ended to `best`, scored by log P / lp(Y), unless their sentence is done."""
        scores, beams, tokens = self._candidates
        is_stored = has_ended & exists(scores) & ~self._is_done
        penalized_scores = scores / self.length_penalty(self.length)
        ends = torch.stack([torch.full_like(beams, self.length), beams, tokens], dim=-1)
        best.add(self._active, penalized_scores.masked_fill(~is_stored, NO_HYPOTHESIS), ends)

    def _expand_to_batch(self, active_values: Tensor) -> Tensor:
        """Expand values of shape `(active, beams)` to `(batch, beams)`, with 0 for sentences that were pruned."""
        if len(active_values) == self._num_sentences:
            return active_values
        batch_values = active_values.new_zeros(self._num_sentences, self.num_beams)
        return batch_values.index_copy_(0, self._active, active_values)

    def _is_decided(self, best_running: Tensor) -> Tensor:
        """Return True for each sentence whose result is certain by the rule that `early_stopping` selects.

        Args:
            best_running (`torch.FloatTensor` of shape `(active, 1)`): log P of the best running hypothesis.

        Returns:
            `torch.BoolTensor` of shape `(active, 1)`.
        """
        num_needed = self.num_return_sequences if self.early_stopping == "never" else self.num_beams
        worst_needed = self._finished.scores[self._active, num_needed - 1, None]
        if self.early_stopping is True:
            return exists(worst_needed)

        length: int | Tensor = self.length
        if self.early_stopping == "never" and self.favors_length:
            # log P only falls as a hypothesis grows, and lp(Y) is largest at the limit. This bounds every later score.
            length = self.limits[:, None]
        best_possible = best_running / self.length_penalty(length)
        return exists(worst_needed) & (best_possible <= worst_needed)

    def drop_finished(self) -> Tensor:
        """Remove the sentences that are done from the batch.

        Returns:
            `torch.LongTensor` of shape `(remaining,)`: the indices of the remaining sentences among those that were
                active before.
        """
        remaining = (~self._is_done[:, 0]).nonzero()[:, 0]
        self._active = self._active[remaining]
        self.limits = self.limits[remaining]
        self._scores = self._scores[remaining]
        self._is_done = self._is_done[remaining]
        return remaining

    @property
    def are_full(self) -> Tensor:
        """Flags of shape `(active, 1)`: True if a sentence's candidates have reached its length limit."""
        return self.length >= self.limits[:, None]

    @property
    def num_active(self) -> int:
        """The number of sentences that are still in the batch, whether done or not."""
        return len(self._active)

    @property
    def num_running(self) -> int:
        """The number of sentences in the batch whose search is not done."""
        return self.num_active - int(self._is_done.sum())

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best hypotheses of each sentence, best first, with truncated hypotheses after all finished ones.

        A sentence with too few hypotheses gets empty ones, whose scores are lower than all others.

        Returns:
            The generated tokens, `(batch * num_return_sequences, generated)`; the scores log P / lp(Y), `(batch *
            num_return_sequences,)`; and, in the shape of the tokens, the row of the model's batch that produced each
            token, or -1 after the end of a hypothesis.
        """
        all_scores = torch.cat([self._finished.scores, self._truncated.scores], dim=1)
        all_ends = torch.cat([self._finished.ends, self._truncated.ends], dim=1)
        # A stable sort moves empty slots to the end, and keeps the order of the hypotheses.
        order = exists(all_scores).int().argsort(dim=1, descending=True, stable=True)
        best = order[:, : self.num_return_sequences]
        scores = all_scores.gather(1, best)
        ends = all_ends.gather(1, best[..., None].expand(-1, -1, 3))
        end_lengths, end_beams, end_tokens = ends.unbind(-1)
        # An empty slot has no tokens.
        lengths = end_lengths.where(exists(scores), 0)

        tokens = torch.full((*lengths.shape, int(lengths.max())), self._fill, device=lengths.device)
        rows = torch.full_like(tokens, _NO_ROW)
        # Trace every hypothesis back from its last token. `beam` is the beam that holds the current token.
        beam = torch.zeros_like(lengths)
        for position in reversed(range(tokens.shape[-1])):
            step_beams, step_tokens = self._history[position]
            is_last = lengths == position + 1
            is_token = lengths > position
            token = torch.where(is_last, end_tokens, step_tokens.gather(1, beam))
            previous_beam = torch.where(is_last, end_beams, step_beams.gather(1, beam))
            tokens[..., position] = token.where(is_token, self._fill)
            rows[..., position] = (previous_beam + self._first_rows).where(is_token, _NO_ROW)
            beam = previous_beam.where(is_token, 0)
        return tokens.flatten(0, 1), scores.flatten(), rows.flatten(0, 1)
