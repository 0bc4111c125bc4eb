"""Batches of token ids, and the log-probabilities of given targets."""

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase


def is_engine(model: Any) -> bool:
    """Whether a model runs in another runtime; see `serving.engine`."""
    return hasattr(model, "log_probs")


def batches(lengths: list[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows in batches of at most `batch_tokens` tokens, longest first, so that running out of memory shows at once."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def forced_log_probs(
    model: Any, tokenizer: PreTrainedTokenizerBase, sources: list[list[int]], targets: list[list[int]]
) -> Iterator[list[float]]:
    """Log-probabilities of the tokens of each target of a batch, in nats, from one forward pass.

    Args:
        model (`PreTrainedModel`, or what `load_engine` returns): in evaluation mode.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`list` of `list` of `int`): token ids, without the token that decoding starts from; no row is
            empty.
    """
    if is_engine(model):
        yield from model.log_probs(sources, targets)
        return
    padded = (
        tokenizer.pad({"input_ids": side}, return_tensors="pt", padding_side="right") for side in (sources, targets)
    )
    source, target = (side.to(model.device) for side in padded)
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    # Row by row, because all log-probabilities take as much memory as the logits.
    for row_logits, ids, row in zip(logits, target.input_ids, targets, strict=True):
        yield row_logits.float().log_softmax(dim=-1).gather(-1, ids[:, None])[: len(row), 0].tolist()
