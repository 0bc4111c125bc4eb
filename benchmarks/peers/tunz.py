"""The structure of github.com/tunz/transformer-pytorch, reimplemented: tensor2tensor's later layout in plain PyTorch.

It differs from the paper's model: it is pre-LN with a final norm on each stack, attention is unfused and has no biases,
dropout is also on attention weights and after the ReLU, padding embeddings are zero, the decoder starts from a zero
vector, source and target have separate embeddings, and the smoothed loss builds the whole target distribution of each
token.
"""

import math

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig


MASKED_SCORE = -1e9


class UnfusedAttention(nn.Module):
    """Four projections without biases; scores, mask, softmax and weighted sum are separate operations."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (d_model // num_heads) ** -0.5
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(projection.weight)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(memory)), self._heads(self.value(memory))
        q.mul_(self.scale)
        scores = q @ k.transpose(2, 3)
        scores.masked_fill_(mask, MASKED_SCORE)
        heads = self.dropout(torch.softmax(scores, dim=3)) @ v
        return self.output(heads.transpose(1, 2).contiguous().flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """A pre-LN encoder layer, or a decoder layer if it has cross-attention."""

    def __init__(self, config: VanillaTransformerConfig, cross: bool) -> None:
        super().__init__()
        attentions = 2 if cross else 1
        self.attentions = nn.ModuleList(
            UnfusedAttention(config.d_model, config.num_heads, config.dropout) for _ in range(attentions)
        )
        self.feed_forward = nn.Sequential(
            nn.Linear(config.d_model, config.d_ff),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.d_ff, config.d_model),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.d_model, eps=1e-6) for _ in range(attentions + 1))
        self.dropouts = nn.ModuleList(nn.Dropout(config.dropout) for _ in range(attentions + 1))

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        memory: torch.Tensor | None = None,
        memory_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.dropouts[0](self.attentions[0](y, y, mask))
        if memory is not None:
            x = x + self.dropouts[1](self.attentions[1](self.norms[1](x), memory, memory_mask))
        return x + self.dropouts[-1](self.feed_forward(self.norms[-1](x)))


class Tunz(nn.Module):
    """Two stacks with separate embeddings; the output projection is tied to the target's."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.target_embedding = nn.Embedding(config.vocab_size, config.d_model)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=config.d_model**-0.5)
        rates = torch.exp(torch.arange(config.d_model // 2) * -(math.log(10_000) / (config.d_model / 2 - 1)))
        self.register_buffer("rates", rates, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Layer(config, cross=False) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, cross=True) for _ in range(config.decoder_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=1e-6)
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=1e-6)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pad = self.config.pad_token_id
        targets = labels.masked_fill(labels == -100, pad)
        source_mask = (input_ids == pad)[:, None, None, :]
        length = targets.shape[1]
        target_mask = torch.ones(length, length, dtype=torch.bool, device=targets.device).triu(1)

        x = self._embed(self.source_embedding, input_ids, input_ids == pad)
        x = self.dropout(x + self._positions(x.shape[1]))
        for layer in self.encoder:
            x = layer(x, source_mask)
        x = self.encoder_norm(x)

        y = self._embed(self.target_embedding, targets, targets == pad)
        y = nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]
        y = self.dropout(y + self._positions(length))
        for layer in self.decoder:
            y = layer(y, target_mask, x, source_mask)
        logits = self.decoder_norm(y) @ self.target_embedding.weight.t()
        return self._loss(logits.flatten(0, 1), targets.flatten())

    def _embed(self, embedding: nn.Embedding, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scaled = embedding(ids) * self.config.d_model**0.5
        return scaled.masked_fill(padding[:, :, None], 0)

    def _positions(self, length: int) -> torch.Tensor:
        angles = torch.arange(length, dtype=torch.float32, device=self.rates.device)[:, None] * self.rates
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with a target distribution of epsilon / (V - 1) on each wrong token, minus its entropy."""
        vocab_size, epsilon = logits.shape[1], self.config.label_smoothing
        wrong = epsilon / (vocab_size - 1)
        target_distribution = torch.full_like(logits, wrong)
        target_distribution.scatter_(1, targets[:, None], 1 - epsilon)
        losses = -(target_distribution * torch.log_softmax(logits, dim=1)).sum(dim=1)
        entropy = -((1 - epsilon) * math.log(1 - epsilon) + epsilon * math.log(wrong + 1e-20))
        return (losses - entropy).masked_select(targets != self.config.pad_token_id).mean()
