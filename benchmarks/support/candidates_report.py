"""Figures of gpu_candidates.py as Markdown tables, and as lines while it runs."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.support import generation_report
from benchmarks.support.generation_implementations import BASELINE
from benchmarks.support.report_parts import table
from benchmarks.support.timed_parts import FAILED, Outcome


def latest(outcome: Outcome) -> str:
    """Describe the newest figures of a part that is running in one line."""
    if "plans" in outcome:
        name, entry = list(outcome["plans"]["backends"].items())[-1]
        return f"{name}: {_number(entry.get('milliseconds_per_new_shape'), 1)} ms per new shape"
    if "trainer" in outcome:
        run = outcome["trainer"]["runs"][-1]
        return f"{run['name']}: {run['target_tokens_per_second']:,.0f} tokens/s"
    if "ladder" in outcome:
        rung = outcome["ladder"]["rungs"][-1]
        return f"{rung['name']}: {_number(rung.get('milliseconds'), 1)} ms per step, {_verdict(rung)}"
    for name in ("loss", "ends"):
        if name in outcome and outcome[name]["entries"]:
            entry = outcome[name]["entries"][-1]
            return f"{entry['name']}: {_number(entry.get('milliseconds'), 3)} ms, {_verdict(entry)}"
    return ""


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield all outcomes as Markdown, with the decisions last."""
    yield "# benchmarks.gpu_candidates"
    for outcome in outcomes:
        if "environment" in outcome:
            facts = [f"{name} {value}" for name, value in outcome["environment"].items() if value is not None]
            yield ", ".join(facts)
    rows = []
    for outcome in outcomes:
        megabytes = f"{outcome.get('peak_megabytes', 0):.0f}"
        rows.append([outcome["name"], outcome["result"], f"{outcome['seconds']:.1f}", megabytes])
    yield table(["part", "result", "seconds", "peak MB"], rows)
    for outcome in outcomes:
        if outcome["result"] == FAILED:
            yield f"## {outcome['name']} failed\n\n```\n{outcome['error'].strip()}\n```"
        for name, write_tables in _WRITERS.items():
            if name in outcome:
                yield f"## {outcome['name']}"
                yield from write_tables(outcome[name])
                yield from _not_measured(outcome[name])
    yield from _decisions(outcomes)


def _plans(figures: dict[str, Any]) -> Iterator[str]:
    yield "Attention in bfloat16, forward and backward, with a padding mask; medians in ms."
    rows = []
    for name, entry in figures["backends"].items():
        if "error" in entry:
            rows.append([name, entry["error"], "", "", ""])
            continue
        rows.append(
            [
                name,
                _number(_median(entry["first_call_milliseconds"]), 2),
                _number(_median(entry["later_call_milliseconds"]), 2),
                _number(entry["milliseconds_per_new_shape"], 2),
                _number(entry["milliseconds_per_new_decoding_length"], 2),
            ]
        )
    headings = ["kernels", "first call of a shape", "later calls", "cost of a new shape", "cost of a decoding length"]
    yield table(headings, rows)


def _trainer(figures: dict[str, Any]) -> Iterator[str]:
    yield f"The collators' batches are equal: {_yes(figures['collators_agree'])}."
    rows = []
    for run in figures["runs"]:
        rows.append(
            [
                run["name"],
                f"{run['target_tokens_per_second']:,.0f}",
                f"{run['milliseconds_per_update']:.1f}",
                str(run["updates"]),
                str(run.get("device_allocations", "")),
                _number(run.get("peak_megabytes"), 0),
            ]
        )
    headings = ["run", "target tokens/s", "ms per update", "updates", "device allocations", "peak MB"]
    yield table(headings, rows)


def _ladder(figures: dict[str, Any]) -> Iterator[str]:
    yield (
        "Each row adds one change to the fastest of each subject above it that passed. `today` is the package without "
        "attention by cuDNN, and its speedup over itself shows the noise."
    )
    rows = []
    for rung in figures["rungs"]:
        if "milliseconds" not in rung:
            rows.append([rung["name"], *[""] * 8, rung["error"].partition("\n")[0]])
            continue
        rows.append(
            [
                rung["name"],
                f"{rung['milliseconds']:.1f}",
                f"{rung['speedup']:.3f}",
                f"{rung['tokens_per_second']:,.0f}",
                "" if rung["utilization"] is None else f"{rung['utilization']:.1%}",
                f"{rung['milliseconds_to_launch']:.1f}",
                _number(rung["kernel_milliseconds"], 1),
                _number(rung["launches"], 0),
                str(rung["syncs"]),
                f"{_verdict(rung)}: {rung['gradient_error']:.2g}, allowed {rung['allowed_gradient_error']:.2g}",
            ]
        )
    headings = ["step", "ms", "speedup", "target tokens/s", "utilization", "ms to launch", "ms of kernels"]
    headings += ["launches", "syncs", "check: error of the gradients"]
    yield table(headings, rows)
    if "marian" in figures:
        marian = figures["marian"]
        yield f"transformers' Marian: {marian['milliseconds']:.1f} ms, {marian['tokens_per_second']:,.0f} tokens/s."


