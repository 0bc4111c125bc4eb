"""Attention weights by the formulas in NumPy, which share no code with the package."""

import numpy as np
import pytest
from transformers import PreTrainedModel

from tests.parity import paper_numpy


def attention_by_hand(model: PreTrainedModel, source: list[int], target: list[int]) -> dict[str, np.ndarray]:
    """Weights `(layers, heads, queries, keys)` of the encoder's and decoder's self-attention and of cross-attention.

    Args:
        model: with sinusoidal positions.
        source, target: token ids; the target's begin with the start token.
    """
    recorded: list[np.ndarray] = []

    def attention(q, k, v, allowed):
        weights = paper_numpy.softmax(np.where(allowed, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf))
        recorded.append(weights[0])
        return weights @ v

    config, weights = model.config, {name: weight.double().numpy() for name, weight in model.state_dict().items()}
    states, eps = {}, config.layer_norm_eps
    for side, ids in (("encoder", source), ("decoder", target)):
        matrix = weights[f"model.{side}.embed_tokens.weight"]
        states[side] = paper_numpy.embed(np.array([ids]), matrix, paper_numpy.positional_encoding)
    x, memory = states["decoder"], states["encoder"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_numpy, "attention", attention)
        for layer in range(config.encoder_layers):
            name = f"model.encoder.layers.{layer}"
            memory = paper_numpy.encoder_layer(memory, weights, name, config.num_heads, eps)
        for layer in range(config.decoder_layers):
            name = f"model.decoder.layers.{layer}"
            x = paper_numpy.decoder_layer(x, memory, weights, name, config.num_heads, eps)
    groups = [recorded[start : start + config.num_heads] for start in range(0, len(recorded), config.num_heads)]
    of_decoder = groups[config.encoder_layers :]
    parts = {"encoder": groups[: config.encoder_layers], "decoder": of_decoder[::2], "cross": of_decoder[1::2]}
    return {attention_type: np.array(layers) for attention_type, layers in parts.items()}
