"""The settings of `generate()`: their limits and defaults, how they are checked and saved, and stopping criteria.

The settings are fields of transformers' `GenerationConfig`, some of which this package adds.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
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

# The beam size, the length penalty and the length limit of section 6.1.
PAPER_NUM_BEAMS = 4
PAPER_ALPHA = 0.6
PAPER_MAX_LENGTH_OFFSET = 50
# The largest magnitude of alpha that is accepted. It is far beyond useful values, but keeps length ** alpha finite.
LARGEST_LENGTH_PENALTY = 100
# transformers' default for `max_length`, which `Seq2SeqTrainer.predict` writes into the model's `generation_config`.
_STOCK_MAX_LENGTH = 20
# Beyond this number, more beams do not improve translations, but increase memory and time.
_MANY_BEAMS = 100


class SearchSetting(NamedTuple):
    """How this package checks, saves and reports one setting of `generate()`.

    Args:
        limits (`tuple[int, int]`, *optional*): the smallest and the largest whole number that is accepted.
        is_own (`bool`): whether this package adds the setting, which transformers lacks.
        is_saved_as_default (`bool`): whether the setting is saved even if it equals transformers' default.
        limits_length (`bool`): whether the setting limits the length of a translation.
        describes_result (`bool`): whether one must know the setting to interpret the result of a search.
    """

    limits: tuple[int, int] | None = None
    is_own: bool = False
    is_saved_as_default: bool = False
    limits_length: bool = False
    describes_result: bool = False


# The first limit bounds memory, which grows with the number of hypotheses. The second is the position up to which
# sinusoids are exact to 1e-6.
_HYPOTHESES = (1, 10_000)
_TOKENS = (1, 100_000)
# Every setting that this package reads, checks or saves. Other modules derive their lists of settings from this table.
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


class CallSettings(GenerationConfig):
    """The settings of one `generate()` call: a `GenerationConfig` with three additional fields.

    This class exists for type checkers only. transformers creates a plain `GenerationConfig` for each call, and the
    methods of [`~.generation_vanilla_transformer.VanillaTransformerGenerationMixin`] set these fields on it.

    Attributes:
        max_length_offset (`int`, *optional*): the maximum number of generated tokens beyond the source's length.
        source_lengths (`torch.LongTensor` of shape `(batch,)`, *optional*): the number of tokens of each source, or
            None if the source has no 2D mask.
        sentence_max_lengths (`torch.LongTensor` of shape `(batch,)`, *optional*): the maximum number of target tokens
            of each sentence, or None if all sentences have the same limit.
    """

    max_length_offset: int | None
    source_lengths: Tensor | None
    sentence_max_lengths: Tensor | None


class SettingsToSave(GenerationConfig):
    """A `GenerationConfig` that can be saved with settings of beam search even if `num_beams` is 1.

    transformers raises an error for this combination. The combination is useful, because a later call
    `generate(num_beams=4)` then still uses the paper's beam search.
    """

    @classmethod
    def from_settings(cls, settings: GenerationConfig) -> GenerationConfig:
        """Copy settings, and remove the defaults that `Seq2SeqTrainer.predict` has written into them.

        One of these defaults is a `max_length` of 20. This package ignores it, but other programs that read the saved
        file would not.
        """
        # The copy is shallow. This is enough, because its fields are only replaced below, and no object in a field is
        # changed. So the caller's settings stay as they are.
        settings_to_save = copy.copy(settings)
        # The copy keeps all fields, but gets the `validate` of this class, which transformers calls to save the copy.
        settings_to_save.__class__ = cls
        # Without this condition, defaults that the user has chosen would be removed as well.
        if has_defaults_of_predict(settings):
            _remove_stock_defaults(settings_to_save)
        return settings_to_save

    def validate(self, strict: bool = False, **kwargs: Any) -> None:
        """Check the settings as `GenerationConfig` does, but skip the settings of beam search if there is one beam.

        These settings are `early_stopping` and `length_penalty`. With one beam, `GenerationConfig` would complain about
        them.
        """
        settings_to_check = copy.copy(self)
        has_one_beam = self.num_beams is None or self.num_beams == 1
        if has_one_beam:
            settings_to_check.early_stopping = None
            settings_to_check.length_penalty = None
        # `settings_to_check.validate()` would call this method again.
        GenerationConfig.validate(settings_to_check, strict=strict, **kwargs)


def _remove_stock_defaults(settings: GenerationConfig) -> None:
    """Set each setting that equals transformers' default to None.

    Settings with `is_saved_as_default` in `SEARCH_SETTINGS`, such as `num_beams`, are left as they are.
    """
    saved_defaults = [name for name, setting in SEARCH_SETTINGS.items() if setting.is_saved_as_default]
    for name, default in GenerationConfig._get_default_generation_params().items():
        if name in saved_defaults:
            continue
        if getattr(settings, name, None) == default:
            setattr(settings, name, None)


def has_defaults_of_predict(settings: GenerationConfig) -> bool:
    """Return True if `Seq2SeqTrainer.predict` has written transformers' defaults into the settings.

    `predict` sets every setting that has a default. Users leave at least one of these settings at None.
    """
    for name, default in GenerationConfig._get_default_generation_params().items():
        if default is not None and getattr(settings, name, default) is None:
            return False
    return True


def check_search(settings: Mapping[str, object]) -> None:
    """Raise ValueError if a setting that counts hypotheses or tokens is not a whole number within its limits.

    The limits keep memory bounded. In addition, `early_stopping="never"` estimates the best possible score from the
    length limit, and an extreme limit would make this estimate useless.
    """
    for name, setting in SEARCH_SETTINGS.items():
        number = settings.get(name)
        # Settings without limits count nothing, and a setting of None is not set.
        if setting.limits is None or number is None:
            continue
        smallest, largest = setting.limits
        if not isinstance(number, int) or not smallest <= number <= largest:
            raise InputError(f"{name} is {number!r}; it must be a whole number from {smallest} to {largest:,}.")


def check_no_forced_phrases(arguments: Mapping[str, object], settings: GenerationConfig) -> None:
    """Raise ValueError if the arguments of a `generate()` call, or its settings, contain `forced_phrases`.

    Earlier versions of this package supported this setting.
    """
    phrases_of_call = arguments.get("forced_phrases")
    phrases_of_settings = getattr(settings, "forced_phrases", None)
    if phrases_of_call is not None or phrases_of_settings is not None:
        raise InputError(
            "forced_phrases is not a setting of generate(); give custom_generate=ForcedPhrases(phrases), of the "
            "package hf_vanilla_transformer."
        )


@cache
def warn_of_many_beams(num_beams: int) -> None:
    """Log a warning if `num_beams` is so large that a search takes much memory and time.

    The cache limits this to one warning per number of beams and process.
    """
    if num_beams > _MANY_BEAMS:
        logger.warning(
            "num_beams is %d: memory and time grow with the number of hypotheses per sentence; the paper uses 4.",
            num_beams,
        )


def check_token_ids(settings: GenerationConfig, vocab_size: int) -> None:
    """Raise ValueError if a special token's id is a float, or if a forced token is outside the vocabulary.

    Each setting may be one id, a list of ids, or None. `_as_list` makes a list of each of them.
    """
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        setting = getattr(settings, name)
        for token_id in _as_list(setting):
            if isinstance(token_id, float):
                raise InputError(f"{name} is {setting}; give the number of a token.")
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        setting = getattr(settings, name)
        for token_id in _as_list(setting):
            if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise InputError(
                    f"{name} is {setting}, but the vocabulary has ids 0 to {vocab_size - 1}; give one of them."
                )


def _as_list(token_ids: int | list[int] | None) -> list[int]:
    """Return the token ids of a setting as a list. The setting may be one id, a list of ids, or None."""
    if token_ids is None:
        return []
    return token_ids if isinstance(token_ids, list) else [token_ids]


def limits_length(settings: GenerationConfig) -> bool:
    """Return True if the settings contain a length limit that takes precedence over `max_length_offset`.

    `max_new_tokens` and `max_length` take precedence. The exception is a `max_length` of 20, transformers' default, if
    `Seq2SeqTrainer.predict` has written it into the settings.
    """
    if settings.max_new_tokens is not None:
        return True
    if settings.max_length is None:
        return False
    if settings.max_length != _STOCK_MAX_LENGTH:
        # `predict` writes defaults only where a setting is None, so this limit is the user's.
        return True
    if not hasattr(settings, "max_length_offset"):
        # Only settings of this package's models have an offset. Without one, nothing replaces the default.
        return True
    # `predict` writes all defaults at once. If some of them are missing, the user has chosen this limit.
    return not has_defaults_of_predict(settings)


def create_default_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """Create the generation settings of a new model, which are the settings of the paper (section 6.1).

    Args:
        config (`VanillaTransformerConfig`): the configuration from which the special tokens are copied.

    Returns:
        `GenerationConfig`: 4 beams; the length penalty of Wu et al. 2016 (`length_penalty_type="gnmt"`) with alpha =
        0.6; at most 50 more generated tokens than source tokens; and a search that ends when no running hypothesis can
        still win. transformers calls the last setting `early_stopping="never"`, because the search does not stop before
        the result is certain.
    """
    return GenerationConfig(
        num_beams=PAPER_NUM_BEAMS,
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
    """Return the length penalty lp that the settings select, as a function of the number of generated tokens.

    This number includes `</s>`.

    Raises:
        ValueError: if `length_penalty_type` is unknown, or if `length_penalty` is not a number from -100 to 100.
    """
    alpha = settings.length_penalty
    if alpha is None:
        # This is transformers' default.
        alpha = 1.0
    # The negated comparison also rejects NaN, for which every comparison is False.
    if not isinstance(alpha, (int, float)) or not abs(alpha) <= LARGEST_LENGTH_PENALTY:
        raise InputError(
            f"length_penalty is {alpha!r}; it must lie between -{LARGEST_LENGTH_PENALTY} and {LARGEST_LENGTH_PENALTY}, "
            f"and the paper's is {PAPER_ALPHA}."
        )
    # Only this package adds the type. Settings without it mean transformers' own penalty.
    penalty_type = getattr(settings, "length_penalty_type", "hf")
    if penalty_type not in LENGTH_PENALTIES:
        raise InputError(
            f'length_penalty_type is "{penalty_type}"; choose "gnmt" (the paper\'s) or "hf" (length ** alpha).'
        )
    return partial(LENGTH_PENALTIES[penalty_type], alpha=float(alpha))


class SentenceLengthLimit(StoppingCriteria):
    """A stopping criterion that gives each sentence of a batch its own length limit.

    Args:
        max_lengths (`torch.LongTensor` of shape `(batch,)`): the maximum number of target tokens of each sentence,
            including a forced prefix and `</s>`.
    """

    # transformers pads finished sentences only if a criterion has this attribute. `_get_stopping_criteria` sets it.
    eos_token_id: Tensor | None

    def __init__(self, max_lengths: Tensor):
        self.max_lengths = max_lengths

    def __call__(self, input_ids: Tensor, scores: tuple[Tensor] | None, **kwargs: Any) -> Tensor:
        """Return True for each hypothesis that has reached its limit.

        `input_ids` has the shape `(rows, length)`, and the result has the shape `(rows,)`.
        """
        # The hypotheses of a sentence are adjacent rows.
        num_hypotheses = len(input_ids) // len(self.max_lengths)
        max_lengths = self.max_lengths.to(input_ids.device).repeat_interleave(num_hypotheses)
        return input_ids.shape[1] >= max_lengths


class SentenceForcedEOS(LogitsProcessor):
    """A logits processor that forces `forced_eos_token_id` as the last token at each sentence's own length limit.

    The corresponding processor in transformers forces this token at one limit for the whole batch.

    Args:
        max_lengths (`torch.LongTensor` of shape `(batch,)`): the limits, as in [`SentenceLengthLimit`].
        eos (`int` or `list[int]`): the tokens that are allowed in the last position.
    """

    def __init__(self, max_lengths: Tensor, eos: int | list[int]):
        # This criterion is True for hypotheses that are at most one token below their limit.
        self._needs_one_token = SentenceLengthLimit(max_lengths - 1)
        self._eos = eos

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of the next token, in which hypotheses with one token left may only generate EOS.

        `input_ids` has the shape `(rows, length)`. `scores` and the result have the shape `(rows, vocabulary)`.
        """
        # (rows, vocabulary), with log-probability 0 for EOS and minus infinity for every other token.
        forced_scores = torch.full_like(scores, -torch.inf)
        forced_scores[:, self._eos] = 0
        needs_one_token = self._needs_one_token(input_ids, None)
        return forced_scores.where(needs_one_token[:, None], scores)


