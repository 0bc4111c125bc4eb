"""What is tortured: each job writes into a folder, and the same call, made again, completes what is missing."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from hf_vanilla_transformer import average_checkpoints
from hf_vanilla_transformer.apps.cli import train, translate


MODEL = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
SENTENCES = "".join(f"{tens} {ones}\n" for tens in ("twenty", "thirty", "forty") for ones in ("one", "two", "six"))
TRAINING = {
    "dataset_name": "numbers",
    "source_lang": "en",
    "target_lang": "de",
    "max_digits": 2,
    "train_size": 60,
    "tokenizer_name": MODEL,
    "config_overrides": '{"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2}',
    "per_device_train_batch_size": 8,
    "max_steps": 6,
    "save_steps": 1,
    "save_total_limit": 2,
    "warmup_steps": 3,
    "logging_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "disable_tqdm": True,
    "max_new_tokens": 4,
    "resume_from_checkpoint": "auto",
    "average_last": 2,
}


def command(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def train_a_model(folder: Path) -> None:
    train.main(command({**TRAINING, "output_dir": folder / "run", "results": folder / "results.json"}))


def average(folder: Path) -> None:
    """As the command line's `average`, but a complete output is not an error."""
    if not JOBS["average"].is_complete(folder):
        average_checkpoints([MODEL], folder / "average")


def translate_a_file(folder: Path) -> None:
    translate.CHUNK_SIZE = 2
    paths = {"input": folder.with_name("in.txt"), "output": folder / "out.txt"}
    translate.main(command({"model_name_or_path": MODEL, "max_new_tokens": 8, "num_beams": 1, **paths}))


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


@dataclass
class Job:
    """A job, the file that tells that it has ended, and what must be equal each time."""

    run: Callable[[Path], None]
    last_file: str
    result: Callable[[Path], object]

    def is_complete(self, folder: Path) -> bool:
        return (folder / self.last_file).exists()


JOBS = {
    "train": Job(train_a_model, "results.json", lambda folder: weights_in(folder / "run")),
    "average": Job(average, "average/model.safetensors", lambda folder: weights_in(folder / "average")),
    "translate": Job(translate_a_file, "out.txt", lambda folder: (folder / "out.txt").read_text(encoding="utf-8")),
}


def are_equal(first: object, second: object) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    return first == second


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.with_name("in.txt").write_text(SENTENCES, encoding="utf-8")
