"""Convert a model of another system into a trained folder, or back, and prove that both are equal.

`--from marian` reads a folder in which Marian trained (`.npz`, `.spm`); `--from hf_marian` a Marian or OPUS-MT model of
transformers, a folder or a name on the Hub.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .parsing import parse, plain_errors


SYSTEMS = ("hf_marian", "marian")


@dataclass
class ConvertArguments:
    """What to convert, and where to write the result."""

    input: str = field(metadata={"help": "A folder, or a name on the Hub."})
    output: str = field(metadata={"help": "Folder to make."})
    from_system: str = field(
        default="hf_marian", metadata={"aliases": ["--from"], "help": f"One of {', '.join(SYSTEMS)}."}
    )
    positions: str | None = field(
        default=None,
        metadata={
            "help": 'Of hf_marian: "hf", as in the source, the default; "marian", those that Marian trained it with.'
        },
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
        of_the_hub = {"positions": self.positions, "revision": self.revision, "token": self.token}
        for name, value in of_the_hub.items():
            if self.from_system == "marian" and value is not None:
                raise ValueError(f"{name} is {value}, but a model of marian has Marian's; leave it out.")


def main(arguments: Sequence[str] | None = None) -> Path:
    """Convert as the command line says; returns the folder of the model."""
    (args,) = parse([ConvertArguments], __doc__, arguments, verb="convert")
    from ..conversion.hf_marian import from_hf_marian
    from ..conversion.marian import from_marian

    options = {"license": args.license, "force": args.force}
    with plain_errors():
        if args.from_system == "marian":
            folder = from_marian(args.input, args.output, **options)
        else:
            options |= {"positions": args.positions or "hf", "revision": args.revision, "token": args.token}
            folder = from_hf_marian(args.input, args.output, **options)
    print(f"the model is in {folder}; {folder / 'parity.json'} says how it was compared with {args.input}")
    return folder
