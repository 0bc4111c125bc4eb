"""benchmarks/students.py scores and times every model in every runtime. No test asserts a time."""

import json
from pathlib import Path

import pytest

from benchmarks import students
from benchmarks.support import timing


pytestmark = pytest.mark.slow

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"


def test_figures_table_and_picture(tmp_path, write, monkeypatch, capsys):
    monkeypatch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
    pairs = write("test.csv", "source,target\nforty-two,zweiundvierzig\nseven,sieben\nsix,sechs\n")
    output = tmp_path / "found.json"
    options = ["--runtimes", "torch", "torch int8", "--beams", "1", "2", "--rounds", "2", "--output", str(output)]
    students.main(["--models", str(FIXTURE), "--test_file", str(pairs), *options])
    entries = json.loads(output.read_text())["entries"]
    assert list(entries) == [f"{FIXTURE}, {runtime}, {n}" for runtime in ("torch", "torch int8") for n in (1, 2)]
    printed = capsys.readouterr().out
    for entry in entries.values():
        assert entry["sentences_per_second"] == pytest.approx(3 / (sum(entry["seconds"]) / 2))
        assert entry["exact_match"] == 100
        assert "greedy" in entry["decoding"] if entry["beams"] == 1 else "2 beams" in entry["decoding"]
        assert f"| {entry['beams']}     | {entry['bleu']:.2f}" in printed
    assert "1.00 (1.00-1.00)" in printed
    assert "<svg" in (tmp_path / "found_entries.svg").read_text()


def test_an_unknown_runtime_is_refused():
    with pytest.raises(SystemExit, match='there is no runtime "onnx"; choose among: torch, torch int8'):
        students.main(["--models", str(FIXTURE), "--runtimes", "torch", "onnx"])
