"""Limits of the server: their values, and checks of the texts of a request and of all texts in flight.

Two more modules enforce limits: `http/header_and_body_limits.py` limits the bytes of a request and the seconds in which
they must arrive, and `http/routes.py` limits the seconds until the response.
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


# A document may have this many characters for each token that a text may have. Tags are not tokens, but parsing them
# takes time, too.
_MARKUP_CHARACTERS_PER_TOKEN = 32
# The most work of a request that takes the lane of short requests. For example, a sentence of 30 tokens, which may
# become 80, takes 440 with 4 beams and 1,760 with 16. A request waits for those before it in its lane, so a larger
# value would make the shortest requests slower.
_MOST_WORK_OF_SHORT_REQUEST = 2_000
# Without `max_new_tokens`, a translation may have this many tokens more than its source.
_USUAL_OFFSET = 50


@dataclass(frozen=True)
class ServingSettings:
    """Limits of the server. A request beyond a limit gets a status of 4xx, or 503 if the server is full or too slow.

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
        for field in fields(self):
            smallest = 0 if field.name == "max_wait_ms" else 1
            check_number(field.name, getattr(self, field.name), smallest)
        if self.max_texts > self.max_in_flight:
            raise InputError(
                f"max_texts is {self.max_texts}, but max_in_flight {self.max_in_flight}; such a request would never be "
                "accepted, so lower the one or raise the other."
            )


class TextLimits:
    """Checks the texts of each request, and counts the texts of all requests in flight.

    The methods that check texts may be called in any thread. `admit` is called in the thread of the event loop only,
    so the count needs no lock.

    Args:
        settings (`ServingSettings`): the limits.
        observe (`Callable`): called with the number of texts in flight whenever it changes.

    Attributes:
        in_flight (`int`): the number of texts that wait or are translated.
    """

    def __init__(self, settings: ServingSettings, observe: Callable[[int], None]):
        self._settings = settings
        self._observe = observe
        self.in_flight = 0

    @contextmanager
    def admit(self, texts: int) -> Iterator[None]:
        """Count some texts as in flight while the context is open; raise BusyError if the server is full."""
        limit = self._settings.max_in_flight
        if self.in_flight + texts > limit:
            raise BusyError(f"the server has {self.in_flight} texts in flight, and takes {limit}; retry.", 1)
        self._count(texts)
        try:
            yield
        finally:
            self._count(-texts)

    def check_number_of_texts(self, texts: int) -> None:
        """Raise TooMuchError if a request has too many texts."""
        limit = self._settings.max_texts
        if texts > limit:
            raise TooMuchError(f"the request has {texts} texts; send at most {limit} at once.")

    def check_markup(self, documents: Sequence[str]) -> None:
        """Raise TooMuchError if a document has too many characters, with its tags."""
        limit = self._settings.max_source_tokens * _MARKUP_CHARACTERS_PER_TOKEN
        longest = max(map(len, documents), default=0)
        if longest > limit:
            raise TooMuchError(f"a text has {longest:,} characters with its tags; send at most {limit:,}.")

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise TooMuchError if a text has too many tokens; `tokens` has the number of tokens of each text."""
        limit = self._settings.max_source_tokens
        longest = max(tokens, default=0)
        if longest > limit:
            raise TooMuchError(f"a text has {longest:,} tokens; split it into texts of at most {limit:,}.")

    def check_work(self, tokens: Sequence[int], num_beams: int, max_new_tokens: int | None) -> int:
        """Return the work of translating texts, which docs/serving.md defines.

        Args:
            tokens (`Sequence[int]`): the number of source tokens of each text.
            num_beams (`int`): the beam size.
            max_new_tokens (`int`, *optional*): the maximum number of tokens of a translation.

        Raises:
            TooMuchError: if the work exceeds the limit.
        """
        steps = sum(tokens) + sum(_most_new_tokens(tokens, max_new_tokens))
        work = num_beams * steps
        if work > self._settings.max_work:
            raise TooMuchError(
                f"the texts may take {steps:,} tokens of source and translation with {num_beams} beams each, more than "
                f"{self._settings.max_work:,} in all; send fewer texts, beams or max_new_tokens."
            )
        return work

    def check_terms(
        self, work: int, cells: Sequence[int], tokens: Sequence[int], num_beams: int, max_new_tokens: int | None
    ) -> int:
        """Return the work of translating texts with the terms of a glossary.

        Args:
            work (`int`): the work of the texts without terms, from `check_work`.
            cells (`Sequence[int]`): for each text, the size of the table that the search with terms computes for each
                new token of each beam; see [`PhraseSizes`].
            tokens, num_beams, max_new_tokens: as in `check_work`.

        Raises:
            TooMuchError: if the work exceeds the limit.
        """
        work_of_terms = 0
        for new_tokens, cells_of_text in zip(_most_new_tokens(tokens, max_new_tokens), cells, strict=True):
            work_of_terms += num_beams * math.ceil(new_tokens * cells_of_text / CELLS_PER_TOKEN)
        total_work = work + work_of_terms
        if total_work > self._settings.max_work:
            raise TooMuchError(
                f"with {num_beams} beams the texts may take as much work as {work:,} tokens, and the terms in them as "
                f"much as {work_of_terms:,} more, but the server allows {self._settings.max_work:,} in all; send fewer "
                "terms, fewer or shorter translations of them, fewer texts or fewer beams."
            )
        return total_work

    def _count(self, texts: int) -> None:
        """Add a number of texts, which may be negative, to the texts in flight."""
        self.in_flight += texts
        self._observe(self.in_flight)


def is_short(work: int) -> bool:
    """Return True if a request with this work, as [`TextLimits`] computes it, takes the lane of short requests."""
    return work <= _MOST_WORK_OF_SHORT_REQUEST


def _most_new_tokens(tokens: Sequence[int], max_new_tokens: int | None) -> list[int]:
    """Return the maximum number of tokens that the translation of each text may have."""
    if max_new_tokens:
        return [max_new_tokens] * len(tokens)
    return [number_of_tokens + _USUAL_OFFSET for number_of_tokens in tokens]
