"""The best tokens of large vocabularies on CPUs, by groups of tokens."""

import torch

from ..model.beam_search import top_tokens
from ..model.operations import plain


# Tokens per group, and the number of scores from which a search by groups is faster.
_GROUP = 64
_FEWEST_SCORES = 2**17


def top_tokens_by_groups(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute [`~.beam_search.top_tokens`] on CPUs by groups: torch's topk scans each element.

    The best tokens are in the groups with the largest maxima, or among the tokens after the last whole group.

    Args:
        scores (`torch.FloatTensor` of shape `(rows, vocabulary)`): of the next token.
        count (`int`): number of tokens.

    Returns:
        Their scores and their ids, both `(rows, count)`.
    """
    rows, vocabulary = scores.shape
    is_large = scores.numel() >= _FEWEST_SCORES and vocabulary >= _GROUP * count
    if scores.device.type != "cpu" or not is_large:
        return plain(top_tokens)(scores, count)
    tokens_in_groups = vocabulary // _GROUP * _GROUP
    maxima = scores[:, :tokens_in_groups].unflatten(1, (-1, _GROUP)).amax(dim=2)
    _, groups = plain(top_tokens)(maxima, count)
    ids_in_groups = groups[..., None] * _GROUP + torch.arange(_GROUP, device="cpu")
    ids_after_groups = torch.arange(tokens_in_groups, vocabulary, device="cpu").expand(rows, -1)
    ids = torch.cat([ids_in_groups.flatten(1), ids_after_groups], dim=1)
    best_scores, best = plain(top_tokens)(scores.gather(1, ids), count)
    return best_scores, ids.gather(1, best)
