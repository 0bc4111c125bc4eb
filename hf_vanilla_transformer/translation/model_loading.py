"""Load a tokenizer and a model from a folder or the Hub, and explain any failure in one sentence."""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Replace loading errors that occur in the block by errors whose message explains the problem in one sentence.

    Errors whose message already says what to do pass unchanged.

    Args:
        name (`str` or `Path`): the folder, or the name on the Hub, that the block loads.
        files (`Sequence[str]`): files that the folder must contain.

    Raises:
        FileNotFoundError: if the folder lacks one of the files, or there is neither a folder nor a Hub repository of
            this name.
        NotADirectoryError: if `name` is a file.
        ValueError: if the files cannot be loaded.
    """
    folder = Path(name)
    _check_folder(folder, files)
    # The last handler matches any exception, so it must follow the specific ones.
    try:
        yield
    except OSError as error:
        if folder.is_dir():
            # The message names the file that cannot be read.
            raise
        raise FileNotFoundError(f"there is no folder {folder}, and the Hub answered: {error}") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{name} holds a pickle that torch does not load, because it may run code; use a model whose weights are "
            "in model.safetensors."
        ) from error
    except (ImportError, UserError):
        # These messages say what to do.
        raise
    except Exception as error:
        # transformers, tokenizers and safetensors raise many exception types.
        raise InputError(_describe_failed_load(name, error)) from error


def _describe_failed_load(name: str | Path, error: Exception) -> str:
    """Return the reason of an error, which often does not name the file or the folder, together with the name."""
    reason = reason_of(error)
    if str(name) in reason:
        return reason
    return f"{name} cannot be loaded: {reason}"


def _check_folder(folder: Path, files: Sequence[str]) -> None:
    """Raise an error if a path is a file, or if it is a folder that lacks one of the given files.

    If the path is a name on the Hub, there is normally no such path on this machine, and nothing is checked.

    Raises:
        FileNotFoundError: if a file is missing.
        NotADirectoryError: if the path is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name the folder that it is in.")
    if folder.is_dir():
        for file in files:
            _check_file(folder, file)


def _check_file(folder: Path, file: str) -> None:
    """Raise FileNotFoundError if a folder lacks a file.

    If the folder contains complete training checkpoints, the message suggests the newest one.
    """
    if (folder / file).is_file():
        return
    newest_checkpoint = newest_complete(folder)
    advice = "name the folder of a complete model"
    if newest_checkpoint is not None:
        advice = f"name one of its checkpoints, such as {newest_checkpoint}"
    raise FileNotFoundError(f"{folder} holds no {file}; {advice}.")


