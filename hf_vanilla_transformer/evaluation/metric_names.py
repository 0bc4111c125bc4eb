"""The metrics by name, and the exact match in words."""

from collections.abc import Mapping
from typing import Any


# Metrics of translations, in percent, by the name that `score_translations`, logs and files of results give them.
METRICS = ("bleu", "chrf")
# Metrics of target tokens under teacher forcing: nats per token, and percent. They need no translation.
TOKEN_METRICS = ("loss", "perplexity", "token_accuracy")


def describe_exact_match(scores: Mapping[str, Any]) -> str:
    """Exact match of `score_translations` in percent and as a count; only if all are exact, it is 100.0 %."""
    total = scores["sentences"]
    exact = round(scores["exact_match"] * total / 100)
    percent = scores["exact_match"] if exact == total else min(scores["exact_match"], 99.9)
    return f"{percent:.1f} % ({exact:,} of {total:,})"
