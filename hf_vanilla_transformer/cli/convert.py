"""Convert a model of another system into a trained folder, or back, and prove that both are equal.

`--from marian` reads a folder in which Marian trained (`.npz`, `.spm`), `--from fairseq` one in which fairseq did
(`.pt`, `dict.*.txt`, `bpecodes`); `--from hf_marian` a Marian or OPUS-MT model of transformers, `--from fsmt` one of
fairseq's in transformers' form; both a folder or a name on the Hub.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .parsing import parse, plain_errors


SYSTEMS = ("hf_marian", "marian", "fsmt", "fairseq")


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
        if self.positions is not None and self.from_system != "hf_marian":
            raise ValueError(f"positions is {self.positions}, but only models of hf_marian have two; leave it out.")
        for name in ("revision", "token"):
            if getattr(self, name) is not None and self.from_system in ("marian", "fairseq"):
                raise ValueError(f"{name} is {getattr(self, name)}, but {self.input} is a folder; leave it out.")


def main(arguments: Sequence[str] | None = None) -> Path:
    """Convert as the command line says; returns the folder of the model."""
    (args,) = parse([ConvertArguments], __doc__, arguments, verb="convert")
    from ..conversion.fairseq import from_fairseq
    from ..conversion.fsmt import from_fsmt
    from ..conversion.hf_marian import from_hf_marian
    from ..conversion.marian import from_marian

    options: dict[str, Any] = {"license": args.license, "force": args.force}
    of_the_hub = {**options, "revision": args.revision, "token": args.token}
    with plain_errors():
        if args.from_system == "marian":
            folder = from_marian(args.input, args.output, **options)
        elif args.from_system == "fairseq":
            folder = from_fairseq(args.input, args.output, **options)
        elif args.from_system == "fsmt":
            folder = from_fsmt(args.input, args.output, **of_the_hub)
        else:
            folder = from_hf_marian(args.input, args.output, positions=args.positions or "hf", **of_the_hub)
    print(f"the model is in {folder}; {folder / 'parity.json'} says how it was compared with {args.input}")
    return folder
