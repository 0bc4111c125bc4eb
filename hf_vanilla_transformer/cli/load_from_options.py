"""Loading what the options of a verb name: a model or an engine, and a glossary."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..translation.glossary import read_terms
from ..translation.loading_arguments import LoadingArguments
from ..translation.model_loading import explaining_missing_files, load
from .shared_options import EngineArguments


def load_given(args: LoadingArguments, engine: EngineArguments | None = None) -> tuple[PreTrainedTokenizerBase, Any]:
    """Load the tokenizer and the model, or the engine, that the command line names.

    Raises:
        ValueError: if the engine cannot run on the device, or cannot hold the model.
    """
    if engine is None or engine.engine == "torch":
        return load(args.model_name_or_path, args.device, **args.options())
    from ..engines.ctranslate2_engine import load_engine

    if args.device not in (None, "cpu"):
        raise ValueError(f"device is {args.device}, but --engine {engine.engine} runs on the CPU; leave out --device.")
    with explaining_missing_files(args.model_name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, **args.options())
        options: Any = {"revision": args.revision, "token": args.token}
        return tokenizer, load_engine(args.model_name_or_path, engine.engine, engine.compute_type, **options)


def load_terms(path: str | None, engine: EngineArguments) -> dict[str, list[str]] | None:
    """The terms of a file of `--glossary`; None without one.

    Raises:
        OSError: if there is no such file.
        ValueError: if the engine cannot be forced, or the file has a wrong line.
    """
    if path is None:
        return None
    if engine.engine != "torch":
        raise ValueError(f"--glossary does not work with --engine {engine.engine}; leave out one of the two.")
    return read_terms(Path(path))