def _loss(figures: dict[str, Any]) -> Iterator[str]:
    rows = []
    for entry in figures["entries"]:
        error = ""
        if "errors" in entry:
            error = f"{max(entry['errors'].values()):.2g}, allowed {entry['allowed_error']:.2g}"
        rows.append([entry["name"], *_times(entry), _number(entry.get("peak_megabytes"), 0), _check(entry, error)])
    headings = ["loss, forward and backward", "ms", "ms of kernels", "launches", "peak MB", "check: error"]
    yield table(headings, rows)


def _ends(figures: dict[str, Any]) -> Iterator[str]:
    rows = []
    for entry in figures["entries"]:
        error = ""
        if "gradient_errors_in_eps" in entry:
            error = f"{entry['error']:.2g}; gradients {max(entry['gradient_errors_in_eps']):.1f} eps"
        launch = _number(entry.get("milliseconds_to_launch"), 3)
        rows.append([entry["name"], str(entry["d_model"]), *_times(entry), launch, _check(entry, error)])
    headings = ["end of a sub-layer, forward and backward", "d_model", "ms", "ms of kernels", "launches"]
    headings += ["ms to launch", "check: error"]
    yield table(headings, rows)


def _decoding(figures: dict[str, Any]) -> Iterator[str]:
    _, *rest = generation_report.tables(figures, BASELINE)
    yield from rest


def _attention(figures: dict[str, Any]) -> Iterator[str]:
    # Of candidates that are gone, in figures that are kept.
    entries = figures["entries"]
    columns = list(dict.fromkeys((entry["kind"], entry["longest"]) for entry in entries))
    rows = []
    for name in dict.fromkeys(entry["name"] for entry in entries):
        cells = {}
        for entry in entries:
            if entry["name"] == name:
                cells[entry["kind"], entry["longest"]] = _attention_cell(entry)
        rows.append([name, *(cells.get(column, "") for column in columns)])
    yield "ms of kernels, forward and backward, by kind and longest sentence; on CPUs ms."
    yield table(["", *(f"{kind}, {longest}" for kind, longest in columns)], rows)


def _attention_cell(entry: dict[str, Any]) -> str:
    if "relative_error" not in entry:
        return "error"
    milliseconds = entry["kernel_milliseconds"]
    if milliseconds is None:
        milliseconds = entry["milliseconds"]
    return f"{milliseconds:.3f}" if entry["passes"] else f"{milliseconds:.3f} (check failed)"


def _decisions(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield which candidates save at least 3 % of a step and pass their check; a rehearsal on a CPU decides nothing."""
    rows = []
    for outcome in outcomes:
        figures = outcome.get("ladder", {"device": "cpu"})
        if figures["device"] != "cpu":
            rows += [[outcome["name"], *row] for row in _decisions_of_ladder(figures)]
    if rows:
        yield (
            "## Decisions\n\nA candidate moves into the package if it saves at least 3 % of a step, passes its check, "
            "and is the fastest of its subject; otherwise it is deleted."
        )
        yield table(["part", "candidate", "saved of a step", "check", "decision"], rows)


def _decisions_of_ladder(figures: dict[str, Any]) -> Iterator[list[str]]:
    for rung in figures["rungs"]:
        if not rung.get("is_candidate"):
            continue
        if "error" in rung:
            decision = "none, because it raised an error"
        elif rung["subject"] not in figures["decided"]:
            decision = "none, because its subject was not measured to the end"
        elif rung["name"] in figures["chosen"] and rung["saves_enough"]:
            decision = "move into the package"
        else:
            decision = "delete"
        saved = f"{1 - 1 / rung['speedup']:.1%}" if "speedup" in rung else ""
        yield [rung["name"], saved, _verdict(rung), decision]


def _not_measured(figures: dict[str, Any]) -> Iterator[str]:
    for item in figures.get("not_measured", []):
        if isinstance(item, dict):
            yield f"Not measured: {item['name']} ({item['reason'].rstrip('.')})."
        else:
            yield f"Not measured: {item} (time)."


def _times(entry: dict[str, Any]) -> list[str]:
    launches = entry.get("launches", {})
    return [
        _number(entry.get("milliseconds"), 3),
        _number(launches.get("milliseconds"), 3),
        _number(launches.get("count"), 0),
    ]


def _check(entry: dict[str, Any], figures: str) -> str:
    if "milliseconds" not in entry:
        return str(entry["error"]).partition("\n")[0]
    return f"{_verdict(entry)}: {figures}"


def _verdict(entry: dict[str, Any]) -> str:
    return "passed" if entry["passes"] else "failed"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


_WRITERS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "plans": _plans,
    "trainer": _trainer,
    "ladder": _ladder,
    "loss": _loss,
    "ends": _ends,
    "attention": _attention,
    "decoding": _decoding,
}
