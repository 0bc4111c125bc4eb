"""Forced decoding: log-probabilities and cross-attention of given targets."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .engine import Engine
from .inference import Inference


class Forced(NamedTuple):
    """Of one target, the log-probability of each token in nats, and `(heads, target, source)`, on the CPU.

    The cross-attention is that of the requested heads in the step that predicts each target token.
    """

    log_probs: list[float]
    attention: torch.Tensor | None


def forced_decoding(
    inference: Inference,
    sources: list[list[int]],
    targets: list[list[int]],
    heads: Sequence[Sequence[int]] = (),
    task: str = "",
) -> Iterator[tuple[int, Forced]]:
    """Yield the row of each pair with its result, from one forward pass per batch; longest pairs first.

    Token ids are without the token that decoding starts from; no row is empty, and the model is in evaluation mode.
    `heads` are pairs of decoder layer and head, of a model of this package; an engine returns the average of its own
    heads as that of one.
    """
    lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    for batch in inference.batches(lengths, task, "pairs"):
        source_ids, target_ids = ([side[row] for row in batch] for side in (sources, targets))
        yield from zip(batch, _decode(inference, source_ids, target_ids, heads), strict=True)


def _decode(
    inference: Inference, sources: list[list[int]], targets: list[list[int]], heads: Sequence[Sequence[int]]
) -> Iterator[Forced]:
    model = inference.model
    if isinstance(model, Engine):
        attention = [each[None] for each in model.attention(sources, targets)] if heads else [None] * len(targets)
        yield from map(Forced, model.log_probs(sources, targets), attention)
        return
    source, target = (
        inference.tokenizer.pad({"input_ids": side}, return_tensors="pt", padding_side="right").to(model.device)
        for side in (sources, targets)
    )
    labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    options = {"output_hidden_states": True} if heads else {}
    output = model(**source, decoder_input_ids=decoder_input_ids, use_cache=False, **options)
    logits, weights = output.logits, {}
    for layer in {layer for layer, _ in heads}:
        states = output.decoder_hidden_states[layer], output.encoder_last_hidden_state
        weights[layer] = _cross_attention(model.get_decoder().layers[layer], *states, source.attention_mask)
    # Row by row, because all log-probabilities take as much memory as the logits.
    for row, (source_ids, ids) in enumerate(zip(sources, targets, strict=True)):
        log_probs = logits[row].float().log_softmax(dim=-1).gather(-1, target.input_ids[row, :, None])
        chosen = [weights[layer][row, head, : len(ids), : len(source_ids)] for layer, head in heads]
        yield Forced(log_probs[: len(ids), 0].tolist(), torch.stack(chosen).float().cpu() if chosen else None)


def _cross_attention(layer: Any, x: torch.Tensor, source: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """The cross-attention `(batch, heads, target, source)` of a decoder layer, from its input and the encoder's output.

    Asking the model for its attention instead would compute, and keep, that of all layers.
    """
    look_ahead_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()[None, None]
    attended, _ = layer.self_attn(x, attention_mask=look_ahead_mask, output_attentions=True)
    x = layer.add_and_norm(x, attended, layer.self_attn_layer_norm)
    return layer.encoder_attn(x, source, source_mask[:, None, None].bool(), output_attentions=True)[1]
