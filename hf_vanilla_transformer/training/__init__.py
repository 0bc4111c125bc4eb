"""Batches in, weights out: the recipe of section 5 for stock `Seq2SeqTrainer`."""
