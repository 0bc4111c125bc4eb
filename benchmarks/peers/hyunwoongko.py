"""The structure of github.com/hyunwoongko/transformer, reimplemented: widely read teaching code.

It differs from the paper's model and from fast implementations: attention and layer norms are unfused, scores are
masked with -10000, the target's padding mask is on the query axis, the causal mask is built on the CPU at every step,
nothing is tied, embeddings are not scaled, the output projection has a bias, the feed-forward network has dropout
inside, and the loss has no label smoothing.
"""

import math

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import shift_right, sinusoidal_positions


MASKED_SCORE = -10000
EPSILON = 1e-12


class WrittenOutNorm(nn.Module):
    """Layer normalization computed from mean and variance, unfused."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.shift = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, unbiased=False, keepdim=True)
        return self.gain * ((x - mean) / torch.sqrt(variance + EPSILON)) + self.shift


class UnfusedAttention(nn.Module):
    """Four projections; scores, mask, softmax and weighted sum are separate operations."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(memory)), self._heads(self.value(memory))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, MASKED_SCORE)
        heads = torch.softmax(scores, dim=-1) @ v
        return self.output(heads.transpose(1, 2).contiguous().flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """A post-LN encoder layer, or a decoder layer if it has cross-attention."""

    def __init__(self, config: VanillaTransformerConfig, cross: bool) -> None:
        super().__init__()
        attentions = 2 if cross else 1
        self.attentions = nn.ModuleList(UnfusedAttention(config.d_model, config.num_heads) for _ in range(attentions))
        self.feed_forward = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.d_ff, config.d_model),
        )
        self.norms = nn.ModuleList(WrittenOutNorm(config.d_model) for _ in range(attentions + 1))
        self.dropouts = nn.ModuleList(nn.Dropout(config.dropout) for _ in range(attentions + 1))

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        memory: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        sources = [(x, mask)] if memory is None else [(x, mask), (memory, memory_mask)]
        for attention, norm, dropout, (attended, its_mask) in zip(
            self.attentions, self.norms, self.dropouts, sources, strict=False
        ):
            x = norm(x + dropout(attention(x, attended, its_mask)))
        return self.norms[-1](x + self.dropouts[-1](self.feed_forward(x)))


class Hyunwoongko(nn.Module):
    """Two stacks with separate embeddings, and an untied output projection."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.target_embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        positions = torch.arange(config.max_position_embeddings)
        self.register_buffer("positions", sinusoidal_positions(positions, config.d_model).float(), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Layer(config, cross=False) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, cross=True) for _ in range(config.decoder_layers))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_uniform_(parameter)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pad = self.config.pad_token_id
        target = shift_right(labels, pad, self.config.decoder_start_token_id)
        source_mask = (input_ids != pad)[:, None, None, :]
        target_mask = (target != pad)[:, None, :, None] & self._causal_mask(target)
        x = self._embed(self.source_embedding, input_ids)
        for layer in self.encoder:
            x = layer(x, source_mask)
        y = self._embed(self.target_embedding, target)
        for layer in self.decoder:
            y = layer(y, target_mask, x, source_mask)
        targets = labels.masked_fill(labels == -100, pad)
        return nn.functional.cross_entropy(self.lm_head(y).flatten(0, 1), targets.flatten(), ignore_index=pad)

    def _causal_mask(self, target: torch.Tensor) -> torch.Tensor:
        length = target.shape[1]
        return torch.ones(length, length).tril().bool().to(target.device)

    def _embed(self, embedding: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(embedding(ids) + self.positions[: ids.shape[1]])
