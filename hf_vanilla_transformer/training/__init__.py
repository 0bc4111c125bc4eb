"""Batches in, weights out: the recipe of section 5 for stock `Seq2SeqTrainer`."""

from .arguments import PaperTrainingArguments
from .optimization import paper_learning_rate, paper_optimizers


__all__ = ["PaperTrainingArguments", "paper_learning_rate", "paper_optimizers"]
