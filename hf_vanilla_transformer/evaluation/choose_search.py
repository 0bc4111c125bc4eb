"""The length penalty and the stopping rule of a model's search, chosen by BLEU on validation pairs."""

from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..translation.translate import translate
from .evaluate import describe_search
from .metrics import score_translations
from .scoring_arguments import ScoringArguments


# Values of alpha (section 6.1; the paper's is 0.6). Those of the best runs here lie between 1.0 and 1.7.
ALPHAS = (0.6, 1.0, 1.5)
# Values of `early_stopping`; the first one is the paper's.
STOPPING_RULES: tuple[str | bool, ...] = ("never", True)
# More pairs would take longer and hardly change the choice.
PAIRS_TO_CHOOSE_SEARCH = 500


def choose_search(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Dataset, scoring: ScoringArguments, **given: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose `length_penalty`, then `early_stopping`; of equal scores the first one wins, so the paper's settings.

    Args:
        model (`PreTrainedModel`): with the search that is varied in its `generation_config`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        pairs (`Dataset`): validation pairs with columns `source` and `target`.
        scoring (`ScoringArguments`): how to compute BLEU.
        **given: other arguments of `generate()`; a length penalty or a stopping rule among them is kept.

    Returns:
        `dict`: the chosen arguments of `generate()`.
        `dict`: BLEU of each search, by the search in words.
    """
    scores: dict[str, float] = {}

    def bleu(search: dict[str, Any]) -> float:
        name = describe_search(model, search)
        if name not in scores:
            found, options = translate(model, tokenizer, pairs["source"][:], **search), scoring.options(pairs)
            scores[name] = score_translations(found, pairs["target"][:], metrics=["bleu"], **options)["bleu"]
        return scores[name]

    alphas = [given["length_penalty"]] if "length_penalty" in given else ALPHAS
    stopping_rules = [given["early_stopping"]] if "early_stopping" in given else STOPPING_RULES
    searches = []
    for alpha in alphas:
        searches.append({**given, "length_penalty": alpha, "early_stopping": stopping_rules[0]})
    # Of equal scores, `max` takes the first one.
    best_alpha = max(searches, key=bleu)["length_penalty"]
    searches = []
    for rule in stopping_rules:
        searches.append({**given, "length_penalty": best_alpha, "early_stopping": rule})
    best_rule = max(searches, key=bleu)["early_stopping"]
    return {"length_penalty": best_alpha, "early_stopping": best_rule}, scores
