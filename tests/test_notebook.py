"""The notebook runs from top to bottom, with 20 updates."""

import ast
import json
from pathlib import Path
from typing import Any


NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
SMALLER = {
    "train_size=200_000": "train_size=1000, max_digits=3",
    "max_steps=2000": "max_steps=20",
    "train_batch_size=128": "train_batch_size=32",
    "warmup_steps=300": "warmup_steps=5",
    "logging_steps=100": "logging_steps=5",
    "range(100)": "range(10)",
}


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; returns the value of its last line, where that is an expression, as Jupyter prints it."""
    *statements, last = ast.parse(source).body
    exec(compile(ast.Module(statements, []), NOTEBOOK.name, "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    exec(compile(ast.Module([last], []), NOTEBOOK.name, "exec"), names)
    return None


def test_quickstart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    for setting, smaller in SMALLER.items():
        assert sum(setting in source for source in sources) == 1
        sources = [source.replace(setting, smaller) for source in sources]
    names: dict[str, Any] = {}
    printed = [run_cell(source, names) for source in sources]
    assert names["trainer"].state.global_step == 20
    losses = [entry["loss"] for entry in names["trainer"].state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    assert printed[1].keys() >= {"source", "target"}
    assert set(names["scores"]) >= {"bleu", "chrf", "exact_match"}
    assert printed[-1] == names["translate"](names["trainer"].model, names["tokenizer"], ["seven"])


def test_the_notebook_has_no_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
