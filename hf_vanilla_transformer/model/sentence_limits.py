"""Length limits and stopping criteria per sentence, and workarounds for transformers' GenerationConfig."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)


# transformers' default, which `Seq2SeqTrainer.predict` writes into the model's `generation_config`.
_STOCK_MAX_LENGTH = 20
# Up to this position, sinusoids are exact to 1e-6.
_LONGEST = 100_000
# Settings of the paper's search, which are saved also where they equal transformers' defaults.
_SEARCH = ("num_beams", "length_penalty", "early_stopping")


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


# These criteria truncate a hypothesis; others finish it.
_LIMITS = (MaxLengthCriteria, MaxTimeCriteria, SentenceLengthLimit)


class CandidateStops:
    """Which candidates of a beam search are finished, and which are truncated, by the stopping criteria of a call.

    Args:
        criteria (`StoppingCriteriaList`): of this call of `generate()`.
        settings (`GenerationConfig`): of this call of `generate()`.
    """

    def __init__(self, criteria: StoppingCriteriaList, settings: Any):
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
        if self.are_plain:
            eos = tokens.new_empty(0) if self._eos is None else self._eos
            return torch.isin(tokens, eos), are_full
        candidates = torch.cat([input_ids[rows.flatten()], tokens.view(-1, 1)], dim=1)
        is_finished, is_truncated = (
            criteria(candidates, scores).view(tokens.shape) for criteria in (self._finishing, self._limits)
        )
        return is_finished, is_truncated


class SettingsToSave(GenerationConfig):
    """Settings that transformers saves without an error.

    transformers raises an error for settings of beam search with `num_beams=1`. They are kept, so that
    `generate(num_beams=4)` is still the paper's search.
    """

    @classmethod
    def of(cls, settings: GenerationConfig) -> GenerationConfig:
        """A copy without the defaults of transformers that `Seq2SeqTrainer.predict` writes into a model's settings.

        This package ignores their `max_length` of 20, but a reader of the saved file without this class would not.
        """
        saved = copy.copy(settings)
        saved.__class__ = cls
        if has_defaults_of_predict(settings):
            for name, value in GenerationConfig._get_default_generation_params().items():
                if name not in _SEARCH and getattr(saved, name, None) == value:
                    setattr(saved, name, None)
        return saved

    def validate(self, strict: bool = False, **kwargs: Any) -> None:
        checked = copy.copy(self)
        if self.num_beams in (None, 1):
            checked.early_stopping = checked.length_penalty = None
        GenerationConfig.validate(checked, strict=strict, **kwargs)


def has_defaults_of_predict(settings: GenerationConfig) -> bool:
    """Whether every setting that `Seq2SeqTrainer.predict` fills is set; users never set all of them by hand."""
    defaults = GenerationConfig._get_default_generation_params()
    return all(getattr(settings, name, value) is not None for name, value in defaults.items() if value is not None)


def check_search(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a number of hypotheses or tokens in settings is no whole number of at least 1, or absurd.

    Because a longer translation has a smaller penalty, the lossless stop would not come before an absurd limit.
    """
    for name in ("num_beams", "num_return_sequences", "max_new_tokens", "max_length"):
        number = settings.get(name)
        if number is not None and (not isinstance(number, int) or number < 1):
            paper = ", the paper's is 4" if name == "num_beams" else ""
            raise ValueError(f"{name} is {number!r}; it must be a whole number of at least 1{paper}.")
        if name.startswith("max_") and number is not None and number > _LONGEST:
            raise ValueError(f"{name} is {number:,}; it must be at most {_LONGEST:,}, where positions end to be exact.")


def check_token_ids(settings: Any, vocab_size: int) -> None:
    """Raise ValueError if a special token in settings is no whole number, or a forced one not in the vocabulary."""
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        ids = getattr(settings, name)
        if any(isinstance(each, float) for each in (ids if isinstance(ids, list) else [ids])):
            raise ValueError(f"{name} is {ids}; give the number of a token.")
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        ids = getattr(settings, name)
        given = [each for each in (ids if isinstance(ids, list) else [ids]) if each is not None]
        if not all(isinstance(each, int) and 0 <= each < vocab_size for each in given):
            raise ValueError(f"{name} is {ids}, but the vocabulary has ids 0 to {vocab_size - 1}; give one of them.")


def limits_length(settings: GenerationConfig) -> bool:
    """Whether settings contain a length limit that replaces their `max_length_offset`."""
    # A `max_length` that `predict` wrote next to a `max_length_offset` is not the user's.
    is_from_predict = (
        settings.max_length == _STOCK_MAX_LENGTH
        and hasattr(settings, "max_length_offset")
        and has_defaults_of_predict(settings)
    )
    return settings.max_new_tokens is not None or (settings.max_length is not None and not is_from_predict)
