"""Runs `train` several times; tests run it in a process of its own, in which nobody is logged in.

Usage: python -I train_and_push.py FOLDER

What each run printed, or the error that ended it, is in FOLDER/results.json.
"""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[3]))

import torch

from hf_vanilla_transformer.apps.cli import train
from tests.apps.cli.tiny_run import TINY_RUN


TINY = {
    **TINY_RUN,
    "max_steps": 4,
    "save_steps": 2,
    "use_cpu": True,
}
PUSH = ("--push_to_hub", "--hub_model_id")


def run(name: str, *arguments: str) -> str:
    """Train; returns what was printed, with the error that ended it, if any."""
    settings = [word for key, value in {**TINY, "output_dir": name}.items() for word in (f"--{key}", str(value))]
    torch.manual_seed(0)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            train.main([*settings, *arguments])
    except SystemExit as error:
        return f"{printed.getvalue()}{error.code}"
    return printed.getvalue()


def main() -> None:
    """Runs that end before they train, and runs that push."""
    os.chdir(sys.argv[1])
    refused = {
        "unreachable": ("user/refused", "--token", "hf_writer"),
        "no-token": ("user/refused",),
        "wrong-token": ("user/refused", "--token", "hf_wrong"),
        "reader": ("user/refused", "--token", "hf_reader"),
        "reader-of-what-is-there": ("user/there", "--token", "hf_reader"),
        "someone-else": ("other/refused", "--token", "hf_writer"),
        "no-data": ("user/refused", "--token", "hf_writer", "--train_file", "nope.en", "nope.de"),
        "public": ("user/there", "--token", "hf_writer", "--hub_private_repo", "true"),
        "licence": ("user/licence", "--token", "hf_writer", "--license", "my own"),
    }
    results = {name: run(name, *PUSH, *arguments) for name, arguments in refused.items()}
    token = ("--token", "hf_writer")
    own = ("--license", "cc-by-4.0", "--hub_revision", "small")
    results["whole"] = run("whole", *PUSH, "user/whole", *token, *own)
    private = ("--hub_private_repo", "true", "--max_steps", "1")
    results["named-by-its-folder"] = run("named-by-its-folder", "--push_to_hub", *token, *private)
    results["every-save"] = run("every-save", *PUSH, "user/every-save", *token, "--hub_strategy", "every_save")
    pairs = ("--dataset_name", "user/pairs", "--eval_strategy", "steps", "--eval_steps", "2")
    whole = ("--model_name_or_path", str(Path("whole").resolve()))
    best = ("--metric_for_best_model", "loss", "--hub_strategy", "checkpoint", "--hub_always_push", "true")
    folder = str(Path("checkpoints").resolve())
    results["checkpoints"] = run(folder, *PUSH, "user/checkpoints", *token, *pairs, *whole, *best)
    results["cut off"] = run("cut off", *PUSH, "user/cut", *token)
    fine_tuned = ("--model_name_or_path", "user/every-save", "--max_steps", "1")
    results["from-the-hub"] = run("from-the-hub", *PUSH, "user/from-the-hub", *token, "--dataset_name", "user/pairs")
    results["fine-tuned"] = run("fine-tuned", *PUSH, "user/fine-tuned", *token, *fine_tuned)
    resumed = ("--resume_from_checkpoint", "last", "--max_steps", "2")
    results["resumed"] = run("fine-tuned", *PUSH, "user/fine-tuned", *token, *resumed)
    Path("results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
