"""benchmarks/quantization.py times only translation, in turns. No test asserts a time."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.support import timing


pytestmark = [pytest.mark.slow, pytest.mark.torchao]

pytest.importorskip("torchao")
quantization = pytest.importorskip("benchmarks.quantization")

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
KINDS = ["float32", "bfloat16", "int8"]


@pytest.fixture
def arguments(tmp_path, write, monkeypatch):
    monkeypatch.setattr(timing, "PROBE_WIDTHS", {"cpu": 8})
    monkeypatch.setattr(quantization, "LOADING", {name: quantization.LOADING[name] for name in KINDS})
    pairs = write("test.csv", "source,target\nforty-two,zweiundvierzig\nseven,sieben\nsix,sechs\n")
    return [
        "--model_name_or_path",
        str(FIXTURE),
        "--test_file",
        str(pairs),
        "--output",
        str(tmp_path / "figures.json"),
    ]


def test_models_are_scored_once_and_timed_in_turns(arguments, monkeypatch, tmp_path, capsys):
    done = []
    for name in ("evaluate", "translate"):
        work = getattr(quantization, name)

        def noted(model, *args, name=name, work=work, **kwargs):
            done.append((name, model))
            return work(model, *args, **kwargs)

        monkeypatch.setattr(quantization, name, noted)
    figures = quantization.main([*arguments, "--rounds", "2", "--repeats", "0"])
    models = [model for _, model in done[: len(KINDS)]]
    in_turns = [*models, *models[1:], models[0]]
    assert done == [*(("evaluate", model) for model in models), *(("translate", model) for model in in_turns)]
    assert [model.dtype for model in models[:2]] == [torch.float32, torch.bfloat16]
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    printed = capsys.readouterr().out
    for name in KINDS:
        entry = figures[name]
        assert entry["sentences_per_second"] == pytest.approx(3 / (sum(entry["seconds"]) / 2))
        assert entry["sentences_per_processor_second"] == pytest.approx(3 / (sum(entry["processor_seconds"]) / 2))
        assert f"{name}: BLEU {entry['bleu']:.2f}, " in printed
    assert figures["float32"]["as_in_float32"] == 3
    assert figures["bfloat16"]["megabytes"] < figures["float32"]["megabytes"]


def test_rounds_below_one_raise(arguments):
    with pytest.raises(SystemExit, match="rounds is 0; it must be at least 1"):
        quantization.main([*arguments, "--rounds", "0"])
