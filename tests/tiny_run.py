"""Arguments for a run of scripts/train.py that takes a second."""

TINY_RUN = {
    "dataset": "numbers",
    "source": "en",
    "target": "de",
    "max_digits": 2,
    "train_size": 60,
    "bleu_tokenize": "char",
    "vocab_size": 300,
    "num_layers": 1,
    "d_model": 16,
    "d_ff": 16,
    "num_heads": 2,
    "per_device_train_batch_size": 8,
    "warmup_steps": 3,
    "disable_tqdm": True,
}
