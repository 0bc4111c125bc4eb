"""Settings of the search, their checks, how they are saved; and where they end each sentence of a batch."""

import copy
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .beam_search import LENGTH_PENALTIES
from .input_checks import InputError


logger = logging.getLogger(__name__)

# Section 6.1.
PAPER_ALPHA = 0.6
PAPER_MAX_LENGTH_OFFSET = 50
# Largest magnitude of alpha that settings may have.
LARGEST_LENGTH_PENALTY = 100
# transformers' default, which `Seq2SeqTrainer.predict` writes into the model's `generation_config`.
_STOCK_MAX_LENGTH = 20
# More beams than translation gains from.
_MANY_BEAMS = 100


class SearchSetting(NamedTuple):
    """What this package does with a setting of the search.

    Args:
        limits (`tuple[int, int]`, *optional*): the least and the largest whole number that it may be.
        is_own (`bool`): whether transformers lacks it.
        is_saved_as_default (`bool`): whether it is saved also where it equals transformers' default.
        limits_length (`bool`): whether it limits the length of a translation.
        describes_result (`bool`): whether the result of a search cannot be read without it.
    """

    limits: tuple[int, int] | None = None
    is_own: bool = False
    is_saved_as_default: bool = False
    limits_length: bool = False
    describes_result: bool = False


# Sinusoids are exact to 1e-6 up to position 100,000, and memory grows with the number of hypotheses.
_HYPOTHESES = (1, 10_000)
_TOKENS = (1, 100_000)
# Every setting that this package reads, checks or saves. Other modules derive their lists from this table.
SEARCH_SETTINGS = {
    "num_beams": SearchSetting(_HYPOTHESES, is_saved_as_default=True, describes_result=True),
    "num_return_sequences": SearchSetting(_HYPOTHESES),
    "do_sample": SearchSetting(describes_result=True),
    "length_penalty": SearchSetting(is_saved_as_default=True, describes_result=True),
    "length_penalty_type": SearchSetting(is_own=True, describes_result=True),
    "early_stopping": SearchSetting(is_saved_as_default=True),
    "max_new_tokens": SearchSetting(_TOKENS, limits_length=True, describes_result=True),
    "max_length": SearchSetting(_TOKENS, limits_length=True, describes_result=True),
    "max_length_offset": SearchSetting((0, 100_000), is_own=True, limits_length=True, describes_result=True),
    "eos_token_id": SearchSetting(describes_result=True),
    "forced_eos_token_id": SearchSetting(describes_result=True),
    "stop_strings": SearchSetting(describes_result=True),
}


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
                is_saved = name in SEARCH_SETTINGS and SEARCH_SETTINGS[name].is_saved_as_default
                if not is_saved and getattr(saved, name, None) == value:
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
    """Raise ValueError if a number of hypotheses or tokens in settings is no whole number, too small, or absurd.

    Because a longer translation has a smaller penalty, the lossless stop would not come before an absurd limit.
    """
    for name, setting in SEARCH_SETTINGS.items():
        number = settings.get(name)
        if setting.limits is None or number is None:
            continue
        least, most = setting.limits
        if not (isinstance(number, int) and least <= number <= most):
            raise InputError(f"{name} is {number!r}; it must be a whole number from {least} to {most:,}.")


@cache
def warn_of_many_beams(num_beams: int) -> None:
    """Warn, once per process and number, of a search that takes much memory and time."""
    if num_beams > _MANY_BEAMS:
        logger.warning(
            "num_beams is %d: memory and time grow with the hypotheses of each sentence; the paper's is 4.", num_beams
        )


def check_token_ids(settings: Any, vocab_size: int) -> None:
    """Raise ValueError if a special token in settings is no whole number, or a forced one not in the vocabulary."""
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        ids = getattr(settings, name)
        if any(isinstance(each, float) for each in (ids if isinstance(ids, list) else [ids])):
            raise InputError(f"{name} is {ids}; give the number of a token.")
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        ids = getattr(settings, name)
        given = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(each, int) and 0 <= each < vocab_size for each in given):
            raise InputError(f"{name} is {ids}, but the vocabulary has ids 0 to {vocab_size - 1}; give one of them.")


