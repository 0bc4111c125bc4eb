"""Arguments for runs of `train` that take a second, and what tests read from such runs."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import yaml

from hf_vanilla_transformer import load_pairs


TINY_RUN = {
    "dataset_name": "numbers",
    "source_lang": "en",
    "target_lang": "de",
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
    # The same precision on every machine.
    "bf16": False,
    # An untrained model would generate up to the limit of source + 50 tokens.
    "max_new_tokens": 12,
}


def write_recipe(settings: dict[str, Any], folder: Path, **changes: Any) -> list[str]:
    """The command line of a run in a folder, by a file of arguments there."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**settings, "output_dir": str(folder / "run"), **changes}))
    return ["--config", str(path)]


TINY = {**TINY_RUN, "target_lang": "fr", "max_steps": 6, "save_steps": 3}
recipe = partial(write_recipe, TINY)


def lines(translations: list[str]) -> str:
    return "".join(f"{' '.join(translation.splitlines())}\n" for translation in translations)


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def assert_is_mean(weights, folders):
    parts = [weights_of(folder) for folder in folders]
    assert weights.keys() == parts[0].keys()
    for name, weight in weights.items():
        assert np.array_equal(weight, np.mean([part[name] for part in parts], axis=0, dtype=float).astype(weight.dtype))
    assert len(parts) == 1 or any((parts[0][name] != parts[-1][name]).any() for name in weights)


def evaluated(folder: Path) -> dict:
    """Arguments of a run with validation pairs, which the built-in corpus has only where there are more numbers."""
    train, test = load_pairs("numbers", source="en", target="fr", max_digits=2, train_size=60).values()
    files = {"train_file": train, "validation_file": test, "test_file": train.select(range(8))}
    for name, pairs in files.items():
        pairs.select_columns(["source", "target"]).rename_columns({"source": "en", "target": "fr"}).to_csv(
            folder / f"{name}.csv"
        )
    paths = {name: str(folder / f"{name}.csv") for name in files}
    return {"dataset_name": None, **paths, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
