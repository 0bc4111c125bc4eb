"""A run of scripts/train.py that takes a second."""

import pytest
import yaml

from tests.invariants.killed import MAX_STEPS, SAVE_STEPS


@pytest.fixture(scope="package")
def recipe(tmp_path_factory):
    """A file of arguments: dropout, more than one epoch, checkpoints in the middle of them."""
    settings = {
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
        "dropout": 0.1,
        "per_device_train_batch_size": 8,
        "max_steps": MAX_STEPS,
        "save_steps": SAVE_STEPS,
        "warmup_steps": 3,
        "disable_tqdm": True,
        "train_sampling_strategy": "random",
        "use_cpu": True,
    }
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)
