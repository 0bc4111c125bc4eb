"""Packed attention by torch's flex attention, which is compiled for a mask of blocks of 128 queries and keys."""

from collections.abc import Callable
from functools import cache

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.candidates.packed_attention import PackedSentences


@cache
def _compiled_flex_attention() -> Callable[..., torch.Tensor]:
    return torch.compile(flex_attention, dynamic=True)


def block_mask_of(sentences: PackedSentences) -> BlockMask:
    """Return the blocks in which some query attends to some key."""
    first, last = sentences.keys_of_queries()

    def may_attend(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key >= first[query]) & (key < last[query])

    num_queries = int(sentences.query_bounds[-1])
    num_keys = int(sentences.key_bounds[-1])
    return create_block_mask(may_attend, None, None, num_queries, num_keys, device=str(first.device))


def packed_by_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: BlockMask, scaling: float
) -> torch.Tensor:
    """Compute Eq. 1, `(tokens, heads, d)`, on GPUs."""
    heads_first = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
    output = _compiled_flex_attention()(*heads_first, block_mask=block_mask, scale=scaling)
    return output[0].transpose(0, 1)