def only_watches(criterion: StoppingCriteria) -> bool:
    """Return True if a stopping criterion only observes the search: its attribute `stops_hypotheses` is False.

    Such a criterion returns False for every row. For example, it may show progress, or raise an error when the user
    cancels the search. It is called at each step, with the hypotheses that are still in the batch. It does not prevent
    finished sentences from being pruned.
    """
    return not getattr(criterion, "stops_hypotheses", True)


def is_implied_by_settings(criterion: StoppingCriteria, settings: GenerationConfig) -> bool:
    """Return True if a stopping criterion only enforces the EOS tokens or a length limit of the settings."""
    # The exact classes are compared, because a derived class may stop a hypothesis for a different reason.
    if type(criterion) is EosTokenCriteria:
        eos_tokens = settings._eos_token_tensor
        if eos_tokens is None:
            return False
        return criterion.eos_token_id.tolist() == eos_tokens.tolist()
    if type(criterion) is MaxLengthCriteria:
        return criterion.max_length == settings.max_length
    if type(criterion) is SentenceLengthLimit:
        # `_get_stopping_criteria` passes the tensor in the settings to the criterion.
        return criterion.max_lengths is getattr(settings, "sentence_max_lengths", None)
    return False


# These criteria truncate a hypothesis. All others finish it.
_TRUNCATING_CLASSES = (MaxLengthCriteria, MaxTimeCriteria, SentenceLengthLimit)


