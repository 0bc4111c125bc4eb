"""Average the weights of several checkpoints of one model. Name the checkpoints, or name a training run and pass --last
to average its newest checkpoints.

hf-vanilla-transformer average runs/mine --last 5 --output runs/average
hf-vanilla-transformer average runs/mine/checkpoint-800 runs/mine/checkpoint-1000 --output runs/average
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...support.build_arguments import option
from ...support.user_errors import InputError
from .parser import parse, program


@dataclass
class AveragingArguments:
    """Command-line arguments that name the checkpoints to average and the output folder."""

    output: str = option(..., "Folder to write; it loads like any saved model.")
    folders: list[str] = option([], "Checkpoints, or a run.", positional=True)
    last: int | None = option(None, "Average the newest N checkpoints of the run in the one given folder.")

    def __post_init__(self) -> None:
        if not self.output:
            raise InputError("output is empty; name a folder for the average.")


@program
def main(arguments: list[str]) -> Path:
    """Average the checkpoints that the command line names, and return the folder of the averaged model."""
    args = parse(AveragingArguments, __doc__, arguments, "average")
    # This is not imported at the top, because --help does not need it.
    from ...training.checkpoint_averaging import average_checkpoints, last_checkpoints

    checkpoints: Sequence[str | Path] = args.folders
    if args.last is not None:
        if len(args.folders) != 1:
            raise InputError(f"--last needs the folder of one run; {len(args.folders)} folders were given.")
        checkpoints = last_checkpoints(args.folders[0], args.last)
        if len(checkpoints) < args.last:
            raise InputError(
                f"{args.folders[0]} holds {len(checkpoints)} complete checkpoints, fewer than {args.last}; give a "
                "smaller --last, or name the folders to average."
            )
    output = average_checkpoints(checkpoints, args.output)
    names = [Path(checkpoint).name for checkpoint in checkpoints]
    print(f"the average of {', '.join(names)} is in {output}")
    return output
