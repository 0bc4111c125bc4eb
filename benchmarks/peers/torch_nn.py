"""`torch.nn.Transformer` with what it lacks around it: embeddings, positions, the tied softmax, the loss."""

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right, sinusoidal_positions


class TorchNN(nn.Module):
    """The same model: without the norm that torch puts behind either stack, and with dropout where the paper has it."""

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
        """Take over our weights; torch keeps the projections of queries, keys and values in one matrix."""
        state = {"embedding.weight": ours.model.shared.weight}
        for side, stack in (("encoder", ours.model.encoder), ("decoder", ours.model.decoder)):
            for index, layer in enumerate(stack.layers):
                state |= _layer_state(f"transformer.{side}.layers.{index}.", layer)
        self.load_state_dict(state)


def _layer_state(prefix: str, layer: nn.Module) -> dict[str, torch.Tensor]:
    attentions, modules = {"self_attn": layer.self_attn}, {"linear1": layer.fc1, "linear2": layer.fc2}
    norms = [layer.self_attn_layer_norm, layer.final_layer_norm]
    if hasattr(layer, "encoder_attn"):
        attentions["multihead_attn"] = layer.encoder_attn
        norms.insert(1, layer.encoder_attn_layer_norm)
    modules |= {f"norm{number}": norm for number, norm in enumerate(norms, 1)}
    state = {}
    for name, attention in attentions.items():
        modules[f"{name}.out_proj"] = attention.out_proj
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        state[f"{prefix}{name}.in_proj_weight"] = torch.cat([projection.weight for projection in projections])
        state[f"{prefix}{name}.in_proj_bias"] = torch.cat([projection.bias for projection in projections])
    for name, module in modules.items():
        state |= {f"{prefix}{name}.{key}": value for key, value in module.state_dict().items()}
    return state
