"""Choose the length penalty and the stopping rule of a model's beam search by BLEU on validation pairs."""

from collections.abc import Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..translation.translate import translate
from .evaluate import describe_search
from .metrics import score_translations
from .scoring_arguments import ScoringArguments


# Values of alpha, the length penalty. Section 6.1 has 0.6. In our experiments, the best values are between 1.0 and 1.7.
ALPHAS = (0.6, 1.0, 1.5)
# Values of `early_stopping`. The first one is the rule of the paper.
STOPPING_RULES: tuple[str | bool, ...] = ("never", True)
# More validation pairs would take longer and hardly change the choice.
PAIRS_TO_CHOOSE_SEARCH = 500


def choose_search(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    scoring: ScoringArguments,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose first the length penalty and then the stopping rule that give the highest BLEU.

    If several settings have the same score, the first one is chosen, so the settings of the paper are preferred.

    Args:
        model (`PreTrainedModel`): model whose search is chosen; its `generation_config` has the other settings.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        pairs (`Dataset`): validation pairs with columns `source` and `target`.
        scoring (`ScoringArguments`): how to compute BLEU.
        **options: other arguments of `generate()`. If they have `length_penalty` or `early_stopping`, this value is
            kept.

    Returns:
        `dict`: the chosen `length_penalty` and `early_stopping`.
        `dict`: BLEU of each search that was tried, by its description.
    """
    scores: dict[str, float] = {}

    def compute_bleu(search: dict[str, Any]) -> float:
        """Return BLEU of the translations by a search, and note it in `scores`."""
        description = describe_search(model, search)
        # The best search of the first step is tried again in the second one.
        if description not in scores:
            translations = translate(model, tokenizer, pairs["source"][:], **search)
            computed = score_translations(
                translations,
                pairs["target"][:],
                tokenize=scoring.choose_tokenization(pairs),
                lowercase=scoring.lowercase,
                metrics=["bleu"],
            )
            scores[description] = computed["bleu"]
        return scores[description]

    alphas: Sequence[float] = ALPHAS
    if "length_penalty" in options:
        alphas = [options["length_penalty"]]
    stopping_rules: Sequence[str | bool] = STOPPING_RULES
    if "early_stopping" in options:
        stopping_rules = [options["early_stopping"]]

    searches = []
    for alpha in alphas:
        searches.append({**options, "length_penalty": alpha, "early_stopping": stopping_rules[0]})
    # If several searches have the highest score, `max` returns the first one.
    best_alpha = max(searches, key=compute_bleu)["length_penalty"]

    searches = []
    for rule in stopping_rules:
        searches.append({**options, "length_penalty": best_alpha, "early_stopping": rule})
    best_rule = max(searches, key=compute_bleu)["early_stopping"]
    return {"length_penalty": best_alpha, "early_stopping": best_rule}, scores
