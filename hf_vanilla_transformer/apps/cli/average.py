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
    from ...training.checkpoint_averaging import average_checkpoints

    checkpoints: Sequence[str | Path] = args.folders
    # With --last, the command line names the folder of a training run instead of its checkpoints.
    if args.last is not None:
        checkpoints = _find_last_checkpoints(args.folders, args.last)
    output = average_checkpoints(checkpoints, args.output)
    names = [Path(checkpoint).name for checkpoint in checkpoints]
    print(f"the average of {', '.join(names)} is in {output}")
    return output


def _find_last_checkpoints(folders: list[str], count: int) -> list[Path]:
    """Return the newest `count` complete checkpoints of a training run. `folders` must name only the run's folder.

    Raises InputError if there is not exactly one folder, or if the run has fewer than `count` complete checkpoints.
    """
    from ...training.checkpoint_averaging import last_checkpoints

    if len(folders) != 1:
        raise InputError(f"--last needs the folder of one run; {len(folders)} folders were given.")
    run_folder = folders[0]
    checkpoints = last_checkpoints(run_folder, count)
    if len(checkpoints) < count:
        raise InputError(
            f"{run_folder} holds {len(checkpoints)} complete checkpoints, fewer than {count}; give a smaller --last, "
            "or name the folders to average."
        )
    return checkpoints
