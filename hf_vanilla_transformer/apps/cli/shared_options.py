"""Define options that several verbs share, and load the models and glossaries that a command line names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...support.argument_checks import check_number
from ...support.build_arguments import option
from ...support.user_errors import InputError
from ...translation.engine import load_engine
from ...translation.loading_arguments import LoadingArguments
from ...translation.model_loading import explaining_missing_files, load_ensemble
from ..terms.glossary import read_terms


@dataclass
class EngineArguments:
    """Command-line arguments that select the inference engine and its precision."""

    _argument_group_name = "engine"

    engine: Literal["torch", "ctranslate2"] = option("torch", "Runtime; ctranslate2 needs its extra and a CPU.")
    compute_type: str | None = option(None, "Precision of ctranslate2: float32 (the default), bfloat16, int8, ...")

    def __post_init__(self) -> None:
        if self.compute_type is not None and self.engine == "torch":
            raise InputError(f"compute_type is {self.compute_type}, but has no effect without --engine ctranslate2.")


@dataclass
class BatchArguments:
    """The command-line argument that limits the size of inference batches."""

    _argument_group_name = "batches"

    tokens_per_batch: int = option(4096, "Maximum number of tokens in a batch, with padding.")

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)


def load_tokenizer_and_model(
    args: LoadingArguments, engine: EngineArguments | None = None
) -> tuple[PreTrainedTokenizerBase, Any]:
    """Load the tokenizer and the model that the command line names.

    Raises InputError if the engine cannot load several models, or does not run on the device.

    Args:
        args: the options of the model. Several model names make an ensemble.
        engine: the options of the engine that runs the model. None stands for PyTorch.

    Returns:
        The tokenizer, and an object that translates: a PyTorch model, an ensemble of such models, or an engine.
    """
    names = _list_model_names(args)
    if engine is None or engine.engine == "torch":
        # A single name gives a model instead of an ensemble.
        return load_ensemble(names, args.device, **args.options())

    _check_engine(engine.engine, names, args.device)
    name = names[0]
    with explaining_missing_files(name):
        tokenizer = AutoTokenizer.from_pretrained(name, **args.options())
        model = load_engine(name, engine.engine, engine.compute_type, revision=args.revision, token=args.token)
        return tokenizer, model


def _list_model_names(args: LoadingArguments) -> list[str]:
    """Return the names of the models. Only some verbs accept several."""
    if isinstance(args.model_name_or_path, str):
        return [args.model_name_or_path]
    return args.model_name_or_path


def _check_engine(engine_name: str, names: list[str], device: str | None) -> None:
    """Raise InputError if an engine other than PyTorch cannot load several models, or does not run on the device."""
    if len(names) > 1:
        raise InputError(f"--engine {engine_name} has no ensembles; name one model, or use the engine torch.")
    if device not in (None, "cpu"):
        raise InputError(f"device is {device}, but --engine {engine_name} runs on the CPU; leave out --device.")


def load_terms(path: str | None, engine: EngineArguments) -> dict[str, list[str]] | None:
    """Read the glossary file that `--glossary` names. Returns None if the option is not given.

    Raises InputError if the engine does not support glossaries.
    """
    if path is None:
        return None
    if engine.engine != "torch":
        raise InputError(f"--glossary does not work with --engine {engine.engine}; leave out one of the two.")
    return read_terms(Path(path))
