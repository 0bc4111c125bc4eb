"""Limits of each sentence of a batch: length limits, forced EOS, and which candidates they stop."""

from typing import Any

import torch
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)


class SentenceLengthLimit(StoppingCriteria):
    """Stops each sentence of a batch at its own length.

    Args:
        max_lengths (`torch.LongTensor` of shape `(batch,)`): maximum number of target tokens per sentence, the forced
            prefix and `</s>` included.
    """

    eos_token_id: Any

    def __init__(self, max_lengths: torch.LongTensor):
        self.max_lengths = max_lengths

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> Any:
        """Which of the `(rows, length)` hypotheses have reached their limit, `(rows,)`."""
        # A sentence's hypotheses are adjacent rows.
        hypotheses = len(input_ids) // len(self.max_lengths)
        return input_ids.shape[1] >= self.max_lengths.to(input_ids.device).repeat_interleave(hypotheses)


class SentenceForcedEOS(LogitsProcessor):
    """Forces `forced_eos_token_id` at each sentence's own limit, as transformers does at that of the batch.

    Args:
        max_lengths (`torch.LongTensor` of shape `(batch,)`): as in [`SentenceLengthLimit`].
        eos (`int` or `list[int]`): the only tokens allowed there.
    """

    def __init__(self, max_lengths: torch.LongTensor, eos: int | list[int]):
        self._is_last, self._eos = SentenceLengthLimit(max_lengths - 1), eos  # type: ignore[arg-type]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        """Scores of the next token, `(rows, vocabulary)`, for `(rows, length)` hypotheses."""
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._eos] = 0
        return forced.where(self._is_last(input_ids, None)[:, None], scores)


def only_watches(criterion: StoppingCriteria) -> bool:
    """Return True if a criterion has the attribute `stops_hypotheses = False`.

    Such a criterion returns False for every row, for example because it shows progress, or raises an error when the
    user cancels the search. It is called at each step, with the hypotheses that are still in the batch. Because it
    stops none of them, finished sentences are pruned from the batch as if it were not there.
    """
    return not getattr(criterion, "stops_hypotheses", True)


# These criteria truncate a hypothesis; others finish it.
_LIMITS = (MaxLengthCriteria, MaxTimeCriteria, SentenceLengthLimit)


class CandidateStops:
    """Which candidates of a beam search are finished, and which are truncated, by a call's criteria and settings.

    Criteria that only watch the search are called at each step, too; see [`only_watches`].
    """

    def __init__(self, criteria: StoppingCriteriaList, settings: Any):
        self._watching = StoppingCriteriaList(each for each in criteria if only_watches(each))
        criteria = StoppingCriteriaList(each for each in criteria if not only_watches(each))
        self._finishing = StoppingCriteriaList(each for each in criteria if not isinstance(each, _LIMITS))
        self._limits = StoppingCriteriaList(each for each in criteria if isinstance(each, _LIMITS))
        self._eos = settings._eos_token_tensor
        eos = [] if self._eos is None else self._eos.tolist()
        # The criteria are only those of the settings: EOS tokens and maximum lengths.
        self.are_plain = all(
            (type(each) is EosTokenCriteria and each.eos_token_id.tolist() == eos)
            or (type(each) is MaxLengthCriteria and each.max_length == settings.max_length)
            or (type(each) is SentenceLengthLimit and each.max_lengths is settings.sentence_max_lengths)
            for each in criteria
        )

    def __call__(
        self, input_ids: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, are_full: torch.Tensor, scores: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Which candidates are finished, and which are truncated, each `(active, candidates)`.

        Args:
            input_ids (`torch.Tensor` of shape `(rows, length)`): the running hypotheses.
            rows (`torch.Tensor` of shape `(active, candidates)`): the row of `input_ids` that each candidate continues.
            tokens (`torch.Tensor` of shape `(active, candidates)`): the last token of each candidate.
            are_full (`torch.Tensor` of shape `(active, 1)`): whether a sentence's candidates have maximum length.
            scores: passed to the criteria.
        """
        self._watching(input_ids, scores)
        if self.are_plain:
            eos = tokens.new_empty(0) if self._eos is None else self._eos
            return torch.isin(tokens, eos), are_full
        candidates = torch.cat([input_ids[rows.flatten()], tokens.view(-1, 1)], dim=1)
        is_finished, is_truncated = (
            criteria(candidates, scores).view(tokens.shape) for criteria in (self._finishing, self._limits)
        )
        return is_finished, is_truncated
