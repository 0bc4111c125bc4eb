"""Figures as tables in markdown and as plots."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.entries import ARITHMETIC
from benchmarks.support.training_parts import PARTS, REST


HEADINGS = {
    "length": "tokens a sentence",
    "tokens": "tokens a batch",
    "vocabulary": "vocabulary",
    "depth": "layers a stack",
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def describe(section: dict[str, Any]) -> str:
    """One line on the machine and the data."""
    machine = section["machine"]
    return (
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}, transformers "
        f"{machine['transformers']}; {section['corpus']}; load at the start {machine['load']:.1f}; {machine['time']}"
    )


def tables(figures: dict[str, Any]) -> Iterator[str]:
    """All tables of the figures that there are, each with its heading."""
    writers = {"steps": _steps, "parts": _parts, "memory": _memory, "scaling": _scaling, "trainer": _trainer}
    for mode, write_tables in writers.items():
        if mode in figures:
            yield f"## {mode}\n\n{describe(figures[mode])}"
            yield from write_tables(figures[mode])


def _steps(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        references = section["references"]
        headings = ["entry", "tokens/s", *(f"times {reference}" for reference in references), "peak MB", "TFLOP/s"]
        headings += ["first loss", "utilisation"]
        rows = []
        for entry in sorted(size["entries"], key=lambda entry: -entry["tokens_per_second"]):
            ratios = [entry["times"].get(reference) for reference in references]
            rows.append(
                [
                    entry["name"],
                    f"{entry['tokens_per_second']:.0f}",
                    *("" if ratio is None else spread(ratio["rounds"]) for ratio in ratios),
                    _whole(entry["peak_megabytes"]),
                    f"{entry['tflops_per_second']:.2f}",
                    f"{entry['first_loss']:.3f}",
                    "" if entry["utilisation"] is None else f"{entry['utilisation']:.1%}",
                ]
            )
        title = f"{name}: {size['tokens_per_batch']:,} tokens a side, {size['rounds']} rounds"
        yield f"### {title}\n\n{describe_noise(size)}{_left_out(size)}"
        yield table(*_without_empty(headings, rows))
    yield "### ours beside the fastest other entry of the same arithmetic, times as fast"
    yield _beside_the_fastest(section["sizes"])


def _beside_the_fastest(sizes: dict[str, Any]) -> str:
    """By size and arithmetic, the name behind `ours-`: the median over the rounds."""
    names = (entry["name"] for size in sizes.values() for entry in size["entries"])
    own = list(dict.fromkeys(name for name in names if name.startswith("ours-")))
    rows = []
    for name, size in sizes.items():
        entries = {entry["name"]: entry for entry in size["entries"]}
        rows.append([name, *(_times_the_fastest(entries, ours) for ours in own)])
    return table(["", *(name.removeprefix("ours-") for name in own)], rows)


def _times_the_fastest(entries: dict[str, dict[str, Any]], ours: str) -> str:
    if ours not in entries:
        return ""
    kind = _arithmetic(entries[ours])
    peers = [entry for name, entry in entries.items() if _arithmetic(entry) == kind and not name.startswith("ours-")]
    if not peers:
        return ""
    fastest = max(peers, key=lambda entry: entry["tokens_per_second"])["seconds"]
    return f"{median(theirs / own for theirs, own in zip(fastest, entries[ours]['seconds'], strict=True)):.2f}"


def _arithmetic(entry: dict[str, Any]) -> str:
    """As it was stored; older figures have it in the name alone."""
    return entry.get("arithmetic") or next(kind for kind in ARITHMETIC if entry["name"].endswith(f"-{kind}"))


def _parts(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        rows = []
        for entry in size["entries"]:
            shares = [f"{share:.1%}" for share in entry["shares"].values()]
            rows.append([entry["name"], f"{entry['milliseconds_a_step']:.0f}", *shares])
        title = f"{name}: {size['tokens_per_batch']:,} tokens a side, shares of {size['steps']} steps"
        yield f"### {title}{_left_out(size)}"
        yield table(["entry", "ms a step, watched", *PARTS, REST], rows)


def _memory(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        steps = max(map(len, size["peaks"].values()), default=0)
        marks = sorted({1, max(steps // 4, 1), max(steps // 2, 1), steps})
        rows = [[entry, *(f"{peaks[mark - 1]:.0f}" for mark in marks)] for entry, peaks in size["peaks"].items()]
        yield f"### {name}: peak memory in MB after so many batches{_left_out(size)}"
        yield table(["entry", *map(str, marks)], rows)


def _scaling(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        for axis, points in size["axes"].items():
            entries = _by_name(points)
            headings = [HEADINGS[axis], *(f"{entry} {unit}" for entry in entries for unit in ("tokens/s", "peak MB"))]
            rows = [
                [f"{point['value']:,}"]
                + [
                    _whole(figures[number].get(quantity))
                    for figures in entries.values()
                    for quantity in ("tokens_per_second", "peak_megabytes")
                ]
                for number, point in enumerate(points)
            ]
            left_out = "".join(_left_out(point, f" at {point['value']:,}") for point in points)
            yield f"### {name}, by {HEADINGS[axis]}{left_out}"
            yield table(headings, rows)


def _by_name(points: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each entry at each point, none where it was left out."""
    at_points = [{entry["name"]: entry for entry in point["entries"]} for point in points]
    names = dict.fromkeys(name for entries in at_points for name in entries)
    return {name: [entries.get(name, {}) for entries in at_points] for name in names}


