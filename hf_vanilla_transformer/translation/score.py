"""Score given translations with a model's log-probabilities."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.generation_settings import length_penalty_of
from ..model.input_checks import check_weights, sides_of
from .concurrent_use import evaluating
from .engine import Engine
from .inference import Inference, forced_decoding


class Score(NamedTuple):
    """The log-probability of a translation and of each of its tokens.

    Args:
        tokens (`list[str]`): the tokens of the translation, ending in `</s>`.
        log_probs (`list[float]`): the log-probability of each token given the tokens before it, in nats.
        total (`float`): the sum of `log_probs`, log P(Y | X).
        normalized (`float`): log P(Y | X) / lp(Y), by which beam search with the model's `generation_config` ranks
            hypotheses.
    """

    tokens: list[str]
    log_probs: list[float]
    total: float
    normalized: float


@torch.inference_mode()
def score(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    target_lang: str | None = None,
) -> list[Score]:
    """Compute the log-probabilities of given translations by forced decoding, with one forward pass per batch.

    Args:
        model (`PreTrainedModel`, or an `Engine` from `load_engine`): runs in evaluation mode; its mode is restored
            afterwards.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        sources, targets (`Iterable[str]`): sentences, and one translation of each sentence.
        tokens_per_batch (`int`): maximum number of source tokens and of target tokens per batch, padding included. A
            longer pair gets a batch of its own.
        show_progress (`bool`): whether to show a progress bar, in pairs.
        target_lang (`str`, *optional*): the language of the targets, as in `translate`.

    Returns:
        `list[Score]`: one score per pair, in the order of the pairs.

    Raises:
        TypeError: if `sources` or `targets` is a single string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the `length_penalty_type` of the model's
            `generation_config` is unknown, the tokenizer belongs to a different model, the model does not translate
            into `target_lang` or needs one, or log-probabilities are NaN because weights are NaN or infinite.
    """
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    tokenized_sources, tokenized_targets = inference.tokenize_pairs(sources, targets)
    length_penalty = length_penalty_of(model.generation_config)
    # The tokenizers of sources and of targets may have different vocabularies.
    _source_tokenizer, target_tokenizer = sides_of(tokenizer)
    # The longest pairs come first, so the scores are collected by the index of their pair, and sorted at the end.
    scores: dict[int, Score] = {}
    with evaluating(model):
        for row, forced_target in forced_decoding(inference, tokenized_sources, tokenized_targets, task="scoring"):
            tokens = target_tokenizer.convert_ids_to_tokens(tokenized_targets[row].token_ids)
            scores[row] = _make_score(tokens, forced_target.log_probs, length_penalty)
            if math.isnan(scores[row].total):
                # If a weight is NaN or infinite, this raises an error that names it.
                check_weights(model)
    return [scores[row] for row in range(len(scores))]


def _make_score(tokens: list[str], log_probs: list[float], length_penalty: Callable[[int], float]) -> Score:
    """Return the score of a translation. `length_penalty` returns lp(Y) for a number of tokens, `</s>` included."""
    total = sum(log_probs)
    normalized = total / length_penalty(len(log_probs))
    return Score(tokens, log_probs, total=total, normalized=normalized)
