"""Find the best tokens in a large vocabulary quickly on CPUs.

`top_tokens_by_groups` replaces the operation `top_tokens`, which beam search calls at every step. torch's `topk` scans
every score, and its cost grows with the number of requested tokens. This module first computes the maximum of each
group of 64 tokens, which is fast, and then scans only the groups with the largest maxima. With 37,000 tokens, the
speedup is 2.9x over `topk` for the 8 best tokens of 256 rows, and 4.3x over `max` for the best token of 64 rows (one
thread of an AMD EPYC with AVX-512).

tests/generation/test_beam_search.py compares it with a sort.
"""

import torch
from torch import Tensor

from ..model.beam_search import top_tokens
from ..model.operations import plain


# The number of tokens per group.
_GROUP = 64
# With at least this many scores, searching by groups is faster. For 4 rows of 10,000 tokens, which is fewer, it took as
# long as `topk`. For 4 rows of 37,000 tokens, `topk` took 2.7 times as long.
_FEWEST_SCORES = 2**17


def top_tokens_by_groups(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the tokens with the highest scores in each row, by groups of tokens if there are many scores on a CPU.

    The result is the same as for [`~.beam_search.top_tokens`]. The `count` best tokens are in the `count` groups with
    the largest maxima, or among the tokens after the last whole group.

    Args:
        scores (`torch.FloatTensor` of shape `(rows, vocabulary)`): scores of the next token.
        count (`int`): number of tokens.

    Returns:
        The scores and the ids of these tokens, best first, both `(rows, count)`.
    """
    rows, vocabulary = scores.shape
    is_large = scores.numel() >= _FEWEST_SCORES and vocabulary >= _GROUP * count
    if scores.device.type != "cpu" or not is_large:
        return plain(top_tokens)(scores, count)

    # The groups with the largest maxima, (rows, count).
    tokens_in_groups = vocabulary // _GROUP * _GROUP
    maxima = scores[:, :tokens_in_groups].unflatten(1, (-1, _GROUP)).amax(dim=2)
    _, groups = plain(top_tokens)(maxima, count)

    # The ids of their tokens and of the tokens after the last whole group, (rows, candidates).
    ids_in_groups = groups[..., None] * _GROUP + torch.arange(_GROUP, device="cpu")
    ids_after_groups = torch.arange(tokens_in_groups, vocabulary, device="cpu").expand(rows, -1)
    ids = torch.cat([ids_in_groups.flatten(1), ids_after_groups], dim=1)

    best_scores, best = plain(top_tokens)(scores.gather(1, ids), count)
    return best_scores, ids.gather(1, best)
