"""`score()`: log-probabilities of given translations."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..model.generation_settings import length_penalty_of
from ..model.pipeline_vanilla_transformer import check_vocabulary, check_weights, evaluating
from ..model.tokenization_two_vocabularies import sides_of
from ..support.argument_checks import check_number, check_strings
from .forced_decoding import forced_decoding
from .inference_batches import batches


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
    batch_tokens: int = 4096,
    show_progress: bool = False,
) -> list[Score]:
    """Log-probabilities of given translations (forced decoding), from one forward pass per batch.

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): sentences, and one translation of each.
        batch_tokens (`int`): maximum number of tokens per batch on each side, padding included; a longer pair is its
            own batch.
        show_progress (`bool`): whether to show a progress bar, in pairs.

    Returns:
        `list[Score]`: one per pair, in their order.

    Raises:
        TypeError: if a side is one string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the `length_penalty_type` of the model's
            `generation_config` is unknown, the tokenizer belongs to another model, or log-probabilities are NaN because
            weights are NaN or infinite.
    """
    check_number("batch_tokens", batch_tokens, 1)
    check_vocabulary(model.config, tokenizer)
    sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give one target per source.")
    if not sources:
        return []
    source_ids, target_ids = (
        tokenizer(sources, verbose=False).input_ids,
        tokenizer(text_target=targets, verbose=False).input_ids,
    )
    penalty = length_penalty_of(model.generation_config)
    scores: list[Any] = [None] * len(sources)
    progress = tqdm(total=len(sources), desc="scoring", unit=" pairs", disable=not show_progress)
    with evaluating(model), progress:
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        for batch in batches(lengths, batch_tokens):
            sides = ([ids[row] for row in batch] for ids in (source_ids, target_ids))
            for row, (log_probs, _) in zip(batch, forced_decoding(model, tokenizer, *sides), strict=True):
                total = sum(log_probs)
                if math.isnan(total):
                    check_weights(model)
                tokens: Any = sides_of(tokenizer)[1].convert_ids_to_tokens(target_ids[row])
                scores[row] = Score(tokens, log_probs, total, total / penalty(len(log_probs)))
            progress.update(len(batch))
    return scores
