"""Batches of random tokens, and the number of tokens in a batch."""

import torch

from benchmarks.support.training_implementations import Batch


FIRST_TOKEN_ID = 3
# Lengths in a padded batch, as shares of its longest sentence.
SHORTEST = 0.8


def equal_batch(length: int, tokens_per_batch: int, vocab_size: int) -> Batch:
    """A batch of random tokens without padding; all sources and targets have one length."""
    generator = torch.Generator().manual_seed(0)
    shape = (max(tokens_per_batch // length, 1), length)
    source = torch.randint(FIRST_TOKEN_ID, vocab_size, shape, generator=generator)
    target = torch.randint(FIRST_TOKEN_ID, vocab_size, shape, generator=generator)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


def padded_batch(length: int, tokens_per_batch: int, vocab_size: int, seed: int) -> Batch:
    """A batch of random tokens with sentences of similar lengths, padded to the longest possible on both sides."""
    generator = torch.Generator().manual_seed(seed)
    shape = (max(tokens_per_batch // length, 1), length)

    def side() -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(int(SHORTEST * length), length + 1, (shape[0], 1), generator=generator)
        return torch.randint(FIRST_TOKEN_ID, vocab_size, shape, generator=generator), torch.arange(length) < lengths

    (source, mask), (target, is_target) = side(), side()
    return {
        "input_ids": source.masked_fill(~mask, 0),
        "attention_mask": mask.long(),
        "labels": target.masked_fill(~is_target, -100),
    }


def target_tokens(batch: Batch) -> int:
    """Target tokens that are not padding."""
    return int((batch["labels"] != -100).sum())
