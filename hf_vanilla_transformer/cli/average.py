"""Average checkpoints of one model: those that are named, or with --last the newest ones of a run.

hf-vanilla-transformer average runs/mine --last 5 --output runs/average
hf-vanilla-transformer average runs/mine/checkpoint-800 runs/mine/checkpoint-1000 --output runs/average
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..support.build_arguments import option
from ..support.user_errors import InputError
from .parser import parse, program


@dataclass
class AveragingArguments:
    """What to average, and where to write the result."""

    output: str = option(..., "Folder to write; it loads like any saved model.")
    folders: list[str] = option([], "Checkpoints, or a run.", positional=True)
    last: int | None = option(None, "Average the newest N checkpoints of the run in the one given folder.")

    def __post_init__(self) -> None:
        if not self.output:
            raise InputError("output is empty; name a folder for the average.")


@program
def main(arguments: list[str]) -> Path:
    """Average as the command line says; returns the folder of the average."""
    args = parse(AveragingArguments, __doc__, arguments, "average")
    from ..training.checkpoint_averaging import average_checkpoints

    checkpoints = args.folders if args.last is None else checkpoints_of_run(args.folders, args.last)
    output = average_checkpoints(checkpoints, args.output)
    print(f"the average of {', '.join(Path(each).name for each in checkpoints)} is in {output}")
    return output


def checkpoints_of_run(folders: Sequence[str], count: int) -> list[Path]:
    """The newest complete checkpoints of the one run that is given."""
    from ..training.checkpoint_averaging import last_checkpoints

    if len(folders) != 1:
        raise InputError(f"--last needs the folder of one run; {len(folders)} folders were given.")
    checkpoints = last_checkpoints(folders[0], count)
    if len(checkpoints) < count:
        raise InputError(
            f"{folders[0]} holds {len(checkpoints)} complete checkpoints, fewer than {count}; give a smaller --last, "
            "or name the folders to average."
        )
    return checkpoints
