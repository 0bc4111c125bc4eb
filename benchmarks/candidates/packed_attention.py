"""Attention of many sentences that lie one after the other in one row, without padding.

Queries, keys and values are `(tokens, heads, d)`. Each query attends to a range of keys: its own sentence, the part of
it up to itself, or the source sentence of its target.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackedSentences:
    """Where the sentences of queries and of keys begin, and which keys each query may attend to.

    Args:
        query_bounds, key_bounds (`torch.IntTensor` of shape `(sentences + 1,)`): numbers of tokens before each
            sentence, and at last of all.
        longest_query, longest_key (`int`): tokens of the longest sentence, at least.
        is_causal (`bool`): whether a query attends up to its own position; both sides then have the same sentences.
    """

    query_bounds: torch.Tensor
    key_bounds: torch.Tensor
    longest_query: int
    longest_key: int
    is_causal: bool

    @classmethod
    def from_lengths(
        cls, query_lengths: torch.Tensor, key_lengths: torch.Tensor, *, is_causal: bool
    ) -> "PackedSentences":
        """Make it from the lengths of sentences in tokens, `(sentences,)`; reads them, so a GPU has to finish first."""
        bounds = []
        for lengths in (query_lengths, key_lengths):
            cumulative = lengths.cumsum(dim=0, dtype=torch.int32)
            bounds.append(torch.nn.functional.pad(cumulative, (1, 0)))
        return cls(bounds[0], bounds[1], int(query_lengths.max()), int(key_lengths.max()), is_causal)

    def keys_of_queries(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first key of each query, and the one after its last, both `(queries,)`."""
        sentences = _sentence_of_tokens(self.query_bounds)
        first = self.key_bounds[sentences]
        if self.is_causal:
            last = torch.arange(1, len(sentences) + 1, dtype=torch.int32, device=first.device)
        else:
            last = self.key_bounds[sentences + 1]
        return first, last

    def queries_of_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first query that attends to each key, and the one after the last, both `(keys,)`."""
        sentences = _sentence_of_tokens(self.key_bounds)
        last = self.query_bounds[sentences + 1]
        if self.is_causal:
            first = torch.arange(len(sentences), dtype=torch.int32, device=last.device)
        else:
            first = self.query_bounds[sentences]
        return first, last

    def mask(self) -> torch.Tensor:
        """Return which keys each query may attend to, `(queries, keys)`."""
        first, last = self.keys_of_queries()
        keys = torch.arange(int(self.key_bounds[-1]), device=first.device)
        return (keys >= first[:, None]) & (keys < last[:, None])


PackedAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PackedSentences, float], torch.Tensor]


def _sentence_of_tokens(bounds: torch.Tensor) -> torch.Tensor:
    lengths = bounds.diff()
    sentences = torch.arange(len(lengths), device=bounds.device)
    return torch.repeat_interleave(sentences, lengths)


def packed_by_formula(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sentences: PackedSentences, scaling: float
) -> torch.Tensor:
    """Compute Eq. 1 with the whole matrix of scores; a reference."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * scaling
    scores = scores.masked_fill(~sentences.mask(), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value)


def packed_by_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sentences: PackedSentences, scaling: float
) -> torch.Tensor:
    """Compute Eq. 1 by torch's flash attention for sentences of different lengths; on GPUs, in 16 bits."""
    output, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        sentences.query_bounds,
        sentences.key_bounds,
        sentences.longest_query,
        sentences.longest_key,
        0.0,
        sentences.is_causal,
        False,
        scale=scaling,
    )
    return output


def packed_by_efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sentences: PackedSentences, scaling: float
) -> torch.Tensor:
    """Compute Eq. 1 by torch's memory-efficient attention for sentences of different lengths; on GPUs."""
    no_mask, causal_from_top_left = 0, 1
    output, *_ = torch.ops.aten._efficient_attention_forward(
        query[None],
        key[None],
        value[None],
        None,
        sentences.query_bounds,
        sentences.key_bounds,
        sentences.longest_query,
        sentences.longest_key,
        0.0,
        causal_from_top_left if sentences.is_causal else no_mask,
        True,
        scale=scaling,
    )
    return output[0]
