"""Beam search (section 6.1), in which running and finished hypotheses compete, as in the authors' code.

The search is independent of the model: the caller passes log-probabilities and gets hypotheses. Docstrings name the
axes of tensors: batch (all sentences), active (the sentences that have not been pruned from the batch), beams,
candidates, vocabulary, and generated (the number of tokens generated so far).
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    # The score of an empty slot may be below NO_HYPOTHESIS, because each step adds the log-probability of a token.
    # Half of NO_HYPOTHESIS lies between such scores and the scores of hypotheses.
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
    """Return True unless all elements of a Boolean tensor are known to be False.

    On GPUs, the result is always True, because reading the elements would synchronize the device.
    """
    return flags.device.type != "cpu" or bool(flags.any())


@dataclass
class Candidates:
    """Running hypotheses that a step has extended by one token. The next running hypotheses are chosen from them.

    Attributes:
        scores (`torch.FloatTensor` of shape `(active, candidates)`): log P of each candidate.
        beams (`torch.LongTensor` of shape `(active, candidates)`): the beam whose hypothesis the candidate extends.
        tokens (`torch.LongTensor` of shape `(active, candidates)`): the token that is added to this hypothesis.
    """

    scores: Tensor
    beams: Tensor
    tokens: Tensor


class _EndedHypotheses:
    """The best hypotheses of each sentence that have ended.

    A search has one object of this class for finished hypotheses, and one for truncated hypotheses.

    Attributes:
        scores (`torch.FloatTensor` of shape `(batch, beams)`): log P / lp(Y) of each hypothesis, best first.
        ends (`torch.LongTensor` of shape `(batch, beams, 3)`): three numbers from which the hypothesis can be traced
            back: its length, the beam that its last token extends, and its last token.
    """

    def __init__(self, num_sentences: int, num_beams: int, device: torch.device):
        self.scores = torch.full((num_sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self.ends = torch.zeros((num_sentences, num_beams, 3), dtype=torch.long, device=device)

    def add(self, sentences: Tensor, scores: Tensor, ends: Tensor) -> None:
        """Add new hypotheses of some sentences, and keep only the best `beams` hypotheses of each sentence.

        A new entry whose score is `NO_HYPOTHESIS` is no hypothesis. It is kept only if there are too few others.

        Args:
            sentences (`torch.LongTensor` of shape `(active,)`): the indices of the sentences in the batch.
            scores (`torch.FloatTensor` of shape `(active, candidates)`): the new entries for `scores`.
            ends (`torch.LongTensor` of shape `(active, candidates, 3)`): the new entries for `ends`.
        """
        num_beams = self.scores.shape[1]
        # (active, beams + candidates) and (active, beams + candidates, 3)
        all_scores = torch.cat([self.scores[sentences], scores], dim=1)
        all_ends = torch.cat([self.ends[sentences], ends], dim=1)
        # Both are (active, beams), best first.
        best_scores, best_columns = all_scores.topk(num_beams)
        self.scores[sentences] = best_scores
        self.ends[sentences] = _select_ends(all_ends, best_columns)


def _select_ends(ends: Tensor, columns: Tensor) -> Tensor:
    """Select hypotheses of each sentence from `ends`, a tensor as in [`_EndedHypotheses`].

    `ends` has the shape `(sentences, hypotheses, 3)`. `columns` has the shape `(sentences, selected)`, and contains
    indices of hypotheses. The result has the shape `(sentences, selected, 3)`.
    """
    # gather() needs an index for each of the three numbers, so each column is repeated three times.
    return ends.gather(1, columns[..., None].expand(-1, -1, 3))


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

    # `prune` sets these attributes.
    rows: Tensor
    tokens: Tensor
    # `extend` sets this attribute, and `prune` reads it.
    _candidates: Candidates

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
        # The attributes with the axis "active" have a row for each sentence that is still in the batch, and
        # `drop_finished` removes rows from them. The attributes with the axis "batch" keep a row for every sentence.
        num_sentences = len(limits)
        device = limits.device
        self.num_beams = num_beams
        self.num_return_sequences = num_return_sequences
        # Each EOS token ends one extension of each hypothesis. With one more candidate per hypothesis, at least
        # `num_beams` candidates have not ended. The minimum of 2 is the same as in transformers.
        self.num_candidates = num_beams * max(2, 1 + num_eos)
        # A function lp of the number of tokens. Ended hypotheses are ranked by log P / lp.
        self.length_penalty = length_penalty
        # True if, of two hypotheses with the same log P, the longer one has the better score.
        self.favors_length = length_penalty(2) > length_penalty(1)
        # The condition under which a sentence is done: True, False or "never".
        self.early_stopping = early_stopping
        # The maximum number of generated tokens of each sentence that is still in the batch, (active,).
        self.limits = limits
        # The number of tokens of each candidate, which grows by 1 in each step.
        self.length = 0
        # The token that fills the positions after the end of a hypothesis in the result.
        self._fill_token = fill
        # The size of the axis "batch".
        self._num_sentences = num_sentences
        # The indices of the sentences that are still in the batch, (active,).
        self._active = torch.arange(num_sentences, device=device)
        # The row of the model's batch that holds each sentence's first beam, (batch, 1). With 4 beams, it is
        # [[0], [4], [8], ...].
        self._first_rows = self._active[:, None] * num_beams

        # log P of the running hypotheses, (active, beams). At first, all of them are empty and would produce the same
        # candidates, so only one exists in the first step.
        self._running_scores = torch.full((num_sentences, num_beams), NO_HYPOTHESIS, dtype=torch.float32, device=device)
        self._running_scores[:, 0] = 0
        # For each step, the beams that the running hypotheses extend, and their new tokens, each (batch, beams).
        self._beams_by_step: list[Tensor] = []
        self._tokens_by_step: list[Tensor] = []

        # The best finished and the best truncated hypotheses of each sentence, both with scores of shape
        # (batch, beams).
        self._finished = _EndedHypotheses(num_sentences, num_beams, device)
        self._truncated = _EndedHypotheses(num_sentences, num_beams, device)
        # True if a hypothesis of any sentence may be finished.
        self._has_finished = False
        # True for each sentence whose result can no longer change, (active, 1).
        self._is_done = torch.zeros((num_sentences, 1), dtype=torch.bool, device=device)

    def extend(self, log_probs: Tensor, do_sample: bool = False) -> tuple[Tensor, Tensor]:
        """Extend each running hypothesis by every token, and keep the best candidates of each sentence.

        This is the first half of a step. It stores the candidates for [`prune`], the second half, which chooses the
        next running hypotheses from them. It also increments `length`, the number of tokens of each candidate, by 1.
        The property `are_full` compares this number with the limits, so read `are_full` after this method.

        Args:
            log_probs (`torch.FloatTensor` of shape `(active * beams, vocabulary)`): the log-probabilities of the next
                token.
            do_sample (`bool`): whether to draw candidates at random by their probabilities, without replacement,
                instead of taking the best ones.

        Returns:
            The rows of the batch that the candidates extend, and their last tokens, both `(active, candidates)`.
        """
        if do_sample:
            self._candidates = self._draw_candidates(log_probs)
        else:
            self._candidates = self._find_best_candidates(log_probs)
        # The candidates have one token more than the hypotheses that they extend.
        self.length += 1
        return self._rows_of(self._candidates.beams), self._candidates.tokens

    def _draw_candidates(self, log_probs: Tensor) -> Candidates:
        """Draw the candidates of each sentence at random, by their probabilities and without replacement.

        `log_probs`, of shape `(active * beams, vocabulary)`, are the log-probabilities of the next token.
        """
        num_active, num_beams = self._running_scores.shape
        vocabulary = log_probs.shape[-1]
        log_probs_by_beam = log_probs.view(num_active, num_beams, vocabulary)
        # log P of each running hypothesis followed by each token, (active, beams, vocabulary).
        scores_by_beam = self._running_scores[..., None] + log_probs_by_beam
        # (active, beams * vocabulary), with `vocabulary` adjacent columns for each beam.
        all_scores = scores_by_beam.flatten(1)

        # With a tiny vocabulary, there are fewer extensions than `self.num_candidates`.
        num_candidates = min(self.num_candidates, all_scores.shape[1])
        # The columns of the candidates in `all_scores`, (active, candidates). With a vocabulary of 100 tokens, for
        # example, column 205 is the candidate that extends beam 2 by token 5. multinomial() draws without replacement.
        columns = torch.multinomial(all_scores.softmax(dim=-1), num_candidates)
        return Candidates(
            scores=all_scores.gather(1, columns),
            beams=columns // vocabulary,
            tokens=columns % vocabulary,
        )

    def _find_best_candidates(self, log_probs: Tensor) -> Candidates:
        """Find the candidates of each sentence with the highest log P.

        `log_probs`, of shape `(active * beams, vocabulary)`, are the log-probabilities of the next token.
        """
        num_active, num_beams = self._running_scores.shape
        # All candidates of a sentence may extend the same beam, so this many of each beam's best tokens are needed.
        tokens_per_beam = min(self.num_candidates, log_probs.shape[-1])
        # Both have the shape (active * beams, tokens_per_beam).
        best_log_probs, best_tokens = top_tokens(log_probs, tokens_per_beam)
        log_probs_by_beam = best_log_probs.view(num_active, num_beams, tokens_per_beam)
        # log P of each running hypothesis followed by each of its best tokens, (active, beams, tokens_per_beam).
        scores_by_beam = self._running_scores[..., None] + log_probs_by_beam
        # Both have the shape (active, beams * tokens_per_beam), with `tokens_per_beam` adjacent columns for each beam.
        all_scores = scores_by_beam.flatten(1)
        all_tokens = best_tokens.view(num_active, -1)

        # With a tiny vocabulary, there are fewer extensions than `self.num_candidates`.
        num_candidates = min(self.num_candidates, all_scores.shape[1])
        # Both have the shape (active, candidates). With 8 tokens per beam, for example, column 19 is the candidate that
        # extends beam 2 by its fourth-best token.
        candidate_scores, columns = all_scores.topk(num_candidates)
        return Candidates(
            scores=candidate_scores,
            beams=columns // tokens_per_beam,
            tokens=all_tokens.gather(1, columns),
        )

    def _rows_of(self, beams: Tensor) -> Tensor:
        """Convert the beams of active sentences to rows of the model's batch. Both have the shape `(active, ...)`.

        For example, with 4 beams per sentence, beam 1 of the third active sentence is in row 9.
        """
        # The model's batch contains only active sentences, so they use the first rows, whatever their indices are.
        return beams + self._first_rows[: len(beams)]

    def prune(self, is_finished: Tensor, is_truncated: Tensor) -> None:
        """Split the candidates from the last call of [`extend`] into finished, truncated and running hypotheses.

        The finished and the truncated ones are stored for the end of the search. The best of the others become the
        running hypotheses of the next step.

        The order of the steps matters. Candidates are stored while `_is_done` still describes the sentences before this
        step, because a sentence that was done gets no more candidates. Then `_is_done` changes twice: before the next
        running hypotheses are chosen, for sentences whose candidates have all ended; and afterwards, for sentences
        that are done according to `early_stopping`.

        Args:
            is_finished (`torch.BoolTensor` of shape `(active, candidates)`): True for candidates that are complete, for
                example because they end with `</s>`.
            is_truncated (`torch.BoolTensor` of shape `(active, candidates)`): True for candidates that may not grow any
                longer. Truncated hypotheses rank after all finished ones.
        """
        # A candidate that is complete counts as finished, even if it may not grow any longer.
        is_only_truncated = is_truncated & ~is_finished
        # This reads `self._is_done`, (active, 1), which is True for each sentence whose result can no longer change.
        self._store_ended(is_finished, is_only_truncated)
        # (active, 1)
        have_all_ended = self._have_all_ended(is_finished | is_only_truncated)
        self._is_done = self._is_done | have_all_ended
        # A sentence that is done still needs running hypotheses while it stays in the batch. They cannot change its
        # result, so they may exceed its length limit.
        cannot_run = is_finished | (is_only_truncated & ~self._is_done)
        self._choose_running(cannot_run)
        # `_is_decided` compares the new running hypotheses with all finished ones.
        if self._has_finished:
            # Running hypotheses are sorted, so the first one is the best. (active, 1)
            best_running = self._running_scores[:, :1]
            self._is_done = self._is_done | self._is_decided(best_running)

    def _store_ended(self, is_finished: Tensor, is_only_truncated: Tensor) -> None:
        """Store the candidates that have ended in `self._finished` and `self._truncated`.

        Both arguments have the shape `(active, candidates)`. They are True for the finished candidates, and for the
        candidates that are truncated but not finished.
        """
        # On GPUs, `_may_contain_true` always returns True, because reading a tensor there takes long. To store no
        # candidate is harmless.
        if _may_contain_true(is_finished):
            self._store(self._finished, is_finished)
            self._has_finished = True
        if _may_contain_true(is_only_truncated):
            self._store(self._truncated, is_only_truncated)

    def _store(self, ended_hypotheses: _EndedHypotheses, has_ended: Tensor) -> None:
        """Add candidates to `ended_hypotheses` in place, except the candidates of sentences that are done.

        `has_ended`, of shape `(active, candidates)`, is True for the candidates to add.

        Candidates that are not added get the score `NO_HYPOTHESIS`, which `ended_hypotheses` treats as an empty entry.
        """
        # The result of the last `extend`. Its tensors have the shape (active, candidates).
        candidates = self._candidates
        # `exists` is False for a candidate that is no hypothesis: it extends an empty beam, or its token is forbidden.
        # `self._is_done` has the shape (active, 1), so its value counts for all candidates of a sentence.
        is_stored = has_ended & exists(candidates.scores) & ~self._is_done
        # log P / lp(Y). All candidates have `self.length` tokens.
        penalized_scores = candidates.scores / self.length_penalty(self.length)
        stored_scores = penalized_scores.masked_fill(~is_stored, NO_HYPOTHESIS)
        # The three numbers from which `_trace_back` collects the tokens of a hypothesis, (active, candidates, 3).
        lengths = torch.full_like(candidates.beams, self.length)
        ends = torch.stack([lengths, candidates.beams, candidates.tokens], dim=-1)
        # `self._active`, (active,), has the index of each sentence in a batch of all sentences.
        ended_hypotheses.add(self._active, stored_scores, ends)

    def _have_all_ended(self, has_ended: Tensor) -> Tensor:
        """Return True for each sentence whose candidates have all ended, so that none of them can continue.

        `has_ended`, of shape `(active, candidates)`, is True for the candidates that have ended. The result has the
        shape `(active, 1)`.
        """
        can_continue = exists(self._candidates.scores) & ~has_ended
        return ~can_continue.any(dim=1, keepdim=True)

    def _choose_running(self, cannot_run: Tensor) -> None:
        """Make the best candidates of each sentence its running hypotheses, and append them to the history.

        This method sets `rows`, `tokens` and the scores of the running hypotheses. The history is the two lists
        `_beams_by_step` and `_tokens_by_step`. `cannot_run`, of shape `(active, candidates)`, is True for the
        candidates to leave out.
        """
        candidates = self._candidates
        scores = candidates.scores.masked_fill(cannot_run, NO_HYPOTHESIS)
        # Both have the shape (active, beams). `columns` has the index of the candidate that becomes each running
        # hypothesis.
        self._running_scores, columns = self._best_running(scores)
        beams = candidates.beams.gather(1, columns)
        tokens = candidates.tokens.gather(1, columns)

        self.rows = self._rows_of(beams).flatten()
        self.tokens = tokens.view(-1, 1)
        # In the history, sentences that were pruned from the batch keep their rows, which get zeros.
        self._beams_by_step.append(self._expand_to_batch(beams))
        self._tokens_by_step.append(self._expand_to_batch(tokens))

    def _best_running(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the candidates that become the running hypotheses of the next step.

        Args:
            scores (`torch.FloatTensor` of shape `(active, candidates)`): log P of each candidate that can continue, and
                `NO_HYPOTHESIS` for each of the others.

        Returns:
            Their scores, best first, and their indices among the candidates, both `(active, beams)`.
        """
        return scores.topk(self.num_beams)

    def _expand_to_batch(self, active_values: Tensor) -> Tensor:
        """Expand values of shape `(active, beams)` to `(batch, beams)`, with 0 for sentences that were pruned."""
        if len(active_values) == self._num_sentences:
            return active_values
        # `self._active` has the index of the sentence to which each row of `active_values` belongs.
        batch_values = active_values.new_zeros(self._num_sentences, self.num_beams)
        return batch_values.index_copy_(0, self._active, active_values)

    def _is_decided(self, best_running: Tensor) -> Tensor:
        """Return True for each sentence that is done according to `early_stopping`, which has one of three values.

        - True: a sentence is done when `num_beams` of its hypotheses are finished.
        - False: in addition, the best running hypothesis must not improve on the worst of them if it ends now.
        - "never": as False, but only `num_return_sequences` finished hypotheses are needed, and no running hypothesis
          may be able to improve on the worst of them, however it continues.

        Args:
            best_running (`torch.FloatTensor` of shape `(active, 1)`): log P of the best running hypothesis.

        Returns:
            `torch.BoolTensor` of shape `(active, 1)`.
        """
        if self.early_stopping == "never":
            # Only the hypotheses that are returned must be certain.
            num_needed = self.num_return_sequences
        else:
            num_needed = self.num_beams
        # The scores of finished hypotheses, (batch, beams), are sorted, so column `num_needed - 1` has the worst of the
        # needed ones. The first index selects the rows of the active sentences, and the index None adds an axis at the
        # end: (active, 1).
        worst_needed = self._finished.scores[self._active, num_needed - 1, None]
        # If fewer hypotheses are finished, this column has an empty slot.
        has_enough_finished = exists(worst_needed)
        if self.early_stopping is True:
            return has_enough_finished
        cannot_improve = self._best_possible_score(best_running) <= worst_needed
        return has_enough_finished & cannot_improve

    def _best_possible_score(self, best_running: Tensor) -> Tensor:
        """Return the best score log P / lp(Y) that a running hypothesis may still get, `(active, 1)`.

        With `early_stopping=False`, this is the score that the best running hypothesis would get if it ended now. With
        "never", no running hypothesis can get a better score, however it continues:

        1. Every further token adds a log-probability of at most 0, so log P will not exceed `best_running`.
        2. `best_running` is at most 0, so dividing it by the largest possible lp(Y) gives the best possible score.
        3. lp(Y) is largest at the length limit if it grows with the length. Otherwise, it is largest now.

        Args:
            best_running (`torch.FloatTensor` of shape `(active, 1)`): log P of the best running hypothesis.
        """
        if self.early_stopping == "never" and self.favors_length:
            penalty = self.length_penalty(self.limits[:, None])
        else:
            penalty = self.length_penalty(self.length)
        return best_running / penalty

    def drop_finished(self) -> Tensor:
        """Remove from the batch each sentence whose result can no longer change.

        Call this after [`prune`], when `rows` and `tokens` have been read, because they still belong to the larger
        batch. The caller must remove the same sentences from its own tensors.

        Returns:
            `torch.LongTensor` of shape `(remaining,)`: the indices of the remaining sentences among those that were
                active before.
        """
        is_running = ~self._is_done[:, 0]
        remaining = is_running.nonzero()[:, 0]
        # All tensors with one row per active sentence lose the rows of the removed sentences. The exceptions are `rows`
        # and `tokens`, which the next call of `prune` sets for the remaining sentences.
        self._active = self._active[remaining]
        self.limits = self.limits[remaining]
        self._running_scores = self._running_scores[remaining]
        self._is_done = self._is_done[remaining]
        return remaining

    @property
    def are_full(self) -> Tensor:
        """True for each sentence whose candidates have reached its length limit, of shape `(active, 1)`."""
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

        The search must have ended, because running hypotheses are not considered. A sentence with too few hypotheses
        gets empty ones, whose scores are lower than all others.

        Returns:
            Three tensors, with one row per hypothesis:

            - the generated tokens, `(batch * num_return_sequences, generated)`. After the end of a hypothesis, this is
              the token `fill`.
            - the scores log P / lp(Y), `(batch * num_return_sequences,)`.
            - the row of the model's batch that produced each token, `(batch * num_return_sequences, generated)`. After
              the end of a hypothesis, this is -1.
        """
        # (batch, num_return_sequences) and (batch, num_return_sequences, 3). For each hypothesis, `ends` has its
        # length, the beam that its last token extends, and its last token, in the order in which `_store` stacks them.
        scores, ends = self._choose_results()
        # All have the shape (batch, num_return_sequences).
        lengths, last_beams, last_tokens = ends.unbind(-1)
        # A hypothesis that does not exist has no tokens, whatever its entry in `ends` is.
        lengths = lengths.where(exists(scores), 0)
        # Both have the shape (batch, num_return_sequences, generated).
        tokens, rows = self._trace_back(lengths, last_beams, last_tokens)
        return tokens.flatten(0, 1), scores.flatten(), rows.flatten(0, 1)

    def _choose_results(self) -> tuple[Tensor, Tensor]:
        """Choose the hypotheses to return from all that have ended: first finished ones, then truncated ones.

        Returns:
            The scores, `(batch, num_return_sequences)`, and the ends, `(batch, num_return_sequences, 3)`, which are
            the length, the last beam and the last token of each hypothesis. If a sentence has too few hypotheses, empty
            slots with the score `NO_HYPOTHESIS` follow.
        """
        # (batch, 2 * beams) and (batch, 2 * beams, 3)
        all_scores = torch.cat([self._finished.scores, self._truncated.scores], dim=1)
        all_ends = torch.cat([self._finished.ends, self._truncated.ends], dim=1)
        # A stable sort moves empty slots to the end, and keeps the order of the hypotheses: finished ones first, and
        # the best of the finished and of the truncated ones first.
        hypotheses_first = exists(all_scores).int().argsort(dim=1, descending=True, stable=True)
        columns = hypotheses_first[:, : self.num_return_sequences]
        return all_scores.gather(1, columns), _select_ends(all_ends, columns)

    def _trace_back(self, lengths: Tensor, last_beams: Tensor, last_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Collect the tokens of hypotheses that have ended, from the last position to the first.

        The last token of a hypothesis and the beam that it extends are arguments. All earlier ones are in the history
        of the running hypotheses: for each position, `self._tokens_by_step` has the tokens of the running hypotheses,
        and `self._beams_by_step` has the beams that these tokens extend, both `(batch, beams)`.

        All arguments have the shape `(batch, hypotheses)`.

        Args:
            lengths (`torch.LongTensor`): the number of tokens of each hypothesis.
            last_beams (`torch.LongTensor`): the beam that the last token of each hypothesis extends.
            last_tokens (`torch.LongTensor`): the last token of each hypothesis.

        Returns:
            The tokens, and the rows of the model's batch that produced them, both `(batch, hypotheses, generated)`.
        """
        num_generated = int(lengths.max())
        tokens = lengths.new_empty(*lengths.shape, num_generated)
        rows = torch.empty_like(tokens)
        # At the start of each pass of the loop, this is the beam that holds each hypothesis at `position`. After the
        # end of a hypothesis, any beam will do. All tensors in the loop have the shape (batch, hypotheses).
        beams = torch.zeros_like(lengths)
        for position in reversed(range(num_generated)):
            # The token at this position, and the beam that it extends, if it is not the last token of the hypothesis.
            running_tokens = self._tokens_by_step[position].gather(1, beams)
            running_beams = self._beams_by_step[position].gather(1, beams)
            is_last = lengths == position + 1
            tokens[..., position] = torch.where(is_last, last_tokens, running_tokens)
            # From here on, this is the beam that the token at `position` extends. It holds the hypothesis at the
            # position before, which is the next one in the loop.
            beams = torch.where(is_last, last_beams, running_beams)
            # The model has produced the token in the row of the beam that it extends. `self._first_rows`, (batch, 1),
            # has the row of each sentence's first beam in a batch of all sentences. Removed sentences count, too.
            rows[..., position] = beams + self._first_rows

        positions = torch.arange(num_generated, device=lengths.device)
        # (batch, hypotheses, generated)
        is_after_end = positions >= lengths[..., None]
        return tokens.masked_fill(is_after_end, self._fill_token), rows.masked_fill(is_after_end, _NO_ROW)
