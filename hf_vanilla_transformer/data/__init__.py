"""Load sentence pairs, clean and tokenize them, and group them into training batches."""
