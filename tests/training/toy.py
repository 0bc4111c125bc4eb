"""Tasks that a tiny model learns in seconds, and a recorder of gradients."""

import random

from datasets import Dataset
from transformers import TrainerCallback


def random_words(count, seed=0, longest=8, vocabulary=300):
    """Sequences of random ids of ordinary tokens."""
    generator = random.Random(seed)
    return [[generator.randrange(3, vocabulary) for _ in range(generator.randint(2, longest))] for _ in range(count)]


def copy_task(tokenizer, count, seed=0, reverse=False, longest=8, vocabulary=None):
    """Tokenized pairs whose target is the source, or the source reversed."""
    words = random_words(count, seed, longest, vocabulary or len(tokenizer))
    eos = [tokenizer.eos_token_id]
    rows = [
        {"input_ids": row + eos, "attention_mask": [1] * (len(row) + 1), "labels": row[:: -1 if reverse else 1] + eos}
        for row in words
    ]
    return Dataset.from_list(rows)


class Gradients(TrainerCallback):
    """Keeps the gradients of the first update."""

    def __init__(self):
        self.kept = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self.kept = {name: weight.grad.clone() for name, weight in model.named_parameters()}
