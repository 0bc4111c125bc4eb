"""What the reports of all benchmarks share: Markdown tables, descriptions, and files of plots."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hf_vanilla_transformer.support.atomic_files import whole_file
from hf_vanilla_transformer.support.figure_style import check_matplotlib


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def describe(section: dict[str, Any]) -> str:
    """One line on machine, versions, commit and data; some older figures have no commit."""
    machine = section["machine"]
    commit, dirty, _ = (machine.get("commit") or "").partition("-dirty")
    at = f"commit {commit[:7]}{dirty}, " if commit else ""
    return (
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}, transformers "
        f"{machine['transformers']}; {section['corpus']}; {at}{machine['time']}; "
        f"load at the start {machine['load']:.1f}."
    )


def describe_noise(section: dict[str, Any]) -> str:
    """How many measurements were taken while the machine was slow."""
    noise = section["noise"]
    if "repeated" in noise:
        # Older figures count repetitions, up to two for each measurement.
        return f"Repetitions because the machine was slow: {noise['repeated']}; slow every time: {noise['slow']}."
    return (
        f"Of {noise['measurements']} measurements {noise['made_again']} were repeated because the machine was slow; "
        f"{noise['slow']} were slow every time."
    )


def spread(ratios: Sequence[float]) -> str:
    """The median over the rounds, and the range."""
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def draw(
    command: str, drawings: dict[str, Callable[[dict[str, Any]], Any]], figures: dict[str, Any], folder: Path
) -> list[Path]:
    """Draw each mode that has figures into a file `<command>_<mode>.svg`.

    Args:
        drawings: for each mode, a function from its figures to a matplotlib figure.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib

    matplotlib.use("agg")
    # Equal figures give equal files.
    matplotlib.rcParams["svg.hashsalt"] = "training"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for mode, make_figure in drawings.items():
        if mode in figures:
            path = folder / f"{command}_{mode}.svg"
            with whole_file(path, binary=True) as file:
                make_figure(figures[mode]).savefig(file, format="svg", metadata={"Date": None})
            paths.append(path)
    return paths
