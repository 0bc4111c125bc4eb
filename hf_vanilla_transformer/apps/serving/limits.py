"""The limits of the server: their values, and checks of the texts of a request and of those in flight.

`http/header_and_body_limits.py` limits the bytes of a request and the seconds until they arrive, `http/routes.py` the
seconds until the answer.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

from ...support.argument_checks import check_number
from ...support.build_arguments import option
from ...support.user_errors import InputError
from ...translation.required_phrases import CELLS_PER_TOKEN
from .errors import BusyError, TooMuchError


# For each token that a text may have. Tags take time, too.
_CHARACTERS_OF_MARKUP = 32
# The most work of a request that takes the lane of short requests. For example, a sentence of 30 tokens, which may
# become 80, takes 440 with 4 beams and 1,760 with 16. A request waits for those before it in its lane, so a larger
# value would make the shortest requests slower.
_MOST_SHORT_WORK = 2_000
# Tokens that a translation may have more than its source, where nothing else is given.
_USUAL_OFFSET = 50


@dataclass(frozen=True)
class ServingSettings:
    """Limits of the server. A request beyond one gets a status of 4xx, or 503 if the server is full or too slow.

    Raises:
        TypeError: if a value is not a whole number.
        ValueError: if a value is too small, or `max_texts` exceeds `max_in_flight`.
    """

    _argument_group_name = "limits"

    tokens_per_batch: int = option(4096, "Maximum number of source tokens in a batch, padding included.")
    max_wait_ms: int = option(3, "Milliseconds that a text waits for others of its batch while its lane is idle.")
    max_source_tokens: int = option(1024, "Maximum number of tokens of a text.")
    max_texts: int = option(128, "Maximum number of texts of a request.")
    max_work: int = option(
        200_000,
        "Maximum of beams x (source tokens + most new tokens), summed over the texts of a request, and the work of its "
        "terms.",
    )
    max_in_flight: int = option(512, "Maximum number of texts that wait or are translated.")
    max_body_bytes: int = option(1_000_000, "Maximum length of a request's body.")
    arrival_seconds: int = option(10, "Seconds for a request's headers to arrive, and again for its body.")
    request_seconds: int = option(60, "Seconds until a request must be answered.")
    shutdown_seconds: int = option(60, "Seconds that requests have to finish when the server shuts down.")

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name), 0 if each.name == "max_wait_ms" else 1)
        if self.max_texts > self.max_in_flight:
            raise InputError(
                f"max_texts is {self.max_texts}, but max_in_flight {self.max_in_flight}; such a request would never be "
                "accepted, so lower the one or raise the other."
            )


class TextLimits:
    """Checks the texts of each request, and counts those of all requests in flight; `observe` gets each new count."""

    def __init__(self, settings: ServingSettings, observe: Callable[[int], None]):
        self._settings, self._observe = settings, observe
        self.in_flight = 0

    @contextmanager
    def admit(self, texts: int) -> Iterator[None]:
        """Count texts as in flight while they wait and are translated; raises BusyError if the server is full."""
        most = self._settings.max_in_flight
        if self.in_flight + texts > most:
            raise BusyError(f"the server has {self.in_flight} texts in flight, and takes {most}; retry.", 1)
        self._count(texts)
        try:
            yield
        finally:
            self._count(-texts)

    def check_number_of_texts(self, texts: int) -> None:
        """Raise TooMuchError if a request has too many texts."""
        most = self._settings.max_texts
        if texts > most:
            raise TooMuchError(f"the request has {texts} texts; send at most {most} at once.")

    def check_markup(self, texts: Sequence[str]) -> None:
        """Raise TooMuchError if a text has too many characters with its tags."""
        longest, most = max(map(len, texts), default=0), self._settings.max_source_tokens * _CHARACTERS_OF_MARKUP
        if longest > most:
            raise TooMuchError(f"a text has {longest:,} characters with its tags; send at most {most:,}.")

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise TooMuchError if one of the texts has too many tokens."""
        longest, most = max(tokens, default=0), self._settings.max_source_tokens
        if longest > most:
            raise TooMuchError(f"a text has {longest:,} tokens; split it into texts of at most {most:,}.")

    def check_work(self, tokens: Sequence[int], num_beams: int, max_new_tokens: int | None) -> int:
        """Compute the work of texts with so many source tokens, see docs/serving.md; TooMuchError if it is too much."""
        steps = sum(tokens) + sum(_most_new_tokens(tokens, max_new_tokens))
        if num_beams * steps > self._settings.max_work:
            raise TooMuchError(
                f"the texts may take {steps:,} tokens of source and translation with {num_beams} beams each, more than "
                f"{self._settings.max_work:,} in all; send fewer texts, beams or max_new_tokens."
            )
        return num_beams * steps

    def check_terms(
        self, work: int, cells: Sequence[int], tokens: Sequence[int], num_beams: int, max_new_tokens: int | None
    ) -> int:
        """Add the work of terms to that of texts; TooMuchError if it is too much.

        Each text has `cells` of [`PhraseSizes`], which the search computes for each new token of each beam.
        """
        work_of_terms = 0
        for new_tokens, cells_of_text in zip(_most_new_tokens(tokens, max_new_tokens), cells, strict=True):
            work_of_terms += num_beams * math.ceil(new_tokens * cells_of_text / CELLS_PER_TOKEN)
        if work + work_of_terms > self._settings.max_work:
            raise TooMuchError(
                f"with {num_beams} beams the texts may take as much work as {work:,} tokens, and the terms in them as "
                f"much as {work_of_terms:,} more, but the server allows {self._settings.max_work:,} in all; send fewer "
                "terms, fewer or shorter translations of them, fewer texts or fewer beams."
            )
        return work + work_of_terms

    def _count(self, texts: int) -> None:
        self.in_flight += texts
        self._observe(self.in_flight)


def is_short(work: int) -> bool:
    """Return True if a request of so much work, as of [`TextLimits`], takes the lane of short requests."""
    return work <= _MOST_SHORT_WORK


def _most_new_tokens(tokens: Sequence[int], max_new_tokens: int | None) -> list[int]:
    """The most tokens that the translation of each text may have."""
    return [max_new_tokens or count + _USUAL_OFFSET for count in tokens]
