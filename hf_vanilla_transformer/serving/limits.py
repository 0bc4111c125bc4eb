"""What `serve` allows one request, and all of them together."""

from dataclasses import dataclass, field, fields

from ..support.argument_checks import check_number


def _limit(default: int, text: str) -> int:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ServingSettings:
    """Limits of the server. A request beyond one gets a status of 4xx, or 503 if the server is full or too slow.

    Raises:
        TypeError: if a value is not a whole number.
        ValueError: if a value is too small, or `max_texts` exceeds `max_in_flight`.
    """

    _argument_group_name = "limits"

    tokens_per_batch: int = _limit(4096, "Maximum number of source tokens in a batch, padding included.")
    max_wait_ms: int = _limit(3, "Milliseconds that a text waits for others of its batch while the model is idle.")
    max_source_tokens: int = _limit(1024, "Maximum number of tokens of a text.")
    max_texts: int = _limit(128, "Maximum number of texts of a request.")
    max_in_flight: int = _limit(512, "Maximum number of texts that wait or are translated.")
    max_body_bytes: int = _limit(1_000_000, "Maximum length of a request's body.")
    arrival_seconds: int = _limit(10, "Seconds for a request's headers to arrive, and again for its body.")
    request_seconds: int = _limit(60, "Seconds until a request must be answered.")
    shutdown_seconds: int = _limit(60, "Seconds that requests have to finish when the server shuts down.")

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name), 0 if each.name == "max_wait_ms" else 1)
        if self.max_texts > self.max_in_flight:
            raise ValueError(
                f"max_texts is {self.max_texts}, but max_in_flight {self.max_in_flight}; such a request would never be "
                "accepted, so lower the one or raise the other."
            )
