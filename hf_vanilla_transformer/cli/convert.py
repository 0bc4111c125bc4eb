"""Convert a model of another system into a trained folder, or back, and prove that both are equal.

`--from hf_marian` reads a Marian or OPUS-MT model of transformers, a folder or a name on the Hub.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .parsing import parse, plain_errors


SYSTEMS = ("hf_marian",)


@dataclass
class ConvertArguments:
    """What to convert, and where to write the result."""

    input: str = field(metadata={"help": "A folder, or a name on the Hub."})
    output: str = field(metadata={"help": "Folder to make."})
    from_system: str = field(
        default="hf_marian", metadata={"aliases": ["--from"], "help": f"One of {', '.join(SYSTEMS)}."}
    )
    positions: str = field(
        default="hf",
        metadata={"help": '"hf" equals the source; "marian" restores the positions that Marian trained it with.'},
    )
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the model on the Hub."})
    token: str | None = field(
        default=None, metadata={"help": "Access token of the Hub; by default the one that `hf auth login` stored."}
    )
    license: str | None = field(default=None, metadata={"help": "Licence of the weights, for the model card."})
    force: bool = field(default=False, metadata={"help": "Write a model that is not equal to its source."})

    def __post_init__(self) -> None:
        if self.from_system not in SYSTEMS:
            raise ValueError(f'--from is "{self.from_system}"; choose one of {", ".join(SYSTEMS)}.')


def main(arguments: Sequence[str] | None = None) -> Path:
    """Convert as the command line says; returns the folder of the model."""
    (args,) = parse([ConvertArguments], __doc__, arguments, verb="convert")
    from ..conversion.hf_marian import from_hf_marian

    with plain_errors():
        folder = from_hf_marian(
            args.input,
            args.output,
            positions=args.positions,
            revision=args.revision,
            token=args.token,
            license=args.license,
            force=args.force,
        )
    print(f"the model is in {folder}; {folder / 'parity.json'} says how it was compared with {args.input}")
    return folder
