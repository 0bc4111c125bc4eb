"""Choose the length penalty and the stopping rule of beam search that give the best BLEU on validation pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..translation.translate import translate
from .evaluate import describe_search
from .metrics import score_translations
from .scoring_arguments import ScoringArguments


# Length penalties (alpha) to try. Section 6.1 uses 0.6. In our experiments, the best values are between 1.0 and 1.7.
ALPHAS = (0.6, 1.0, 1.5)
# Values of `early_stopping` to try. The first one is the paper's rule.
STOPPING_RULES: tuple[str | bool, ...] = ("never", True)
# Maximum number of validation pairs for the choice. Using more takes longer and hardly changes the choice.
PAIRS_TO_CHOOSE_SEARCH = 500


def choose_search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    scoring: ScoringArguments,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose the length penalty and the stopping rule with which beam search reaches the highest BLEU.

    First, each length penalty is tried together with the first stopping rule. Then each stopping rule is tried together
    with the best length penalty. If several values have the same BLEU, the first one is chosen, so the paper's values,
    which come first in the lists, are preferred.

    Args:
        model (`PreTrainedModel`): model that translates. Its `generation_config` supplies the other search settings.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        pairs (`Dataset`): validation pairs with columns `source` and `target`.
        scoring (`ScoringArguments`): how to compute BLEU.
        **options: other arguments of `generate()`. A `length_penalty` or an `early_stopping` among them is kept.

    Returns:
        `dict`: the chosen `length_penalty` and `early_stopping`.
        `dict`: the BLEU of each search that was tried. The keys are descriptions of the searches.
    """
    length_penalties = _list_candidates("length_penalty", ALPHAS, options)
    stopping_rules = _list_candidates("early_stopping", STOPPING_RULES, options)
    comparison = _SearchComparison(model, tokenizer, pairs, scoring)

    searches_with_first_rule = []
    for length_penalty in length_penalties:
        searches_with_first_rule.append(
            {**options, "length_penalty": length_penalty, "early_stopping": stopping_rules[0]}
        )
    best_length_penalty = comparison.find_best(searches_with_first_rule)["length_penalty"]

    searches_with_best_penalty = []
    for rule in stopping_rules:
        searches_with_best_penalty.append({**options, "length_penalty": best_length_penalty, "early_stopping": rule})
    best_rule = comparison.find_best(searches_with_best_penalty)["early_stopping"]

    best_search = {"length_penalty": best_length_penalty, "early_stopping": best_rule}
    return best_search, comparison.bleu_by_description


def _list_candidates(
    name: str, defaults: Sequence[str | float], options: Mapping[str, str | float]
) -> Sequence[str | float]:
    """Return the values to try for a search setting: only the caller's if there is one, and otherwise the defaults."""
    if name in options:
        return [options[name]]
    return defaults


@dataclass
class _SearchComparison:
    """A comparison of search settings. A model translates the same sentence pairs with each search, and BLEU decides.

    Args:
        model, tokenizer, pairs, scoring: see [`choose_search`].
        bleu_by_description: the BLEU of each search that was tried. The keys are results of `describe_search`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pairs: Dataset
    scoring: ScoringArguments
    bleu_by_description: dict[str, float] = field(default_factory=dict)

    def find_best(self, searches: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the search with the highest BLEU. If several searches are equally good, return the first of them.

        Args:
            searches: arguments of `generate()` for each search.
        """
        # `max` returns the first of several equal items.
        return max(searches, key=self._find_bleu)

    def _find_bleu(self, search: dict[str, Any]) -> float:
        """Return the BLEU of a search. Translate the pairs only if this search has not been tried yet."""
        description = describe_search(self.model, search)
        if description in self.bleu_by_description:
            return self.bleu_by_description[description]
        # `[:]` reads the whole column into a list.
        sources = self.pairs["source"][:]
        references = self.pairs["target"][:]
        translations = translate(self.model, self.tokenizer, sources, **search)
        # The options are `tokenize` and `lowercase`.
        scoring_options = self.scoring.options(self.pairs)
        scores = score_translations(translations, references, metrics=["bleu"], **scoring_options)
        self.bleu_by_description[description] = scores["bleu"]
        return scores["bleu"]
