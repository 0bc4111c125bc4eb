"""The length penalty and the stopping rule of a model's search, chosen by BLEU on validation pairs."""

from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .evaluate import describe_search, evaluate
from .scoring_arguments import ScoringArguments


# Values of alpha (section 6.1; the paper's is 0.6). Those of the best runs here lie between 1.0 and 1.7.
ALPHAS = (0.6, 1.0, 1.5)
# More pairs would take longer and hardly change the choice.
PAIRS_OF_A_CHOICE = 500


def choose_search(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Dataset, scoring: ScoringArguments, **given: Any
) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose `length_penalty`, then `early_stopping`; of equal scores the first one wins, so the paper's settings.

    The search of the model's `generation_config` is varied, without what is `given` as arguments of `generate()`.

    Returns:
        `dict`: the chosen arguments of `generate()`.
        `dict`: BLEU of each search, by the search in words.
    """
    scores: dict[str, float] = {}

    def bleu(search: dict[str, Any]) -> float:
        found = evaluate(model, pairs, tokenizer, **scoring.options(pairs), **search).scores
        scores[describe_search(model, search)] = found["bleu"]
        return found["bleu"]

    searches = [{"length_penalty": alpha, "early_stopping": "never", **given} for alpha in ALPHAS]
    best = max(searches if "length_penalty" not in given else searches[:1], key=bleu)
    if "early_stopping" not in given:
        stopping = {**best, "early_stopping": True}
        best = max([best, stopping], key=lambda search: scores.get(describe_search(model, search)) or bleu(search))
    return {name: best[name] for name in ("length_penalty", "early_stopping")}, scores
