"""The commands of benchmarks/ start, and the committed tables show the committed figures."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks import generation, gpu_check, training
from benchmarks.support import candidates_report, training_report
from hf_vanilla_transformer.support import memory_tuning


pytestmark = [pytest.mark.slow, pytest.mark.torchao]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
COMMANDS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
PACKAGES = {"quantization": "torchao", "markup": "html5lib"}
KEEP_MEMORY = ["generation", "training"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name, monkeypatch, capsys):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    calls = []
    monkeypatch.setattr(memory_tuning, "keep_freed_memory", lambda: calls.append(name))
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stop.value.code == 0
    assert "usage: " in capsys.readouterr().out
    # Every implementation is measured with freed memory kept.
    assert calls == ([name] if name in KEEP_MEMORY else [])


@pytest.mark.parametrize("figures", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_tables_of_committed_figures(figures, tmp_path):
    for command, tables in {"gpu_check": gpu_check.tables, "gpu_candidates": candidates_report.tables}.items():
        if figures.stem.startswith(command):
            outcomes = json.loads(figures.read_text())["parts"]
            assert "\n\n".join(tables(outcomes)) + "\n" == figures.with_suffix(".md").read_text()
            return
    copy = shutil.copy(figures, tmp_path / figures.name)
    command = {"generation": generation, "training": training}[figures.stem]
    command.main(["report", "--output", str(copy)])
    assert copy.with_suffix(".md").read_text() == figures.with_suffix(".md").read_text()


def tables_of_page(heading: str) -> list[list[list[str]]]:
    """The tables on docs/benchmarks.md with such a heading row, as rows of cells, without the row of dashes."""
    blocks = re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)
    tables = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()] for block in blocks
    ]
    return [[rows[0], *rows[2:]] for rows in tables if re.fullmatch(heading, "|".join(rows[0]))]


@pytest.mark.parametrize(("folder", "number"), [("", 0), ("avx2", 1), ("intel", 2)])
def test_the_page_has_the_committed_latencies(folder, number):
    jobs = json.loads((RESULTS / folder / "generation.json").read_text())["cells"]["jobs"]
    (_, *headings), *rows = tables_of_page(r"batch x beams\|.*")[number]
    assert len(rows) == 4
    for job, *cells in rows:
        for heading, cell in zip(headings, cells, strict=True):
            name = heading.lower().replace(" ", "-")
            entry = jobs[job][name]
            speedup = "" if name == "marian-fp32" else f" ({median(entry['times']):.2f})"
            assert cell == f"{entry['milliseconds_a_step']:.2f}{speedup}"


@pytest.mark.parametrize(("folder", "number"), [("", 0), ("avx2", 1), ("intel", 2)])
def test_the_page_has_the_committed_speedups(folder, number):
    sizes = json.loads((RESULTS / folder / "training.json").read_text())["steps"]["sizes"]
    expected = training_report._speedups_over_the_fastest(sizes).splitlines()
    (_, *headings), *rows = tables_of_page(r"\|(bf16|fp32).*")[number]
    generated = [[cell.strip() for cell in line.strip("|").split("|")] for line in expected]
    columns = [generated[0].index(heading) for heading in headings]
    figures = {row[0]: [row[column] for column in columns] for row in generated[2:]}
    assert {name.strip("`"): cells for name, *cells in rows} == figures


def test_older_names_of_modes_are_read(tmp_path):
    output = tmp_path / "generation.json"
    machine = '{"device": "CPU", "threads": 1, "torch": "2", "transformers": "5", "load": 0, "time": "today"}'
    noise = '{"measurements": 1, "made_again": 0, "slow": 0}'
    jobs = '{"1 x 1, ours-fp32": {"call": 9, "encoder": 1, "start": 2, "steps": 4, "products of the steps": 3}}'
    output.write_text(f'{{"parts": {{"machine": {machine}, "corpus": "none", "noise": {noise}, "jobs": {jobs}}}}}')
    assert list(generation.main(["report", "--output", str(output)])) == ["profile"]
    *_, row = output.with_suffix(".md").read_text().splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == ["9.0", "1.0", "2.0", "4.0", "3.0", "2.0"]