def _trainer(section: dict[str, Any]) -> Iterator[str]:
    results = [
        ([name, arithmetic], result)
        for name, size in section["sizes"].items()
        for arithmetic, result in size["arithmetic"].items()
    ]
    yield _slower(results, "overhead", {"bare": "bare ms", "trainer": "Trainer ms"}, "Trainer slower by")
    giving_back = [(names, result) for names, result in results if "giving_back_share" in result]
    if giving_back:
        titles = {"trainer": "Trainer ms", "giving_back": "with ReleaseMemory ms"}
        yield _slower(giving_back, "giving_back", titles, "slower by")


def _slower(results: Sequence[tuple[list[str], dict[str, Any]]], share: str, ways: dict[str, str], title: str) -> str:
    """Milliseconds an update in two ways, and by which share the second is slower."""
    rows = []
    for names, result in results:
        milliseconds = [f"{1000 * median(result[f'{way}_seconds']) / result['updates']:.0f}" for way in ways]
        in_rounds = ", ".join(f"{each:+.1%}" for each in result[f"{share}_share_of_rounds"])
        rows.append([*names, *milliseconds, f"{result[f'{share}_share']:+.1%}", in_rounds])
    return table(["size", "arithmetic", *ways.values(), title, "in each round"], rows)


def spread(ratios: Sequence[float]) -> str:
    """The median and the range of what was found in each round."""
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _whole(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def describe_noise(section: dict[str, Any]) -> str:
    """How often the machine was slow."""
    noise = section["noise"]
    if "repeated" in noise:
        # Older figures count how often, and a measurement may have been repeated twice.
        return f"The machine was slow: {noise['repeated']} repetitions; measurements slow every time: {noise['slow']}."
    return (
        f"Of {noise['measurements']} measurements {noise['made_again']} were made again because the machine was slow, "
        f"and {noise['slow']} were slow every time."
    )


def _left_out(section: dict[str, Any], where: str = "") -> str:
    """A sentence for each entry that was left out; older figures know of none."""
    reasons = section.get("left_out", {}).items()
    return "".join(f"\n\n{name} is left out{where}: {reason}" for name, reason in reasons)


def _without_empty(headings: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    kept = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    return [headings[column] for column in kept], [[row[column] for column in kept] for row in rows]


def plot(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what there is: `training_steps.svg` and `training_scaling.svg`.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    return draw("training", {"steps": _plot_steps, "scaling": _plot_scaling}, figures, folder)


def draw(
    command: str, drawings: dict[str, Callable[[dict[str, Any]], Any]], figures: dict[str, Any], folder: Path
) -> list[Path]:
    """Draw the modes that there are figures of, each into a file `<command>_<mode>.svg`.

    Args:
        drawings: what draws the figures of a mode.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("plots need matplotlib; pip install '.[benchmarks]' adds it.") from error
    matplotlib.use("agg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "training"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for mode, make_figure in drawings.items():
        if mode in figures:
            path = folder / f"{command}_{mode}.svg"
            temporary = folder / f".{path.name}.part"
            make_figure(figures[mode]).savefig(temporary, format="svg", metadata={"Date": None})
            paths.append(temporary.replace(path))
    return paths


def _plot_steps(section: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    sizes = section["sizes"]
    most = max(len(size["entries"]) for size in sizes.values())
    figure = Figure(figsize=(5 * len(sizes), 1 + 0.26 * most), layout="constrained")
    for axes, (name, size) in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes.items(), strict=True):
        entries = sorted(size["entries"], key=lambda entry: entry["tokens_per_second"])
        colours = ["tab:blue" if entry["name"].startswith("ours") else "tab:grey" for entry in entries]
        axes.barh(
            [entry["name"] for entry in entries], [entry["tokens_per_second"] for entry in entries], color=colours
        )
        axes.set_title(f"{name}, {size['tokens_per_batch']:,} tokens a side")
        axes.set_xlabel("target tokens a second, without padding")
    return figure


def _plot_scaling(section: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    sizes = section["sizes"]
    columns = max(len(size["axes"]) for size in sizes.values())
    figure = Figure(figsize=(3.5 * columns, 5.5 * len(sizes)), layout="constrained")
    grid = figure.subplots(2 * len(sizes), columns, squeeze=False)
    for row, (name, size) in enumerate(sizes.items()):
        for column, (axis, points) in enumerate(size["axes"].items()):
            for offset, quantity in enumerate(("tokens_per_second", "peak_megabytes")):
                axes = grid[2 * row + offset][column]
                _draw_lines(axes, points, quantity)
                axes.set_title(name)
                axes.set_xlabel(HEADINGS[axis])
                axes.set_ylabel({"tokens_per_second": "tokens a second", "peak_megabytes": "peak memory, MB"}[quantity])
    grid[0][0].legend()
    return figure


def _draw_lines(axes: Any, points: list[dict[str, Any]], quantity: str) -> None:
    values = [point["value"] for point in points]
    for name, figures in _by_name(points).items():
        axes.plot(values, [each.get(quantity, math.nan) for each in figures], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
    axes.minorticks_off()
    most = max((entry[quantity] for point in points for entry in point["entries"]), default=1)
    axes.set_ylim(0, 1.1 * most)
