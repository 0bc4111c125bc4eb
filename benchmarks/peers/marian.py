"""transformers' Marian as the same model, with the same dropout."""

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.apps.conversion.hf_marian import copy_to_marian, new_marian
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right


class Marian(nn.Module):
    """`MarianMTModel` and `cross_entropy` over its logits, as the Trainer's label smoothing computes it."""

    def __init__(self, config: VanillaTransformerConfig, attn_implementation: str) -> None:
        super().__init__()
        self.config = config
        self.model = new_marian(config, attn_implementation)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        decoder_input_ids = shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).logits
        return nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), label_smoothing=self.config.label_smoothing
        )

    def copy_weights(self, ours: VanillaTransformerForConditionalGeneration) -> None:
        """Copy the weights of a `VanillaTransformerForConditionalGeneration`."""
        copy_to_marian(ours, self.model)
