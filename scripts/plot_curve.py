"""Draw the validation curves of runs into one plot: of their folders, their curve.json, or their files of results."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from hf_vanilla_transformer.evaluation import plot_curves, read_curve
from scripts.common import check_can_write, parse, plain_errors


@dataclass
class PlotArguments:
    """Where to put the plot. The runs come first, as arguments without a name."""

    output: str = field(metadata={"help": "File to write; its suffix says the format: .png, .svg, .pdf."})


def main(arguments: Sequence[str] | None = None) -> Path:
    """Draw as the command line says; returns the plot's file."""
    args, runs = parse([PlotArguments], __doc__, arguments, positional="runs", takes_file=False)
    with plain_errors():
        check_can_write(args.output)
        if not runs:
            raise ValueError("no run is given; name the folder of at least one.")
        plot = plot_curves({name_of(run): read_curve(run) for run in runs}, args.output)
    print(f"the plot is in {plot}")
    return plot


def name_of(run: str) -> str:
    """A run's name in the legend: its folder's, or its file's."""
    path = Path(run)
    return path.parent.name if path.name == "curve.json" else path.stem


if __name__ == "__main__":
    main()
