"""transformers' Marian as the same model: post-LN, ReLU, one matrix for embeddings and softmax, the same dropout."""

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right


READ_CHANNELS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "shared", "embed_tokens", "lm_head")
WRITE_CHANNELS = ("out_proj", "fc2", "layer_norm")


class Marian(nn.Module):
    """`MarianMTModel` and `cross_entropy` over its logits, as the Trainer's label smoothing computes it."""

    def __init__(self, config: VanillaTransformerConfig, attn_implementation: str) -> None:
        super().__init__()
        self.config = config
        marian = MarianConfig(
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
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            init_std=config.d_model**-0.5,
            max_position_embeddings=config.max_position_embeddings,
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            forced_eos_token_id=None,
            decoder_start_token_id=config.decoder_start_token_id,
        )
        self.model = MarianMTModel._from_config(marian, attn_implementation=attn_implementation)
        for module in self.model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.layer_norm_eps

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        decoder_input_ids = shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits
        return nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), label_smoothing=self.config.label_smoothing
        )

    def copy_weights(self, ours: VanillaTransformerForConditionalGeneration) -> None:
        """Take over our weights, with channels in Marian's order: all sines of a position first, then all cosines."""
        d_model = self.config.d_model
        channels = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
        state = {}
        for name, weight in ours.state_dict().items():
            if any(part in name for part in READ_CHANNELS):
                weight = weight[:, channels]
            elif any(part in name for part in WRITE_CHANNELS):
                weight = weight[channels]
            state[name] = weight
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        missing = [name for name in missing if "embed_positions" not in name and name != "final_logits_bias"]
        if missing or unexpected:
            raise ValueError(
                f"Marian's weights are others than ours: {missing} are missing, {unexpected} are too many."
            )
