"""Draw the validation curves of runs into one plot: of their folders, their curve.json, or their files of results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..evaluation.curves import plot_curves, read_curve
from .common import check_can_write, parse, plain_errors


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
        plot = plot_curves({name: read_curve(run) for name, run in zip(names_of(runs), runs, strict=True)}, args.output)
    print(f"the plot is in {plot}")
    return plot


def names_of(runs: Sequence[str]) -> list[str]:
    """Names in the legend: of the run's folder or file, or the whole path where others have that name, too.

    Raises:
        ValueError: if a run is given twice.
    """
    if len(set(runs)) < len(runs):
        raise ValueError(f"a run is given twice: {' '.join(runs)}; name each once.")
    names = [name_of(run) for run in runs]
    return [run if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]


def name_of(run: str) -> str:
    """A run's name: its folder's, or its file's."""
    path = Path(run).resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name == "curve.json" else path.stem


if __name__ == "__main__":
    main()
