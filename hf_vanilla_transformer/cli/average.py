"""Average checkpoints of one model: those that are named, or with --last the newest ones of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import average_checkpoints
from ..training.averaging import averaged_from, last_checkpoints
from .common import parse, plain_errors


@dataclass
class AveragingArguments:
    """What to average, and where to put the result. The folders come first, as arguments without a name."""

    output: str = field(metadata={"help": "Folder to write; it loads like any saved model."})
    last: int | None = field(
        default=None,
        metadata={"help": "The one folder is that of a run: average so many of its checkpoints, the newest."},
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    """Average as the command line says; returns the folder of the average."""
    args, folders = parse([AveragingArguments], __doc__, arguments, positional="folders")
    with plain_errors():
        checkpoints = folders if args.last is None else checkpoints_of_run(folders, args.last)
        output = average_checkpoints(checkpoints, args.output)
    print(f"the average of {', '.join(averaged_from(output))} is in {output}")
    return output


def checkpoints_of_run(folders: Sequence[str], count: int) -> list[Path]:
    """The newest complete checkpoints of the one run that is given.

    Raises:
        ValueError: if there are fewer, or not one folder is given.
    """
    if len(folders) != 1:
        raise ValueError(f"--last needs the folder of one run; {len(folders)} folders were given.")
    checkpoints = last_checkpoints(folders[0], count)
    if len(checkpoints) < count:
        raise ValueError(
            f"{folders[0]} holds {len(checkpoints)} complete checkpoints, fewer than {count}; give a smaller --last, "
            "or name the folders to average."
        )
    return checkpoints


if __name__ == "__main__":
    main()
