"""Figures of generation.py as Markdown tables and plots."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support import report_parts
from benchmarks.support.generation_profile import PARTS


COLORS = {
    "ours-fp32": "tab:blue",
    "ours-bf16": "tab:cyan",
    "ours-int8": "navy",
    "ours-bf16-static": "tab:purple",
    "marian-fp32": "tab:grey",
    "marian-bf16": "silver",
    "marian-bf16-static": "tab:pink",
    "ctranslate2-fp32": "tab:orange",
    "ctranslate2-int8": "tab:red",
}


def tables(figures: dict[str, Any], baseline: str) -> Iterator[str]:
    """The tables of each mode that has figures, with headings."""
    for mode in ("cells", "scaling"):
        if mode in figures:
            yield f"## {mode}\n\n{report_parts.describe(figures[mode])}\n\n{report_parts.describe_noise(figures[mode])}"
            yield _table_of_jobs(figures[mode]["jobs"], baseline)
            yield from _table_of_packing(figures[mode]["jobs"], baseline)
            if mode == "cells":
                yield _limits(figures[mode])
    if "profile" in figures:
        section = figures["profile"]
        yield f"## profile\n\n{report_parts.describe(section)}\n\n{report_parts.describe_noise(section)}"
        yield _table_of_parts(section["jobs"])
    if "long" in figures:
        section = figures["long"]
        yield f"## long\n\n{report_parts.describe(section)}\n\n{report_parts.describe_noise(section)}"
        yield _table_of_lengths(section["jobs"])
    if "sentences" in figures:
        section = figures["sentences"]
        yield f"## sentences\n\n{report_parts.describe(section)}\n\n{report_parts.describe_noise(section)}"
        first = next(iter(section["entries"]))
        rows = [
            [
                *name.split(", "),
                f"{median(entry['seconds']):.2f}",
                f"{entry['sentences_a_second']:.0f}",
                report_parts.spread(entry["times"]),
                f"{entry['rows']:,}",
                str(entry["same"]),
            ]
            for name, entry in section["entries"].items()
        ]
        headings = ["implementation", "early_stopping", "seconds", "sentences/s", f"speedup over {first}"]
        yield report_parts.table([*headings, "rows (hypotheses x steps)", "same translations"], rows)
    if "stopping" in figures:
        section = figures["stopping"]
        yield f"## stopping\n\n{report_parts.describe(section)}\n\n{report_parts.describe_noise(section)}"
        yield _table_of_rules(section["entries"])


def _table_of_rules(entries: dict[str, dict[str, Any]]) -> str:
    """Rows, seconds and BLEU by alpha and `early_stopping`; ratios are to the first rule with the same alpha."""
    headings = ["alpha", "early_stopping", "rows (hypotheses x steps)", "rows, ratio", "seconds", "speedup", "BLEU"]
    rows = []
    for name, entry in entries.items():
        alpha, rule = name.split(", ")
        first = next(each for other, each in entries.items() if other.startswith(f"{alpha}, "))
        ratio, seconds = entry["rows"] / first["rows"], median(entry["seconds"])
        cells = [f"{entry['rows']:,}", f"{ratio:.2f}", f"{seconds:.2f}", report_parts.spread(entry["times"])]
        rows.append([alpha, rule, *cells, f"{entry['bleu']:.2f}", str(entry["same"])])
    return report_parts.table([*headings, "same translations"], rows)


def _table_of_jobs(jobs: dict[str, dict[str, Any]], baseline: str) -> str:
    names = list(next(iter(jobs.values())))
    rows = [[title, *(_figures_of(job[name]) for name in names)] for title, job in jobs.items()]
    legend = (
        f"Each cell: latency in ms per decoding step; speedup over {baseline}, median and range over the rounds; "
        f"sentences with the same tokens as {baseline}'s."
    )
    return f"{legend}\n\n{report_parts.table(['', *names], rows)}"


def _figures_of(entry: dict[str, Any]) -> str:
    milliseconds, ratios = f"{entry['milliseconds_a_step']:.2f}", report_parts.spread(entry["times"])
    return f"{milliseconds}; {ratios}; {entry['same']}/{entry['sentences']}"


def _table_of_packing(jobs: dict[str, dict[str, Any]], baseline: str) -> Iterator[str]:
    """Times of calls that pack the weights, as the first call does; empty if these were not measured."""
    names = [name for name, entry in next(iter(jobs.values())).items() if "seconds_with_packing" in entry]
    if not names:
        return
    rows = []
    for title, job in jobs.items():
        theirs = job[baseline]["seconds"]
        cells = [_with_packing(job[name], theirs) for name in names]
        rows.append([title, *cells, f"{median(theirs) * 1e3:.0f}"])
    yield (
        "Weight packing. Each cell: latency of a call in ms with / without packing; speedup over "
        f"{baseline} with packing.\n\n{report_parts.table(['', *names, f'{baseline}, ms'], rows)}"
    )


def _with_packing(entry: dict[str, Any], theirs: list[float]) -> str:
    packing, without = entry["seconds_with_packing"], entry["seconds"]
    ratios = [one / own for one, own in zip(theirs, packing, strict=True)]
    return f"{median(packing) * 1e3:.0f} / {median(without) * 1e3:.0f}; {report_parts.spread(ratios)}"


def _table_of_parts(jobs: dict[str, dict[str, float]]) -> str:
    """Milliseconds of a call and of its parts; the rest is beam search and transformers' own code."""
    headings = ["ms", "call", *PARTS, "rest"]
    rows = []
    for title, job in jobs.items():
        # By order, because older figures have other names. The last part, matmuls, is within the one before.
        call, *of_parts = job.values()
        rest = call - sum(of_parts[:-1])
        rows.append([title, *(f"{figure:.1f}" for figure in (call, *of_parts, rest))])
    return report_parts.table(headings, rows)


