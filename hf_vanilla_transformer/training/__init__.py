"""Batches in, weights out: the recipe of section 5 for stock `Seq2SeqTrainer`."""

from .arguments import PaperTrainingArguments
from .averaging import average_checkpoints
from .checkpoints import CompleteCheckpoints, last_complete_checkpoint
from .optimization import paper_learning_rate, paper_optimizers


__all__ = [
    "CompleteCheckpoints",
    "PaperTrainingArguments",
    "average_checkpoints",
    "last_complete_checkpoint",
    "paper_learning_rate",
    "paper_optimizers",
]
