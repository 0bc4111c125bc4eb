"""`torch.nn.Transformer` with the parts it lacks: embeddings, positions, the tied output projection, the loss."""

import torch
from torch import nn

from benchmarks.peers.torch_nn_weights import torch_nn_state_dict
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right, sinusoidal_positions


class TorchNN(nn.Module):
    """The same model: without torch's norm after each stack, and with dropout only where the paper applies it."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            layer_norm_eps=config.layer_norm_eps,
            batch_first=True,
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = config.attention_dropout
            if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout.p = config.activation_dropout
        self.dropout = nn.Dropout(config.dropout)
        positions = torch.arange(config.max_position_embeddings)
        self.register_buffer("positions", sinusoidal_positions(positions, config.d_model).float(), persistent=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        decoder_input_ids = shift_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)
        padding = attention_mask == 0
        length = labels.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=labels.device).triu(1)
        x = self.transformer(
            self._embed(input_ids),
            self._embed(decoder_input_ids),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = nn.functional.linear(x, self.embedding.weight)
        return nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), label_smoothing=self.config.label_smoothing
        )

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        scaled = self.embedding(ids) * self.config.d_model**0.5
        return self.dropout(scaled + self.positions[: ids.shape[1]])

    def copy_weights(self, ours: VanillaTransformerForConditionalGeneration) -> None:
        """Copy the weights of a `VanillaTransformerForConditionalGeneration`."""
        self.transformer.load_state_dict(torch_nn_state_dict(ours))
        with torch.no_grad():
            self.embedding.weight.copy_(ours.model.shared.weight)