def load(
    name: str, device: str | torch.device | None = None, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load a tokenizer and its model from a folder or the Hub.

    Args:
        name (`str`): the folder, or the name on the Hub.
        device (`str` or `torch.device`, *optional*): device of the model. The default is an accelerator such as a GPU
            if PyTorch finds one, or else the CPU. An empty string means the CPU as well.
        **options: arguments of `from_pretrained`.

    Raises:
        OSError: if files are missing.
        ValueError: if the files cannot be loaded, or the tokenizer belongs to a different model.
    """
    with explaining_missing_files(name):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model: Any = load_model(name, **options)
        check_vocabulary(model.config, tokenizer)
    chosen_device = _choose_device(device)
    if chosen_device.type == "cpu":
        # Logits are large. Without this, the allocator would return their memory to the OS at every step.
        keep_freed_memory()
    return tokenizer, model.to(chosen_device)


def _choose_device(device: str | torch.device | None) -> torch.device:
    """Return the given device, the CPU for an empty string, or the default device for None."""
    if device is None:
        return _default_device()
    if not device:
        return torch.device("cpu")
    return torch.device(device)


def load_ensemble(
    names: Sequence[str], device: str | torch.device | None = None, **options: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load a tokenizer and a model. If several names are given, load all of them as an [`Ensemble`].

    The tokenizer is the first model's. `names` must contain at least one name. Each of them is loaded by [`load`],
    which explains the other arguments and raises further errors.

    Raises:
        ValueError: if the tokenizers have different vocabularies.
    """
    tokenizers = []
    models: list[Any] = []
    for name in names:
        tokenizer, model = load(name, device, **options)
        tokenizers.append(tokenizer)
        models.append(model)
    if len(names) == 1:
        return tokenizers[0], models[0]
    _check_same_vocabularies(names, tokenizers)
    return tokenizers[0], Ensemble(models)


def _check_same_vocabularies(names: Sequence[str], tokenizers: Sequence[PreTrainedTokenizerBase]) -> None:
    """Raise ValueError if the tokenizers of several models have different vocabularies."""
    first_vocabularies = vocabularies_of(tokenizers[0])
    for name, tokenizer in zip(names, tokenizers, strict=True):
        if vocabularies_of(tokenizer) != first_vocabularies:
            raise InputError(
                f"the tokenizers of {names[0]} and {name} differ, but an ensemble needs models of one vocabulary; give "
                f"models that were trained with one tokenizer (--tokenizer_name {names[0]})."
            )


def _default_device() -> torch.device:
    """Return an accelerator such as a GPU if PyTorch finds one, or else the CPU."""
    # `current_accelerator` returns the accelerator that PyTorch was built for, even if the machine has none, so
    # `is_available` is tested first.
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return accelerator


def load_model(name: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model, and check that its weights are complete and finite.

    Args:
        name (`str` or `Path`): the folder, or the name on the Hub.
        **options: arguments of `from_pretrained`.

    Raises:
        ValueError: if weights are missing or unexpected, have the wrong shape or dtype, or are NaN or infinite.
    """
    config = AutoConfig.from_pretrained(name, **options)
    if config.model_type == VanillaTransformerConfig.model_type:
        # This must come before the model is loaded, because the model of a damaged config.json may not fit in memory.
        is_quantized = hasattr(config, "quantization_config")
        _check_files(name, is_quantized, options)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    except RuntimeError as error:
        raise InputError(f"{name} cannot be loaded as a {config.model_type}: {reason_of(error)}") from error
    check_weights(model)
    return model


def _check_files(name: str | Path, is_quantized: bool, options: Mapping[str, Any]) -> None:
    """Raise ValueError unless a model's files contain exactly the weights that its config.json describes.

    The check loads the model onto the meta device, which takes no memory for weights, because a damaged config.json may
    describe more weights than fit in memory.
    """
    if Path(name).is_dir() and not is_quantized:
        # This raises an error that names the file if a file of weights is damaged. It would also reject the dtypes of
        # quantized weights, such as int8.
        read_layout(Path(name))
    meta_options = {**options, "device_map": "meta", "output_loading_info": True}
    with _quiet():
        # Because of `output_loading_info`, the result is the model and a dictionary with the names of wrong weights.
        _, loading_info = AutoModelForSeq2SeqLM.from_pretrained(name, **meta_options)
    if loading_info["missing_keys"]:
        raise InputError(_describe_wrong_weights(name, loading_info["missing_keys"], "are not in"))
    if loading_info["unexpected_keys"]:
        raise InputError(_describe_wrong_weights(name, loading_info["unexpected_keys"], "are left over in"))


def _describe_wrong_weights(name: str | Path, weights: Iterable[str], fault: str) -> str:
    """Return the error message about weights that are missing from a model's files, or unexpected in them.

    `fault` is the part of the message that says which: "are not in" or "are left over in".
    """
    sorted_weights = sorted(weights)
    examples = ", ".join(sorted_weights[:2])
    return (
        f"{len(sorted_weights)} weights {fault} the files of {name} ({examples}, ...): they belong to another "
        "config.json, or were truncated; use a complete model."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the progress bars and warnings of transformers for the duration of the block."""
    had_progress_bar = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()
