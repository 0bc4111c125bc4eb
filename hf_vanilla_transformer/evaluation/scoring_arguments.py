"""How to compute BLEU, chrF and TER, and the token error rate on request."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..support.build_arguments import option
from ..support.user_errors import InputError


if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class ScoringArguments:
    """How to compute BLEU, chrF and TER; the signature next to each score states it."""

    _argument_group_name = "scoring"

    bleu_tokenize: str | None = option(
        None,
        '"13a" for running text, "none" for tokenized text, "char" for single words. By default "char" for '
        "the built-in corpus, Thai, Lao, Khmer, Burmese and Tibetan, what sacrebleu has for other languages without "
        'spaces, or else "13a".',
    )
    lowercase: bool = option(False, "Ignore case.")
    token_error_rate: bool = option(False, "Edits per token, too (extra g2p).")

    def __post_init__(self) -> None:
        if self.token_error_rate:
            from .metrics import TokenEdits

            TokenEdits()  # Raises without its library.
        if self.bleu_tokenize is None:
            return
        from sacrebleu.metrics import BLEU

        if self.bleu_tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(str(name) for name in BLEU.TOKENIZERS)
            raise InputError(f'bleu_tokenize is "{self.bleu_tokenize}"; choose one of: {known}.')
        # Some tokenizations need an optional dependency; its absence should not show after the training.
        try:
            BLEU(tokenize=self.bleu_tokenize)
        except RuntimeError as error:
            raise InputError(
                f'bleu_tokenize is "{self.bleu_tokenize}": {error} Or give --bleu_tokenize char.'
            ) from error

    def for_target(self, language: str | None) -> "ScoringArguments":
        """The same arguments with the tokenization of a target language without spaces, unless one was given.

        Raises:
            ValueError: if the tokenization needs a library that is not installed.
        """
        from .metrics import find_bleu_tokenization

        return replace(self, bleu_tokenize=self.bleu_tokenize or find_bleu_tokenization(language))

    def options(self, pairs: "Dataset") -> dict[str, Any]:
        """Arguments of `score_translations`, for pairs; translations of the built-in corpus are single words."""
        return {"tokenize": self.bleu_tokenize or _tokenization_of_pairs(pairs), "lowercase": self.lowercase}


def _tokenization_of_pairs(pairs: "Dataset") -> str:
    """Return BLEU's tokenization for pairs whose target language is unknown."""
    from .metrics import ENOUGH_FOR_SCRIPT, choose_bleu_tokenization

    if "number" in pairs.column_names:
        return "char"
    column = "references" if "references" in pairs.column_names else "target"
    if column not in pairs.column_names:
        return "13a"
    return choose_bleu_tokenization(pairs[:ENOUGH_FOR_SCRIPT][column])
