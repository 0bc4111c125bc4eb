"""Figures of training.py as Markdown tables and plots.

In the JSON file precisions are stored as `arithmetic`, implementations as `entries`, baselines as `references`.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.report_parts import describe, describe_noise, draw, spread, table
from benchmarks.support.training_implementations import PRECISIONS
from benchmarks.support.training_profile import PARTS, REST


HEADINGS = {
    "length": "tokens per sentence",
    "tokens": "tokens per batch",
    "vocabulary": "vocabulary size",
    "depth": "layers per stack",
}


def tables(figures: dict[str, Any]) -> Iterator[str]:
    """The tables of each mode that has figures, with headings."""
    writers = {"steps": _steps, "profile": _profile, "memory": _memory, "scaling": _scaling, "trainer": _trainer}
    for mode, write_tables in writers.items():
        if mode in figures:
            yield f"## {mode}\n\n{describe(figures[mode])}"
            yield from write_tables(figures[mode])


def _steps(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        baselines = section["references"]
        headings = ["implementation", "tokens/s", *(f"speedup over {baseline}" for baseline in baselines)]
        headings += ["peak MB", "TFLOP/s", "first loss", "utilization"]
        rows = []
        for entry in sorted(size["entries"], key=lambda entry: -entry["tokens_per_second"]):
            ratios = [entry["times"].get(baseline) for baseline in baselines]
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
        title = f"{name}: {size['tokens_per_batch']:,} tokens per batch and side, {size['rounds']} rounds"
        yield f"### {title}\n\n{describe_noise(size)}{_left_out(size)}"
        yield table(*_without_empty(headings, rows))
    yield "### Median speedup of ours over the fastest peer at the same precision"
    yield _speedups_over_the_fastest(section["sizes"])


def _speedups_over_the_fastest(sizes: dict[str, Any]) -> str:
    """By size and by implementation of ours, in the columns; the median over the rounds."""
    names = (entry["name"] for size in sizes.values() for entry in size["entries"])
    own = list(dict.fromkeys(name for name in names if name.startswith("ours-")))
    rows = []
    for name, size in sizes.items():
        entries = {entry["name"]: entry for entry in size["entries"]}
        rows.append([name, *(_speedup_over_the_fastest(entries, ours) for ours in own)])
    return table(["", *(name.removeprefix("ours-") for name in own)], rows)


def _speedup_over_the_fastest(entries: dict[str, dict[str, Any]], ours: str) -> str:
    if ours not in entries:
        return ""
    precision = _precision(entries[ours])
    peers = [
        entry for name, entry in entries.items() if _precision(entry) == precision and not name.startswith("ours-")
    ]
    if not peers:
        return ""
    fastest = max(peers, key=lambda entry: entry["tokens_per_second"])["seconds"]
    return f"{median(theirs / own for theirs, own in zip(fastest, entries[ours]['seconds'], strict=True)):.2f}"


def _precision(entry: dict[str, Any]) -> str:
    """As stored; older figures have it in the name only."""
    return entry.get("arithmetic") or next(each for each in PRECISIONS if entry["name"].endswith(f"-{each}"))


def _profile(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        rows = []
        for entry in size["entries"]:
            shares = [f"{share:.1%}" for share in entry["shares"].values()]
            rows.append([entry["name"], f"{entry['milliseconds_a_step']:.0f}", *shares])
        title = f"{name}: {size['tokens_per_batch']:,} tokens per batch and side, {size['steps']} profiled steps"
        yield f"### {title}{_left_out(size)}"
        yield table(["implementation", "ms per profiled step", *PARTS, REST], rows)


def _memory(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        steps = max(map(len, size["peaks"].values()), default=0)
        marks = sorted({1, max(steps // 4, 1), max(steps // 2, 1), steps})
        rows = [[entry, *(f"{peaks[mark - 1]:.0f}" for mark in marks)] for entry, peaks in size["peaks"].items()]
        yield f"### {name}: peak memory in MB, by number of batches{_left_out(size)}"
        yield table(["implementation", *map(str, marks)], rows)


def _scaling(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        yield f"### {name}\n\n{describe_noise(size)}"
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
            yield f"#### {name}, by {HEADINGS[axis]}{left_out}"
            yield table(headings, rows)


def _by_name(points: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each implementation at each point; empty where it was left out."""
    at_points = [{entry["name"]: entry for entry in point["entries"]} for point in points]
    names = dict.fromkeys(name for entries in at_points for name in entries)
    return {name: [entries.get(name, {}) for entries in at_points] for name in names}


def _trainer(section: dict[str, Any]) -> Iterator[str]:
    for name, size in section["sizes"].items():
        yield f"{name}: {describe_noise(size)}"
    results = [
        ([name, precision], result)
        for name, size in section["sizes"].items()
        for precision, result in size["arithmetic"].items()
    ]
    ways = {"bare": "bare loop, ms per update", "trainer": "Trainer, ms per update"}
    yield _slower(results, "overhead", ways, "Trainer slower by")
    releasing = [(names, result) for names, result in results if "giving_back_share" in result]
    if releasing:
        ways = {"trainer": "Trainer, ms per update", "giving_back": "with ReleaseMemory, ms per update"}
        yield _slower(releasing, "giving_back", ways, "slower by")


def _slower(results: Sequence[tuple[list[str], dict[str, Any]]], share: str, ways: dict[str, str], title: str) -> str:
    """Milliseconds per update in two ways, and by which share the second is slower."""
    rows = []
    for names, result in results:
        milliseconds = [f"{1000 * median(result[f'{way}_seconds']) / result['updates']:.0f}" for way in ways]
        in_rounds = ", ".join(f"{each:+.1%}" for each in result[f"{share}_share_of_rounds"])
        rows.append([*names, *milliseconds, f"{result[f'{share}_share']:+.1%}", in_rounds])
    return table(["size", "precision", *ways.values(), title, "in each round"], rows)


def _whole(number: float | None) -> str:
    return "" if number is None else f"{number:.0f}"


def _left_out(section: dict[str, Any], where: str = "") -> str:
    """A sentence for each implementation that was left out; older figures do not store them."""
    reasons = section.get("left_out", {}).items()
    return "".join(f"\n\n{name} is left out{where}: {reason}" for name, reason in reasons)


def _without_empty(headings: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    kept = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    return [headings[column] for column in kept], [[row[column] for column in kept] for row in rows]


def plot(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the stored figures: `training_steps.svg` and `training_scaling.svg`.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    return draw("training", {"steps": _plot_steps, "scaling": _plot_scaling}, figures, folder)


def _plot_steps(section: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    sizes = section["sizes"]
    most = max(len(size["entries"]) for size in sizes.values())
    figure = Figure(figsize=(5 * len(sizes), 1 + 0.26 * most), layout="constrained")
    for axes, (name, size) in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes.items(), strict=True):
        entries = sorted(size["entries"], key=lambda entry: entry["tokens_per_second"])
        colors = ["tab:blue" if entry["name"].startswith("ours") else "tab:grey" for entry in entries]
        axes.barh([entry["name"] for entry in entries], [entry["tokens_per_second"] for entry in entries], color=colors)
        axes.set_title(f"{name}: {size['tokens_per_batch']:,} tokens per batch")
        axes.set_xlabel("target tokens/s, without padding")
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
                axes.set_ylabel({"tokens_per_second": "tokens/s", "peak_megabytes": "peak memory, MB"}[quantity])
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
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
