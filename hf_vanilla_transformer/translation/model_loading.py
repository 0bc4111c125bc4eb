"""Loading of a tokenizer and a model from a folder or the Hub, with errors in one sentence."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.vocabularies import vocabularies_of
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.input_checks import check_vocabulary, check_weights
from ..support.argument_checks import reason_of
from ..support.checkpoint_marks import newest_complete
from ..support.memory_tuning import keep_freed_memory
from ..support.safetensors_layout import read_layout
from ..support.user_errors import InputError, UserError
from .ensemble import Ensemble


@contextmanager
def explaining_missing_files(
    name: str | Path, files: Sequence[str] = ("config.json", "tokenizer_config.json")
) -> Iterator[None]:
    """Explain in one sentence why a model or a tokenizer cannot be loaded from a folder or the Hub."""
    folder = Path(name)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    for file in files:
        if folder.is_dir() and not (folder / file).is_file():
            newest = newest_complete(folder)
            advice = f"name one of its checkpoints, such as {newest}" if newest else "name that of a complete model"
            raise FileNotFoundError(f"{folder} holds no {file}; {advice}.")
    try:
        yield
    except OSError as error:
        if folder.is_dir():
            raise
        raise FileNotFoundError(f"there is no folder {folder}, and the Hub answered: {error}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{name} holds a pickle that torch does not load, because it may run code; use a model whose weights are "
            "in model.safetensors."
        ) from error
    except Exception as error:  # Transformers, tokenizers and safetensors raise many kinds, often without a name.
        if isinstance(error, (ImportError, UserError)):
            raise
        reason = reason_of(error)
        raise InputError(reason if str(name) in reason else f"{name} cannot be loaded: {reason}") from error


def load(
    name: str, device: str | torch.device | None = None, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load tokenizer and model by `from_pretrained`; by default onto the accelerator, if torch finds one."""
    with explaining_missing_files(name):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = load_model(name, **options)
        check_vocabulary(model.config, tokenizer)
    # `current_accelerator` names the accelerator that torch was built for, even without one.
    if device is None and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    device = torch.device(device or "cpu")
    if device.type == "cpu":
        # Logits are large; without this the allocator returns their memory to the OS at every step.
        keep_freed_memory()
    on_device: Any = model
    return tokenizer, on_device.to(device)


def load_ensemble(
    names: Sequence[str], device: str | torch.device | None = None, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load as `load` does: the model that one name is of, or an [`Ensemble`] of those that several are of.

    The tokenizer is the first one's; ValueError if another's vocabulary differs.
    """
    loaded = [load(name, device, **options) for name in names]
    vocabularies = [vocabularies_of(tokenizer) for tokenizer, _ in loaded]
    for name, vocabulary in zip(names, vocabularies, strict=True):
        if vocabulary != vocabularies[0]:
            raise InputError(
                f"the tokenizers of {names[0]} and {name} differ, but an ensemble needs models of one vocabulary; give "
                f"models that were trained with one tokenizer (--tokenizer_name {names[0]})."
            )
    models: list[Any] = [model for _, model in loaded]
    return loaded[0] if len(loaded) == 1 else (loaded[0][0], Ensemble(models))


def load_model(name: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model that has all of its weights, of the right shapes and dtypes, and finite."""
    config = AutoConfig.from_pretrained(name, **options)
    if config.model_type == VanillaTransformerConfig.model_type:
        _check_files(name, hasattr(config, "quantization_config"), **options)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    except RuntimeError as error:
        raise InputError(f"{name} cannot be loaded as a {config.model_type}: {reason_of(error)}") from error
    check_weights(model)
    return model


def _check_files(name: str | Path, is_quantized: bool, **options: Any) -> None:
    """Raise ValueError if the files of a model do not have exactly the weights that its config.json describes.

    The model is loaded without memory for weights, because a damaged config.json may describe more than fit.
    """
    if Path(name).is_dir() and not is_quantized:
        read_layout(Path(name))
    with _quiet():
        _, report = AutoModelForSeq2SeqLM.from_pretrained(
            name, **{**options, "device_map": "meta", "output_loading_info": True}
        )
    for key, fault in {"missing_keys": "are not in", "unexpected_keys": "are left over in"}.items():
        if report[key]:
            names = ", ".join(sorted(report[key])[:2])
            raise InputError(
                f"{len(report[key])} weights {fault} the files of {name} ({names}, ...): they belong to another "
                "config.json, or were truncated; use a complete model."
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and reports of transformers."""
    shows_progress, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()
