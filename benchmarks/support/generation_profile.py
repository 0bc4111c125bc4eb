"""The parts of a generate() call on CPUs, each timed alone."""

import time
from collections.abc import Callable
from typing import Any

import torch

from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder
from hf_vanilla_transformer.acceleration.prepacked_weights import pack


PARTS = ("encoder", "before the first token", "decoding steps", "matmuls of the steps")


def parts(model: Any, sources: torch.Tensor, beams: int, new_tokens: int) -> dict[str, Callable[[], float]]:
    """For each of `PARTS`, a function that runs it without gradients and returns its seconds.

    The parts are: the encoder; the check of the packed weights, with keys and values of the source; the decoder for
    `new_tokens` tokens of each hypothesis; and the linear layers of these decoding steps alone.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): in evaluation mode.
        sources (`torch.LongTensor` of shape `(batch, source)`): without padding.
        beams (`int`): number of beams.
        new_tokens (`int`): number of decoding steps.
    """
    mask = torch.ones_like(sources)
    states = model.get_encoder()(sources, mask).last_hidden_state
    tokens = torch.full((len(sources) * beams, 1), model.config.decoder_start_token_id)
    layers = [pack(*group) for group in _layers(model)]
    inputs = [torch.randn(len(tokens), group[0].in_features, dtype=states.dtype) for group in _layers(model)]

    def steps() -> float:
        decoder = CPUDecoder(model, states, mask, beams)
        return _seconds(lambda: [decoder(tokens) for _ in range(new_tokens)])

    def matmuls() -> None:
        for _ in range(new_tokens):
            for layer, x in zip(layers, inputs, strict=True):
                layer(x)

    timed = (
        lambda: _seconds(lambda: model.get_encoder()(sources, mask)),
        lambda: _seconds(lambda: CPUDecoder(model, states, mask, beams)),
        steps,
        lambda: _seconds(matmuls),
    )
    return dict(zip(PARTS, timed, strict=True))


def _layers(model: Any) -> list[tuple[Any, ...]]:
    """Linear layers of a decoding step; those computed in one matmul are one group."""
    groups: list[tuple[Any, ...]] = []
    for layer in model.get_decoder().layers:
        own, cross = layer.self_attn, layer.encoder_attn
        groups += [(own.q_proj, own.k_proj, own.v_proj), (own.out_proj,), (cross.q_proj,), (cross.out_proj,)]
        groups += [(layer.fc1,), (layer.fc2,)]
    return [*groups, (model.lm_head,)]


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
