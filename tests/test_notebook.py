"""The notebooks run from top to bottom, the training one with 20 updates."""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from hf_vanilla_transformer.model import modeling_vanilla_transformer as modeling


pytestmark = pytest.mark.long

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
QUICKSTART, ANNOTATED = NOTEBOOKS / "quickstart.ipynb", NOTEBOOKS / "annotated.ipynb"
SMALLER = {
    "train_size=200_000": "train_size=1000, max_digits=3",
    "max_steps=2000": "max_steps=20",
    "train_batch_size=128": "train_batch_size=32",
    "warmup_steps=300": "warmup_steps=5",
    "logging_steps=100": "logging_steps=5",
    "range(100)": "range(10)",
}


def cells(notebook: Path, cell_type: str) -> list[str]:
    """The cells of one type, as text."""
    all_cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in all_cells if cell["cell_type"] == cell_type]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; returns the value of its last line, where that is an expression, as Jupyter prints it."""
    *statements, last = ast.parse(source).body
    exec(compile(ast.Module(statements, []), "notebook", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    exec(compile(ast.Module([last], []), "notebook", "exec"), names)
    return None


def test_quickstart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = cells(QUICKSTART, "code")
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


def test_quickstart_is_saved_executed():
    """From top to bottom, with what each cell but the imports shows."""
    code_cells = [
        cell for cell in json.loads(QUICKSTART.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    assert [cell["execution_count"] for cell in code_cells] == list(range(1, len(code_cells) + 1))
    assert all(cell["outputs"] for cell in code_cells[1:])
    assert not any(output["output_type"] == "error" for cell in code_cells for output in cell["outputs"])


def test_annotated(capsys):
    names: dict[str, Any] = {}
    for source in cells(ANNOTATED, "code"):
        run_cell(source, names)
    printed = capsys.readouterr().out
    assert printed.count("equal; the largest difference is") == 8
    # The code that it shows is the installed one.
    layer = modeling.VanillaTransformerLayer
    for item in (modeling.sinusoidal_positions, modeling.VanillaTransformerAttention, layer.feed_forward):
        assert inspect.getsource(item) in printed


def test_annotated_has_every_part_of_section_3():
    text = "".join(cells(ANNOTATED, "markdown"))
    assert all(f"## {section} " in text for section in ("3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5"))
    assert all(f"\\tag{{{equation}}}" in text for equation in (1, 2))


def test_annotated_is_saved_with_its_outputs():
    """`make notebooks` saves them."""
    cells = [cell for cell in json.loads(ANNOTATED.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= len(cells) - 4
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert "/home/" not in str(outputs)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


def test_annotated_is_saved_with_the_code_of_today(capsys):
    names: dict[str, Any] = {}
    for cell in json.loads(ANNOTATED.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            capsys.readouterr()
            run_cell("".join(cell["source"]), names)
            if "".join(cell["source"]).startswith("show("):
                assert capsys.readouterr().out == "".join(text for output in cell["outputs"] for text in output["text"])
