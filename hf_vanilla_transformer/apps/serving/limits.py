"""Define the server's limits, and check each request against them.

This module limits the number of texts, their lengths, and the work of a request. The work estimates how expensive a
request is to translate: the number of beams times the number of source and target tokens, plus the cost of glossary
terms. Other modules enforce the remaining limits: `http/header_and_body_limits.py` limits the size of a request and the
time in which it must arrive, and `http/routes.py` limits the time until the response.
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


# A document may have this many characters for each token that a text may have. The limit includes tags, because parsing
# them takes time.
_MARKUP_CHARACTERS_PER_TOKEN = 32
# Requests with at most this much work take the lane for short requests. For example, a sentence of 30 tokens, whose
# translation may have 80 tokens, has a work of 440 with 4 beams and of 1,760 with 16 beams. Each request waits for the
# earlier requests in its lane, so a larger value would slow down the shortest requests.
_MOST_WORK_OF_SHORT_REQUEST = 2_000
# If `max_new_tokens` is not set, a translation may be this many tokens longer than its source.
_USUAL_OFFSET = 50


@dataclass(frozen=True)
class ServingSettings:
    """Limits of the server, which the options of `serve` set.

    A request that exceeds a limit is answered with a 4xx status, or with 503 if the server is full or too slow.

    Raises:
        TypeError: if a value is not an integer.
        ValueError: if a value is too small, or `max_texts` exceeds `max_in_flight`.
    """

    _argument_group_name = "limits"

    tokens_per_batch: int = option(4096, "The maximum number of source tokens in a batch, including padding.")
    max_wait_ms: int = option(
        3, "How many milliseconds a text waits for others to share its batch, if no batch of its queue is running."
    )
    max_source_tokens: int = option(1024, "The maximum number of tokens in a text.")
    max_texts: int = option(128, "The maximum number of texts in a request.")
    max_work: int = option(
        200_000,
        "The maximum work of a request: the number of beams times the number of source tokens and possible target "
        "tokens, plus the work of glossary terms.",
    )
    max_in_flight: int = option(512, "The maximum number of texts that are waiting or being translated.")
    max_body_bytes: int = option(1_000_000, "The maximum size of a request's body in bytes.")
    arrival_seconds: int = option(
        10, "How many seconds the headers of a request may take to arrive. The same limit applies to its body."
    )
    request_seconds: int = option(60, "The number of seconds within which a request must be answered.")
    shutdown_seconds: int = option(60, "How many seconds the server waits for unfinished requests when it shuts down.")

    def __post_init__(self) -> None:
        for field in fields(self):
            # A text need not wait for other texts at all. All other limits must be positive.
            smallest = 0 if field.name == "max_wait_ms" else 1
            check_number(field.name, getattr(self, field.name), smallest)
        if self.max_texts > self.max_in_flight:
            raise InputError(
                f"max_texts is {self.max_texts}, but max_in_flight {self.max_in_flight}; such a request would never be "
                "accepted, so lower the one or raise the other."
            )


class TextLimits:
    """Checks the texts of each request against the limits, and counts the texts that are in flight on the server.

    The methods that check texts may be called in any thread. `admit` must be called only in the event loop's thread, so
    the count needs no lock.

    Args:
        settings (`ServingSettings`): the limits.
        observe (`Callable`): called with the number of texts in flight whenever this number changes.

    Attributes:
        in_flight (`int`): the number of texts that are waiting or being translated.
    """

    def __init__(self, settings: ServingSettings, observe: Callable[[int], None]):
        self._settings = settings
        self._observe = observe
        self.in_flight = 0

    @contextmanager
    def admit(self, texts: int) -> Iterator[None]:
        """Count a request's texts as in flight while the `with` block runs.

        Args:
            texts (`int`): the number of texts in the request.

        Raises:
            BusyError: if the server would have more texts in flight than `max_in_flight`.
        """
        limit = self._settings.max_in_flight
        would_exceed_limit = self.in_flight + texts > limit
        if would_exceed_limit:
            reason = f"the server has {self.in_flight} texts in flight, and takes {limit}; retry."
            raise BusyError(reason, retry_seconds=1)
        self._add_in_flight(texts)
        try:
            yield
        finally:
            self._add_in_flight(-texts)

    def check_number_of_texts(self, texts: int) -> None:
        """Raise TooMuchError if a request has more than `max_texts` texts."""
        limit = self._settings.max_texts
        if texts > limit:
            raise TooMuchError(f"the request has {texts} texts; send at most {limit} at once.")

    def check_markup(self, documents: Sequence[str]) -> None:
        """Raise TooMuchError if a document, including its tags, has too many characters."""
        limit = self._settings.max_source_tokens * _MARKUP_CHARACTERS_PER_TOKEN
        longest = max(map(len, documents), default=0)
        if longest > limit:
            raise TooMuchError(f"a text has {longest:,} characters with its tags; send at most {limit:,}.")

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise TooMuchError if a text has more than `max_source_tokens` tokens.

        Args:
            tokens (`Sequence[int]`): the number of source tokens in each text.
        """
        limit = self._settings.max_source_tokens
        longest = max(tokens, default=0)
        if longest > limit:
            raise TooMuchError(f"a text has {longest:,} tokens; split it into texts of at most {limit:,}.")

    def check_work(self, source_lengths: Sequence[int], num_beams: int, max_new_tokens: int | None) -> int:
        """Return a request's work: the beam size times the sum of its source tokens and possible target tokens.

        Args:
            source_lengths (`Sequence[int]`): the number of source tokens in each text.
            num_beams (`int`): the beam size.
            max_new_tokens (`int`, *optional*): the maximum number of tokens in a translation. By default, each
                translation may be 50 tokens longer than its source.

        Raises:
            TooMuchError: if the work exceeds `max_work`.
        """
        total_tokens = sum(source_lengths) + sum(_most_new_tokens(source_lengths, max_new_tokens))
        work = num_beams * total_tokens
        if work > self._settings.max_work:
            raise TooMuchError(
                f"the texts may take {total_tokens:,} tokens of source and translation with {num_beams} beams each, "
                f"more than {self._settings.max_work:,} in all; send fewer texts, beams or max_new_tokens."
            )
        return work

    def check_terms(
        self,
        work_without_terms: int,
        cells_per_token: Sequence[int],
        source_lengths: Sequence[int],
        num_beams: int,
        max_new_tokens: int | None,
    ) -> int:
        """Return a request's total work, including the cost of the glossary terms that its translations must contain.

        Work is counted in tokens of one beam. The search with terms computes a table for each token that it generates,
        and `CELLS_PER_TOKEN` cells of this table count as one token.

        Args:
            work_without_terms (`int`): the result of `check_work`.
            cells_per_token (`Sequence[int]`): for each text, the number of cells in the table that the search computes
                for each new token of each beam; see [`PhraseSizes`].
            source_lengths, num_beams, max_new_tokens: the same values as for `check_work`.

        Raises:
            TooMuchError: if the total work exceeds `max_work`.
        """
        # For each text, the maximum number of tokens in its translation.
        most_new_tokens = _most_new_tokens(source_lengths, max_new_tokens)
        work_of_terms = num_beams * _work_of_terms_per_beam(cells_per_token, most_new_tokens)
        total_work = work_without_terms + work_of_terms
        if total_work > self._settings.max_work:
            raise TooMuchError(
                f"with {num_beams} beams the texts may take as much work as {work_without_terms:,} tokens, and the "
                f"terms in them as much as {work_of_terms:,} more, but the server allows {self._settings.max_work:,} "
                "in all; send fewer terms, fewer or shorter translations of them, fewer texts or fewer beams."
            )
        return total_work

    def _add_in_flight(self, texts: int) -> None:
        """Change the number of texts in flight by `texts`, which may be negative, and pass the result to `observe`."""
        self.in_flight += texts
        self._observe(self.in_flight)


