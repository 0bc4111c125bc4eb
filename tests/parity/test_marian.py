"""The model equals transformers' MarianMTModel with the same weights.

Marian's sinusoids are the same numbers in another channel order (all sines, then all cosines), so every weight that
reads or writes a model channel is permuted.
"""

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from tests.conftest import pad, sentences, small_model


def as_marian(model):
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            dropout=0.0,
        )
    ).eval()
    channels = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    state = {}
    for name, weight in model.state_dict().items():
        state[name] = permute(name, weight, channels)
    missing, unexpected = marian.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("embed_positions" in name or "final_logits_bias" in name for name in missing)
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return marian


def permute(name, weight, channels):
    reads_channels = any(part in name for part in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight"))
    reads_channels = reads_channels or any(part in name for part in ("shared", "embed_tokens", "lm_head"))
    writes_channels = any(part in name for part in ("out_proj", "fc2", "layer_norm"))
    if reads_channels:
        return weight[:, channels]
    return weight[channels] if writes_channels else weight


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
def test_logits_with_padding(attn_implementation):
    model = small_model(d_k=None, d_v=None, attn_implementation=attn_implementation)
    marian = as_marian(model)
    source, mask = pad(sentences(9, 4))
    target = torch.stack(sentences(6, 6, seed=1))
    with torch.no_grad():
        expected = marian(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        actual = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.1
