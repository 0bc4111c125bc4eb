"""The commands of benchmarks/ start, and their committed tables are those of their committed figures."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import generation, training
from hf_vanilla_transformer import memory


ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
COMMANDS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
KEEP_MEMORY = ["generation", "training"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name, monkeypatch, capsys):
    if name == "quantization":
        pytest.importorskip("torchao")
    calls = []
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: calls.append(name))
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
    copy = shutil.copy(figures, tmp_path / figures.name)
    command = {"generation": generation, "training": training}[figures.stem]
    command.main(["report", "--output", str(copy)])
    assert copy.with_suffix(".md").read_text() == figures.with_suffix(".md").read_text()


def test_older_names_of_modes_are_read(tmp_path):
    output = tmp_path / "generation.json"
    machine = '{"device": "CPU", "threads": 1, "torch": "2", "transformers": "5", "load": 0, "time": "today"}'
    noise = '{"measurements": 1, "made_again": 0, "slow": 0}'
    jobs = '{"1 x 1, ours-fp32": {"call": 9, "encoder": 1, "start": 2, "steps": 4, "products of the steps": 3}}'
    output.write_text(f'{{"parts": {{"machine": {machine}, "corpus": "none", "noise": {noise}, "jobs": {jobs}}}}}')
    assert list(generation.main(["report", "--output", str(output)])) == ["profile"]
    *_, row = output.with_suffix(".md").read_text().splitlines()
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == ["9.0", "1.0", "2.0", "4.0", "3.0", "2.0"]
