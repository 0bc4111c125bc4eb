"""Train models as in section 5 of the paper, with the Hugging Face `Seq2SeqTrainer`."""
