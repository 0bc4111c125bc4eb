"""A layer equals torch.nn's with the same weights (`norm_first=False`)."""

import pytest
import torch
from torch import nn

from tests.models import small_model


pytestmark = pytest.mark.processor

WIDTH = 32


def packed(attention):
    weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    biases = [attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias]
    return {
        "in_proj_weight": torch.cat(weights),
        "in_proj_bias": torch.cat(biases),
        "out_proj.weight": attention.out_proj.weight,
        "out_proj.bias": attention.out_proj.bias,
    }


def torch_state(layer, attentions, norms):
    state = {"linear1": layer.fc1, "linear2": layer.fc2, **norms}
    state = {f"{name}.{key}": value for name, module in state.items() for key, value in module.state_dict().items()}
    for name, attention in attentions.items():
        state |= {f"{name}.{key}": value for key, value in packed(attention).items()}
    return state


def torch_layer(layer_class, config):
    return layer_class(
        config.d_model,
        config.num_heads,
        config.d_ff,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=False,
    )


def test_encoder_layer():
    model = small_model(d_k=None, d_v=None)
    layer = model.model.encoder.layers[1]
    expected = torch_layer(nn.TransformerEncoderLayer, model.config)
    norms = {"norm1": layer.self_attn_layer_norm, "norm2": layer.final_layer_norm}
    expected.load_state_dict(torch_state(layer, {"self_attn": layer.self_attn}, norms))
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(layer(x), expected(x), atol=1e-5, rtol=0)


def test_decoder_layer():
    model = small_model(d_k=None, d_v=None)
    layer = model.model.decoder.layers[2]
    expected = torch_layer(nn.TransformerDecoderLayer, model.config)
    attentions = {"self_attn": layer.self_attn, "multihead_attn": layer.encoder_attn}
    norms = {
        "norm1": layer.self_attn_layer_norm,
        "norm2": layer.encoder_attn_layer_norm,
        "norm3": layer.final_layer_norm,
    }
    expected.load_state_dict(torch_state(layer, attentions, norms))
    x, memory = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    torch.testing.assert_close(
        layer(x, memory), expected(x, memory, tgt_mask=causal, tgt_is_causal=True), atol=1e-5, rtol=0
    )
