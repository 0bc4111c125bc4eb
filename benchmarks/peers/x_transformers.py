"""x-transformers' encoder and decoder, as close to the paper's model as their options allow.

Equal: post-LN, ReLU, tied embeddings, dropout on embeddings and sub-layer outputs. Different: attention has no biases,
sinusoids put all sines first and have a learned scale, and logits are divided by sqrt(d_model) instead of multiplying
the embeddings by it.
"""

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right


class XTransformers(nn.Module):
    """Two `TransformerWrapper`s assembled as in `XTransformer`, which cannot tie the output projection.

    Raises:
        ImportError: if x-transformers is not installed.
    """

    def __init__(self, config: VanillaTransformerConfig, flash: bool) -> None:
        super().__init__()
        from x_transformers import Decoder, Encoder, TransformerWrapper

        self.config = config
        layers = {
            "dim": config.d_model,
            "heads": config.num_heads,
            "attn_dim_head": config.key_dim,
            "attn_flash": flash,
            "attn_sublayer_dropout": config.dropout,
            "ff_mult": config.d_ff / config.d_model,
            "ff_custom_activation": nn.ReLU(),
            "ff_sublayer_dropout": config.dropout,
            "pre_norm": False,
        }
        decoder_layers = {**layers, "cross_attend": True, "cross_attn_sublayer_dropout": config.dropout}
        wrapper = {
            "num_tokens": config.vocab_size,
            "max_seq_len": config.max_position_embeddings,
            "scaled_sinu_pos_emb": True,
            "emb_dropout": config.dropout,
        }
        encoder = Encoder(depth=config.encoder_layers, **layers)
        decoder = Decoder(depth=config.decoder_layers, **decoder_layers)
        self.encoder = TransformerWrapper(attn_layers=encoder, return_only_embed=True, **wrapper)
        shared = self.encoder.token_emb
        self.decoder = TransformerWrapper(attn_layers=decoder, token_emb=shared, tie_embedding=True, **wrapper)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        decoder_input_ids = shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
        mask = attention_mask.bool()
        encoded = self.encoder(input_ids, mask=mask)
        logits = self.decoder(decoder_input_ids, context=encoded, context_mask=mask)
        return nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), label_smoothing=self.config.label_smoothing
        )
