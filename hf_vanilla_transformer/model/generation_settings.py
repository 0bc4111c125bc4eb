"""Settings of the search: the paper's, their checks, and how they are saved."""

import copy
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from transformers import GenerationConfig, PreTrainedConfig

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
