"""Find where the hypotheses of a beam search end, and whether they ended only because of the length limit."""

import math
from collections.abc import Iterable

from transformers import GenerationConfig

from ..model.generation_settings import limits_length


class HypothesisEnds:
    """Determines how a search ended its hypotheses: with EOS, with a stop string, or at the length limit.

    Args:
        settings (`GenerationConfig`): the search settings.
        pad_token_id (`int`): the token that fills a sequence after its end.
    """

    def __init__(self, settings: GenerationConfig, pad_token_id: int):
        self._settings = settings
        self._pad_token_id = pad_token_id
        self._eos_token_ids = _collect_eos_tokens(settings.eos_token_id)
        self._stop_strings = _list_stop_strings(settings.stop_strings)

    def trim(self, sequence: list[int]) -> list[int]:
        """Return the generated tokens of a sequence, without the start token and the padding.

        The result ends with the first EOS token, if there is one.
        """
        # The slice leaves out the start token. It is a copy, so the caller's list does not change below.
        token_ids = sequence[1:]
        for position, token in enumerate(token_ids):
            if token in self._eos_token_ids:
                return token_ids[: position + 1]
        # Without EOS, the sequence ended at the length limit or with a stop string. It has padding if a different
        # sequence of the batch is longer.
        while token_ids and token_ids[-1] == self._pad_token_id:
            token_ids.pop()
        return token_ids

    def is_truncated(self, token_ids: list[int], text: str, source_length: int) -> bool:
        """Return True if a hypothesis ended because it reached the length limit.

        Args:
            token_ids (`list[int]`): the hypothesis's tokens, as returned by [`trim`].
            text (`str`): the hypothesis's text.
            source_length (`int`): the number of source tokens, on which the limit may depend.
        """
        ends_in_eos = bool(token_ids) and token_ids[-1] in self._eos_token_ids
        has_stop_string = any(stop_string in text for stop_string in self._stop_strings)
        has_end_mark = ends_in_eos or has_stop_string
        if not has_end_mark:
            return True
        # The search may have forced EOS at the length limit.
        return len(token_ids) >= self._length_of_forced_eos(source_length)

    def _length_of_forced_eos(self, source_length: int) -> float:
        """Return the number of tokens, EOS included, at which the search forces EOS; infinity without a forced EOS.

        The settings of OPUS-MT models force EOS at the length limit, so EOS at this length does not mean that the
        translation is complete.
        """
        settings = self._settings
        if settings.forced_eos_token_id is None:
            return math.inf
        # The first of these limits that applies decides.
        if settings.max_new_tokens:
            return settings.max_new_tokens
        # Only models of this package have an offset. `limits_length` returns True if `max_length` takes precedence over
        # it: if it is set, and is not merely a default that transformers has filled in.
        offset = getattr(settings, "max_length_offset", None)
        if offset is not None and not limits_length(settings):
            return source_length + offset
        if settings.max_length:
            # `max_length` includes the start token.
            return settings.max_length - 1
        return math.inf


def _collect_eos_tokens(eos_token_id: int | Iterable[int] | None) -> set[int]:
    """Return the tokens of the setting `eos_token_id`, which is one token, several tokens, or None."""
    if eos_token_id is None:
        return set()
    if isinstance(eos_token_id, int):
        return {eos_token_id}
    return set(eos_token_id)


def _list_stop_strings(stop_strings: str | Iterable[str] | None) -> list[str]:
    """Return the texts of the setting `stop_strings`, which is one text, several texts, or None."""
    if not stop_strings:
        return []
    if isinstance(stop_strings, str):
        return [stop_strings]
    return list(stop_strings)
