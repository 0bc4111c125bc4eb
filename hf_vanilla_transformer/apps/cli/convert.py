"""Convert a Marian or fairseq model to this package's format, or export a trained model to another system, and check
that both models compute the same.

`--from marian` reads a Marian training folder (`.npz`, `.spm`), and `--from fairseq` a fairseq training folder (`.pt`,
`dict.*.txt`, `bpecodes`). `--from hf_marian` reads a Marian or OPUS-MT model of transformers, and `--from fsmt` a
fairseq model that was ported to transformers. Both may be a folder or a name on the Hub. `--from auto` recognizes the
system. `--to ctranslate2` exports a trained model to CTranslate2, an inference engine, and `--to hf_marian` writes a
model that transformers loads as a Marian model.

    hf-vanilla-transformer convert --from hf_marian --input Helsinki-NLP/opus-mt-en-de --output runs/opus
    hf-vanilla-transformer convert --to ctranslate2 --input runs/mine --output runs/mine_ct2 --quantization int8
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from ...support.build_arguments import option
from ...support.user_errors import InputError, input_errors
from .. import conversion
from ..conversion.source_folder import recognize
from .parser import parse, program


@dataclass
class ConvertArguments:
    """Command-line arguments that name the model to convert, the system, and the output folder."""

    input: str = option(..., "A folder, or a name on the Hub.")
    output: str = option(..., "Folder to make.")
    from_system: Literal["hf_marian", "marian", "fsmt", "fairseq", "auto"] | None = option(
        None, "The system that the model comes from.", aliases=["--from"]
    )
    to_system: Literal["ctranslate2", "hf_marian"] | None = option(None, "The system to convert to.", aliases=["--to"])
    positions: str | None = option(
        None, 'With --from hf_marian: "hf" keeps the source\'s positions (default), "marian" restores the training\'s.'
    )
    quantization: str | None = option(
        None, 'With --to ctranslate2: type of the weights, such as "int8"; float32 by default.'
    )
    max_positions: int | None = option(None, "With --to ctranslate2: longest sequence in tokens; 2048 by default.")
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hub.")
    token: str | None = option(None, "Access token of the Hub; by default the one that `hf auth login` stored.")
    license: str | None = option(None, "License of the weights, for the model card.")
    force: bool = option(False, "Write the model even if it is not equal to its source.")

    def __post_init__(self) -> None:
        if (self.from_system is None) == (self.to_system is None):
            raise InputError("give either --from or --to, and a system; --help lists them.")


@program
def main(arguments: list[str]) -> Path:
    """Convert the model that the command line names, and return the folder of the converted model."""
    args = parse(ConvertArguments, __doc__, arguments, "convert")
    direction, named_system = _read_direction(args)
    system = _recognize_if_auto(named_system, args)
    # For example, `--from marian` is the function `from_marian`.
    convert: Callable[..., Path] = getattr(conversion, f"{direction}_{system}")
    options = _collect_options(args)
    _check_options(options, convert, system)
    with input_errors():
        # The functions have different names for the input, so it is passed by position.
        folder = Path(convert(args.input, **options))
    print(f"the model is in {folder}; {folder / 'parity.json'} says how it was compared with {args.input}")
    return folder


def _read_direction(args: ConvertArguments) -> tuple[str, str]:
    """Return "from" or "to", and the system of this option."""
    if args.from_system is not None:
        return "from", args.from_system
    # `ConvertArguments` checks that exactly one of the two is given.
    assert args.to_system is not None
    return "to", args.to_system


def _recognize_if_auto(named_system: str, args: ConvertArguments) -> str:
    """Return the system, for "auto" the one that the model's files belong to, which is also printed."""
    if named_system != "auto":
        return named_system
    system = recognize(args.input, args.revision, args.token)
    print(f"{args.input} is a model of {system}", file=sys.stderr)
    return system


def _collect_options(args: ConvertArguments) -> dict[str, Any]:
    """Return the options that are passed to a conversion function, by name, without the input and the system.

    Options that the user has not set are left out, so that the function's own defaults apply. `force` is always
    included, because it is False and not None if the user has not set it.
    """
    options = {}
    for name, value in vars(args).items():
        if value is not None and name not in ("input", "from_system", "to_system"):
            options[name] = value
    return options


def _check_options(options: Mapping[str, object], convert: Callable[..., Path], system: str) -> None:
    """Raise InputError if the conversion function `convert` has no argument for one of the options."""
    known_options = set(signature(convert).parameters)
    # Some conversion functions take these two arguments as `**hub`.
    if "hub" in known_options:
        known_options.update(["revision", "token"])
    for name, value in options.items():
        if name in known_options:
            continue
        # The token is a secret.
        shown_value = "given" if name == "token" else value
        raise InputError(f"{name} is {shown_value}, but {system} has no such option.")
