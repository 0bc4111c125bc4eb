"""Load sentence pairs, clean, tokenize and filter them, and make training batches of them."""
