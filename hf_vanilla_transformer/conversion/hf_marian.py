"""This model as transformers' `MarianMTModel`.

Both add the same sinusoids, in another order of the d_model channels: here sines and cosines alternate (section 3.5),
in Marian all sines come first. A permutation of channels moves into the weights exactly: every weight that reads or
writes the residual stream is permuted.
"""

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .requirements import require


# Parts of the names of weights: (output, d_model) reads the residual stream, (d_model, ...) writes it.
_READ = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "shared", "embed_tokens", "lm_head")
_WRITE = ("out_proj", "fc2", "layer_norm")
# Tensors of Marian's that are not weights of this model: sinusoids, and an output bias that is zero.
_COMPUTED = ("embed_positions", "final_logits_bias")


def new_marian(config: VanillaTransformerConfig, attn_implementation: str | None = None) -> MarianMTModel:
    """A `MarianMTModel` of the same architecture, with new weights.

    Args:
        config (`VanillaTransformerConfig`): with tied embeddings and sinusoids.
        attn_implementation (`str`, *optional*): for example `"sdpa"`.

    Raises:
        ValueError: if Marian cannot hold such a model.
    """
    require(
        config,
        "MarianMTModel",
        position_embedding_type="sinusoidal",
        position_offset=0,
        stack_layer_norm=False,
        lm_head_bias=False,
        source_vocab_size=None,
        tie_word_embeddings=True,
        attention_bias=True,
    )
    token_ids = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    marian_config = MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        activation_function=config.activation_function,
        scale_embedding=True,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        init_std=config.d_model**-0.5,
        max_position_embeddings=config.max_position_embeddings,
        forced_eos_token_id=None,
        **{name: getattr(config, name) for name in token_ids},
    )
    marian = MarianMTModel._from_config(marian_config, attn_implementation=attn_implementation)
    # MarianConfig has no field for it.
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = config.layer_norm_eps
    return marian


def copy_to_marian(model: VanillaTransformerForConditionalGeneration, marian: MarianMTModel) -> None:
    """Copy the weights of a model into a `MarianMTModel` of the same architecture, with the channels permuted.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the source.
        marian (`MarianMTModel`): from [`new_marian`].

    Raises:
        ValueError: if the names of the weights differ.
    """
    d_model = model.config.d_model
    channels = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    state = {}
    for name, weight in model.state_dict().items():
        if any(part in name for part in _READ):
            weight = weight[:, channels]
        elif any(part in name for part in _WRITE):
            weight = weight[channels]
        state[name] = weight
    missing, unexpected = marian.load_state_dict(state, strict=False)
    missing = [name for name in missing if not any(part in name for part in _COMPUTED)]
    if missing or unexpected:
        raise ValueError(
            f"MarianMTModel lacks the weights {unexpected} and has {missing} besides; make it with new_marian()."
        )