class CandidateStops:
    """The stopping criteria of a beam search, which decide which candidates are finished and which are truncated.

    Args:
        criteria (`StoppingCriteriaList`): the criteria of a `generate()` call. Criteria that only watch the search are
            called in each step; see [`only_watches`].
        settings (`GenerationConfig`): the settings of the same call.

    Attributes:
        follow_from_settings (`bool`): True if all criteria that can stop a hypothesis only check for the EOS tokens and
            the length limits of the settings. They are evaluated without building the candidates' tokens, which takes
            less time.
    """

    def __init__(self, criteria: StoppingCriteriaList, settings: GenerationConfig):
        # Each criterion goes to one of three lists: it never stops a hypothesis, or it truncates, or it finishes one.
        self._watching_criteria = StoppingCriteriaList()
        self._truncating_criteria = StoppingCriteriaList()
        self._finishing_criteria = StoppingCriteriaList()
        # A tensor of token ids, or None if there is no EOS token.
        self._eos_tokens = settings._eos_token_tensor
        # True if all criteria that stop hypotheses only check for the EOS tokens and length limits of the settings.
        self.follow_from_settings = True
        for criterion in criteria:
            if only_watches(criterion):
                self._watching_criteria.append(criterion)
                continue
            if isinstance(criterion, _TRUNCATING_CLASSES):
                self._truncating_criteria.append(criterion)
            else:
                self._finishing_criteria.append(criterion)
            if not is_implied_by_settings(criterion, settings):
                self.follow_from_settings = False

    def __call__(
        self, input_ids: Tensor, rows: Tensor, tokens: Tensor, are_full: Tensor, scores: tuple[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Decide which candidates are finished, and which are truncated.

        Args:
            input_ids (`torch.Tensor` of shape `(rows, length)`): the running hypotheses.
            rows (`torch.Tensor` of shape `(active, candidates)`): the row of `input_ids` that each candidate continues.
            tokens (`torch.Tensor` of shape `(active, candidates)`): the last token of each candidate.
            are_full (`torch.Tensor` of shape `(active, 1)`): True if a sentence's candidates have reached its length
                limit.
            scores (`tuple`, *optional*): the scores of all steps, which are passed on to the criteria.

        Returns:
            Two Boolean tensors: the first is True for finished candidates, and the second for truncated ones. Both can
            be broadcast to `(active, candidates)`.
        """
        # These criteria never stop a hypothesis, so their result is ignored.
        self._watching_criteria(input_ids, scores)
        if self.follow_from_settings:
            # The other criteria only check for EOS tokens and length limits, which need no copy of the hypotheses.
            return self._end_with_eos(tokens), are_full

        # The tokens of all candidates, (active * candidates, length + 1).
        candidates = torch.cat([input_ids[rows.flatten()], tokens.view(-1, 1)], dim=1)
        # Each list of criteria returns one Boolean per row, and False for every row if the list is empty.
        is_finished = self._finishing_criteria(candidates, scores)
        is_truncated = self._truncating_criteria(candidates, scores)
        return is_finished.view(tokens.shape), is_truncated.view(tokens.shape)

    def _end_with_eos(self, tokens: Tensor) -> Tensor:
        """Return True for each candidate whose last token, from `tokens`, is one of the EOS tokens."""
        if self._eos_tokens is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return torch.isin(tokens, self._eos_tokens)