def limits_length(settings: GenerationConfig) -> bool:
    """Whether settings contain a length limit that replaces their `max_length_offset`."""
    # A `max_length` that `predict` wrote next to a `max_length_offset` is not the user's.
    is_from_predict = (
        settings.max_length == _STOCK_MAX_LENGTH
        and hasattr(settings, "max_length_offset")
        and has_defaults_of_predict(settings)
    )
    return settings.max_new_tokens is not None or (settings.max_length is not None and not is_from_predict)


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """Decoding as in section 6.1.

    Args:
        config (`VanillaTransformerConfig`): gives the special tokens.

    Returns:
        `GenerationConfig`: 4 beams, `length_penalty` alpha = 0.6 with `length_penalty_type` `"gnmt"`, at most source
        tokens + `max_length_offset` generated tokens, and a search that ends when no running hypothesis can win
        (`early_stopping="never"`, transformers' name for the bound with the most favourable length).
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=PAPER_ALPHA,
        length_penalty_type="gnmt",
        max_length_offset=PAPER_MAX_LENGTH_OFFSET,
        early_stopping="never",
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def length_penalty_of(settings: GenerationConfig) -> Callable:
    """The function lp(Y) of settings; it takes the length |Y| in generated tokens, `</s>` included.

    Raises:
        ValueError: if `length_penalty_type` is unknown, or alpha is no number from -100 to 100.
    """
    alpha = 1.0 if settings.length_penalty is None else settings.length_penalty
    kind = getattr(settings, "length_penalty_type", "hf")
    if not (isinstance(alpha, (int, float)) and abs(alpha) <= LARGEST_LENGTH_PENALTY):
        raise InputError(
            f"length_penalty is {alpha!r}; it must lie between -{LARGEST_LENGTH_PENALTY} and {LARGEST_LENGTH_PENALTY}, "
            "the paper's is 0.6."
        )
    if kind not in LENGTH_PENALTIES:
        raise InputError(f'length_penalty_type is "{kind}"; choose "gnmt" (the paper\'s) or "hf" (length ** alpha).')
    return partial(LENGTH_PENALTIES[kind], alpha=float(alpha))


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


def is_of_settings(criterion: StoppingCriteria, settings: Any) -> bool:
    """Whether a criterion says no more than the settings: their EOS tokens, or one of their maximum lengths."""
    if type(criterion) is EosTokenCriteria:
        eos = settings._eos_token_tensor
        return eos is not None and criterion.eos_token_id.tolist() == eos.tolist()
    if type(criterion) is MaxLengthCriteria:
        return criterion.max_length == settings.max_length
    if type(criterion) is SentenceLengthLimit:
        return criterion.max_lengths is settings.sentence_max_lengths
    return False


# These criteria truncate a hypothesis; others finish it.
_TRUNCATING = (MaxLengthCriteria, MaxTimeCriteria, SentenceLengthLimit)


class CandidateStops:
    """Which candidates of a beam search are finished, and which are truncated, by a call's criteria and settings.

    Criteria that only watch the search are called at each step, too; see [`only_watches`].
    """

    def __init__(self, criteria: StoppingCriteriaList, settings: Any):
        self._watching = StoppingCriteriaList()
        self._limits = StoppingCriteriaList()
        self._finishing = StoppingCriteriaList()
        self._eos = settings._eos_token_tensor
        # Whether the criteria that stop hypotheses are only those of the settings.
        self.are_plain = True
        for criterion in criteria:
            if only_watches(criterion):
                self._watching.append(criterion)
                continue
            if isinstance(criterion, _TRUNCATING):
                self._limits.append(criterion)
            else:
                self._finishing.append(criterion)
            if not is_of_settings(criterion, settings):
                self.are_plain = False

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
