"""Draw a figure: `plot curve RUN ... --output FILE` draws the curves of runs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import __version__
from . import PROGRAM
from .parsing import parse, plain_errors
from .writing import check_can_write


@dataclass
class CurveArguments:
    """Where to write the plot. The runs come first, as arguments without a name."""

    output: str = field(metadata={"help": "File to write; its suffix decides the format: .png, .svg, .pdf."})


def main(arguments: Sequence[str] | None = None) -> Path | None:
    """Draw the figure that the first argument names; returns its file."""
    figure, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if figure in FIGURES:
        return FIGURES[figure](rest)
    if figure in ("-h", "--help"):
        print(f"usage: {PROGRAM} plot {{{','.join(FIGURES)}}} ... [--name value ...]\n\n{__doc__}")
    elif figure == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        sys.exit(f'error: "{figure}" is not a figure; use one of {", ".join(FIGURES)}.')
    return None


def plot_curve(arguments: Sequence[str]) -> Path:
    """Draw loss, perplexity, token accuracy and BLEU of runs: folders, their curve.json, or their files of results."""
    args, runs = parse(
        [CurveArguments],
        plot_curve.__doc__,
        arguments,
        positional="runs",
        verb="plot curve",
        takes_recipe_first=False,
    )
    from ..evaluation.curves import plot_curves, read_curve

    with plain_errors():
        check_can_write(args.output, inputs=[Path(run, "curve.json") if Path(run).is_dir() else run for run in runs])
        if not runs:
            raise ValueError("no run is given; name the folder of at least one.")
        curves = {label: read_curve(run) for label, run in zip(labels_of(runs), runs, strict=True)}
        plot = plot_curves(curves, args.output)
    print(f"the plot is in {plot}")
    return plot


FIGURES = {"curve": plot_curve}


def labels_of(runs: Sequence[str]) -> list[str]:
    """Labels for the legend: the name of each run's folder or file, or its path if two runs share a name.

    Raises:
        ValueError: if a run is given twice.
    """
    if len(set(runs)) < len(runs):
        raise ValueError(f"a run is given twice: {' '.join(runs)}; name each once.")
    labels = [_label_of(run) for run in runs]
    return [run if labels.count(label) > 1 else label for run, label in zip(runs, labels, strict=True)]


def _label_of(run: str) -> str:
    path = Path(run).resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name == "curve.json" else path.stem
