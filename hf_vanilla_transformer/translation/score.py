"""`score()`: log-probabilities of given translations."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ..model.generation_settings import length_penalty_of
from ..model.input_checks import check_weights, sides_of
from .concurrent_use import evaluating
from .inference import Inference, forced_decoding


class Score(NamedTuple):
    """The log-probability of a translation.

    Args:
        tokens (`list[str]`): of the translation, ending in `</s>`.
        log_probs (`list[float]`): of each token given the tokens before it, in nats.
        total (`float`): their sum, log P(Y | X).
        normalized (`float`): log P(Y | X) / lp(Y), the score of beam search with the model's `generation_config`.
    """

    tokens: list[str]
    log_probs: list[float]
    total: float
    normalized: float


@torch.inference_mode()
def score(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    target_lang: str | None = None,
) -> list[Score]:
    """Log-probabilities of given translations (forced decoding), from one forward pass per batch.

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): sentences, and one translation of each.
        tokens_per_batch (`int`): maximum number of tokens per batch on each side, padding included; a longer pair is
            its own batch.
        show_progress (`bool`): whether to show a progress bar, in pairs.
        target_lang (`str`, *optional*): as in `translate`.

    Returns:
        `list[Score]`: one per pair, in their order.

    Raises:
        TypeError: if a side is one string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the `length_penalty_type` of the model's
            `generation_config` is unknown, the tokenizer belongs to another model, the model does not translate into
            `target_lang` or needs one, or log-probabilities are NaN because weights are NaN or infinite.
    """
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    _, _, source_ids, target_ids = inference.tokenize_pairs(sources, targets)
    penalty, target_side = length_penalty_of(model.generation_config), sides_of(tokenizer)[1]
    scores: dict[int, Score] = {}
    with evaluating(model):
        for row, (log_probs, _) in forced_decoding(inference, source_ids, target_ids, task="scoring"):
            total = sum(log_probs)
            if math.isnan(total):
                check_weights(model)
            tokens: Any = target_side.convert_ids_to_tokens(target_ids[row])
            scores[row] = Score(tokens, log_probs, total, total / penalty(len(log_probs)))
    return [scores[row] for row in range(len(scores))]
