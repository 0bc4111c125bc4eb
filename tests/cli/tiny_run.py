"""Arguments for a run of scripts/train.py that takes a second."""

from pathlib import Path
from typing import Any

import yaml


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
    # What has learned nothing yet would go on to the source's length + 50.
    "max_new_tokens": 12,
}


def write_recipe(settings: dict[str, Any], folder: Path, **changes: Any) -> list[str]:
    """The command line of a run in a folder, by a file of arguments there."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**settings, "output_dir": str(folder / "run"), **changes}))
    return [str(path)]
