"""Define the command-line options for scoring: how BLEU, chrF, TER and the token error rate are computed."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..support.build_arguments import option
from ..support.user_errors import InputError
from .bleu_tokenization import REFERENCES_TO_DETECT_SCRIPT, choose_bleu_tokenization, find_bleu_tokenization


if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class ScoringArguments:
    """Command-line options that control how metrics are computed, such as the tokenization for BLEU."""

    _argument_group_name = "scoring"

    bleu_tokenize: str | None = option(
        None,
        'Tokenization for BLEU: "13a" for plain text, "none" for tokenized text, "char" for single words. The default '
        'is "char" for the built-in corpus, Thai, Lao, Khmer, Burmese and Tibetan, the tokenization of sacrebleu for '
        'other languages without spaces, and otherwise "13a".',
    )
    lowercase: bool = option(False, "Ignore case.")
    token_error_rate: bool = option(False, "Also compute the token error rate (extra g2p).")

    def __post_init__(self) -> None:
        if self.token_error_rate:
            # Imported here, because this module is also used to parse arguments, and importing the metrics takes long.
            from .metrics import TokenErrorRateScorer

            # If jiwer is missing, this raises the error now instead of after the translation.
            TokenErrorRateScorer()
        if self.bleu_tokenize is not None:
            _check_bleu_tokenization(self.bleu_tokenize)

    def for_target(self, language: str | None) -> "ScoringArguments":
        """Return a copy that uses the BLEU tokenization for a target language, unless the user has set a tokenization.

        Args:
            language: language code of the targets, or None if it is unknown.

        Raises:
            ValueError: if the tokenization needs a library that is not installed.
        """
        return replace(self, bleu_tokenize=self.bleu_tokenize or find_bleu_tokenization(language))

    def options(self, pairs: "Dataset") -> dict[str, Any]:
        """Return the arguments `tokenize` and `lowercase` with which [`score_translations`] scores these pairs."""
        return {"tokenize": self.choose_tokenization(pairs), "lowercase": self.lowercase}

    def choose_tokenization(self, pairs: "Dataset") -> str:
        """Return the BLEU tokenization that the user has set or, by default, one that suits the sentence pairs."""
        if self.bleu_tokenize is not None:
            return self.bleu_tokenize
        # Only the built-in number corpus has this column, and its translations are often single words.
        if "number" in pairs.column_names:
            return "char"
        for column in ("references", "target"):
            if column in pairs.column_names:
                first_pairs = pairs[:REFERENCES_TO_DETECT_SCRIPT]
                return choose_bleu_tokenization(first_pairs[column])
        # Pairs without references are not scored, so any tokenization will do.
        return "13a"


def _check_bleu_tokenization(bleu_tokenize: str) -> None:
    """Raise ValueError if sacreBLEU does not have a tokenization, or if the tokenization needs a missing library."""
    from sacrebleu.metrics import BLEU

    if bleu_tokenize not in BLEU.TOKENIZERS:
        names = ", ".join(str(name) for name in BLEU.TOKENIZERS)
        raise InputError(f'bleu_tokenize is "{bleu_tokenize}"; choose one of: {names}.')
    # Some tokenizations need an optional dependency. If it is missing, this raises the error before the training.
    try:
        BLEU(tokenize=bleu_tokenize)
    except RuntimeError as error:
        raise InputError(f'bleu_tokenize is "{bleu_tokenize}": {error} Or give --bleu_tokenize char.') from error