def _table_of_lengths(jobs: dict[str, dict[str, float]]) -> str:
    """Seconds of one sentence, and milliseconds per token of its translation, by length and beams."""
    beams = list(next(iter(jobs.values())))
    headings = ["tokens", *(f"num_beams={each}: s (ms/token)" for each in beams)]
    rows = []
    for tokens, seconds in jobs.items():
        count = int(tokens.replace(",", ""))
        rows.append([tokens, *(f"{seconds[each]:.1f} ({seconds[each] / count * 1e3:.1f})" for each in beams)])
    return report_parts.table(headings, rows)


def _limits(section: dict[str, Any]) -> str:
    """Latency of the smallest and the largest cell compared with the bounds of memory bandwidth and of matmuls."""
    known, jobs = section["limits"], section["jobs"]
    weights, read = known["weights_of_a_step"], known["bytes_read_a_second"]
    fp32, bf16 = known["fp32_operations_a_second"], known["bf16_operations_a_second"]
    lines = [
        f"Measured limits of this machine: memory bandwidth {read / 1e9:.0f} GB/s, matmuls {fp32 / 1e9:.0f} GFLOP/s in "
        f"fp32 and {bf16 / 1e9:.0f} in bf16. A decoding step reads {weights / 1e6:.1f} million weights."
    ]
    for title, rows in (("1 x 1", 1), ("64 x 4", 256)):
        if title in jobs and "ours-fp32" in jobs[title]:
            least = max(4 * weights / read, 2 * rows * weights / fp32) * 1e3
            share = least / jobs[title]["ours-fp32"]["milliseconds_a_step"]
            lines.append(f"{title}, ours-fp32: lower bound {least:.2f} ms per step; measured {1 / share:.1f}x that.")
    return "\n\n".join(lines)


def plot(figures: dict[str, Any], folder: Path, baseline: str) -> list[Path]:
    """Draw the stored figures: `generation_cells.svg`, `generation_scaling.svg` and `generation_sentences.svg`.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    drawings = {
        "cells": partial(_plot_cells, baseline=baseline),
        "scaling": _plot_scaling,
        "sentences": _plot_sentences,
    }
    return report_parts.draw("generation", drawings, figures, folder)


def _plot_cells(section: dict[str, Any], baseline: str) -> Any:
    from matplotlib.figure import Figure

    jobs = section["jobs"]
    names = list(next(iter(jobs.values())))
    figure = Figure(figsize=(2 + 1.4 * len(jobs), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(names)
    for index, name in enumerate(names):
        ratios = [median(job[name]["times"]) for job in jobs.values()]
        lefts = [number + (index - (len(names) - 1) / 2) * width for number in range(len(jobs))]
        axes.bar(lefts, ratios, width, label=name, color=COLORS[name])
    axes.set_xticks(range(len(jobs)), list(jobs))
    axes.set_xlabel("batch x beams")
    axes.set_ylabel(f"speedup over {baseline}")
    figure.legend(loc="outside upper center", ncols=len(names), frameon=False)
    return figure


def _plot_scaling(section: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    quantities: dict[str, dict[int, Any]] = {}
    for title, job in section["jobs"].items():
        quantity, _, value = title.partition(" ")
        quantities.setdefault(quantity, {})[int(value)] = job
    headings = {"source": "source tokens", "new": "new tokens", "beams": "beams", "batch": "batch size"}
    figure = Figure(figsize=(3.5 * len(quantities), 3.5), layout="constrained")
    for axes, (quantity, points) in zip(
        figure.subplots(1, len(quantities), squeeze=False)[0], quantities.items(), strict=True
    ):
        for name in next(iter(points.values())):
            steps = [job[name]["milliseconds_a_step"] for job in points.values()]
            axes.plot(list(points), steps, marker="o", label=name, color=COLORS[name])
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(points), [f"{value:,}" for value in points])
        axes.minorticks_off()
        axes.set_ylim(0)
        axes.set_xlabel(headings[quantity])
        axes.set_ylabel("latency, ms per decoding step")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _plot_sentences(section: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    entries = sorted(section["entries"].items(), key=lambda entry: entry[1]["sentences_a_second"])
    figure = Figure(figsize=(6, 1 + 0.35 * len(entries)), layout="constrained")
    axes = figure.subplots()
    names = [name for name, _ in entries]
    colors = [COLORS[name.split(", ")[0]] for name in names]
    axes.barh(names, [entry["sentences_a_second"] for _, entry in entries], color=colors)
    axes.set_xlabel("throughput, sentences/s, text to text")
    return figure
