"""Loading of a tokenizer and a model from a folder or the Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..memory import keep_freed_memory
from .arguments import LoadingArguments


@contextmanager
def explaining_missing_files(name: str | Path) -> Iterator[None]:
    """Explain in one sentence why a model cannot be loaded.

    Raises:
        FileNotFoundError: if a folder holds no model or no tokenizer, or if neither a folder nor a repository exists.
    """
    folder = Path(name)
    for file in ("config.json", "tokenizer_config.json"):
        if folder.is_dir() and not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} holds no {file}; name the folder of a complete saved model.")
    try:
        yield
    except OSError as error:
        if folder.is_dir():
            raise
        raise FileNotFoundError(f"there is no folder {folder}, and the Hub answered: {error}") from error


def load(
    name: str, device: str | torch.device | None = None, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load tokenizer and model.

    Args:
        name: a folder or a name on the Hub.
        device: where the model goes; by default the accelerator if torch finds one.
        **options: arguments of `from_pretrained`.
    """
    with explaining_missing_files(name):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    if device is None:
        # `current_accelerator` names the accelerator that torch was built for, even without one.
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device(device or "cpu")
    if device.type == "cpu":
        # Logits are large; without this the allocator returns their memory to the OS at every step.
        keep_freed_memory()
    return tokenizer, model.to(device)


def load_given(args: LoadingArguments) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load the tokenizer and the model that the command line names."""
    return load(args.model_name_or_path, args.device, **args.options())
