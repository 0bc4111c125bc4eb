"""The weights under the names of `torch.nn.Transformer` compute what the model computes."""

import pytest
import torch
from torch import nn

from benchmarks.peers.torch_nn_weights import torch_nn_state_dict
from tests.models import small_model


pytestmark = pytest.mark.slow


def test_stacks_are_equal():
    model = small_model(d_k=None, d_v=None, dropout=0.0).eval()
    config = model.config
    transformer = nn.Transformer(
        config.d_model,
        config.num_heads,
        config.encoder_layers,
        config.decoder_layers,
        config.d_ff,
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
    ).eval()
    transformer.encoder.norm = transformer.decoder.norm = None
    transformer.load_state_dict(torch_nn_state_dict(model))
    x, y = torch.randn(2, 7, config.d_model), torch.randn(2, 5, config.d_model)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    expected = transformer(x, y, tgt_mask=causal, tgt_is_causal=True)
    for layer in model.model.encoder.layers:
        x = layer(x)
    for layer in model.model.decoder.layers:
        y = layer(y, x)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("fields", "name"), [({"attention_bias": False}, "attention_bias"), ({"d_k": 3}, "key_dim")])
def test_layers_that_torch_cannot_hold_raise(fields, name):
    with pytest.raises(ValueError, match=f"{name} is .*, but torch.nn.Transformer needs"):
        torch_nn_state_dict(small_model(**{"d_k": None, "d_v": None, **fields}))