def is_short(work: int) -> bool:
    """Return True if a request belongs in the lane for short requests.

    Args:
        work (`int`): the work of the request, as [`TextLimits`] computes it.
    """
    return work <= _MOST_WORK_OF_SHORT_REQUEST


def _work_of_terms_per_beam(cells: Sequence[int], most_new_tokens: Sequence[int]) -> int:
    """Return the additional work of one beam for the glossary terms in the texts of a request.

    Args:
        cells (`Sequence[int]`): for each text, the number of table cells that are computed for each new token.
        most_new_tokens (`Sequence[int]`): for each text, the maximum number of tokens in its translation.
    """
    work = 0
    for cells_per_token, new_tokens in zip(cells, most_new_tokens, strict=True):
        # Work is counted in tokens, and computing `CELLS_PER_TOKEN` cells costs at most as much as one token.
        work += math.ceil(cells_per_token * new_tokens / CELLS_PER_TOKEN)
    return work


def _most_new_tokens(source_lengths: Sequence[int], max_new_tokens: int | None) -> list[int]:
    """Return the maximum number of tokens in the translation of each text.

    This is `max_new_tokens` for all texts if it is set. Otherwise, it is 50 more than the text's own number of source
    tokens, which is in `source_lengths`.
    """
    if max_new_tokens:
        return [max_new_tokens] * len(source_lengths)
    return [source_length + _USUAL_OFFSET for source_length in source_lengths]
