"""benchmarks/gpu_candidates.py measures everything in a rehearsal, and leaves out what does not fit or is missing."""

import json
import time

import pytest
import torch

from benchmarks import gpu_candidates
from benchmarks.gpu_candidates import GpuCandidatesArguments
from benchmarks.support import candidates_report
from benchmarks.support.gpu_timing import Budget
from tests.bare_python import make_folder_of_packages, run_bare


pytestmark = pytest.mark.slow

OPTIONS = ["--device", "cpu", "--smallest"]
MOST_SECONDS = 9 * 60


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder to import from that has torch, transformers and their dependencies only."""
    return make_folder_of_packages(tmp_path_factory.mktemp("site-packages"), "torch", "transformers")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """The exit code of the whole program on the CPU, its parts by name, and its tables."""
    folder = tmp_path_factory.mktemp("gpu_candidates")
    code = gpu_candidates.main([*OPTIONS, "--output", str(folder)])
    parts = json.loads((folder / "gpu_candidates.json").read_text(encoding="utf-8"))["parts"]
    tables = (folder / "gpu_candidates.md").read_text(encoding="utf-8")
    return code, {part["name"]: part for part in parts}, tables


def test_every_part_of_a_rehearsal_succeeds(rehearsal):
    code, parts, _ = rehearsal
    assert code == 0
    assert list(parts) == [part.name for part in gpu_candidates.PARTS]
    assert {name: part["result"] for name, part in parts.items() if part["result"] != "ok"} == {}


def test_every_candidate_of_a_rehearsal_passes_its_check(rehearsal):
    _, parts, _ = rehearsal
    assert parts["trainer"]["trainer"]["collators_agree"]
    for name in ("loss", "ends"):
        entries = parts[name][name]["entries"]
        assert entries
        assert all(entry["passes"] for entry in entries)
    for name in ("ladder_base", "ladder_big"):
        rungs = parts[name]["ladder"]["rungs"]
        assert all(rung["passes"] for rung in rungs)
        assert rungs[0]["name"] == "today"
        assert {"loss without Triton", "layers, compiled"} <= {rung["name"] for rung in rungs}


def test_what_a_rehearsal_cannot_measure_is_named(rehearsal):
    _, parts, tables = rehearsal
    for name in ("ladder_base", "ladder_big"):
        assert [item["name"] for item in parts[name]["ladder"]["not_measured"]] == ["ends of sub-layers, Triton"]
    assert "Not measured: ends of sub-layers, Triton" in tables


def test_the_tables_of_a_rehearsal_have_its_figures(rehearsal):
    _, parts, tables = rehearsal
    for run in parts["trainer"]["trainer"]["runs"]:
        assert f"{run['target_tokens_per_second']:,.0f}" in tables
    for rung in parts["ladder_base"]["ladder"]["rungs"]:
        assert f"{rung['speedup']:.3f}" in tables
    # The speed of a CPU says nothing about candidates for GPUs.
    assert "## Decisions" not in tables


def test_torch_and_transformers_are_enough(bare, tmp_path):
    parts = ["environment", "plans", "trainer", "ladder_base", "loss", "ends"]
    result = run_bare(bare, "-m", "benchmarks.gpu_candidates", *OPTIONS, "--output", str(tmp_path), "--parts", *parts)
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = json.loads((tmp_path / "gpu_candidates.json").read_text(encoding="utf-8"))["parts"]
    results = {outcome["name"]: outcome["result"] for outcome in outcomes}
    assert results == {**dict.fromkeys(parts, "ok"), "trainer": "skipped: no datasets"}


def test_the_whole_takes_at_most_nine_minutes():
    assert GpuCandidatesArguments().seconds + gpu_candidates.GRACE / 2 <= MOST_SECONDS
    names = [part.name for part in gpu_candidates.PARTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "measure",
    [
        gpu_candidates.plans,
        gpu_candidates.loss,
        gpu_candidates.ends,
    ],
    ids=lambda measure: measure.__name__,
)
def test_nothing_is_measured_without_time(measure):
    args = GpuCandidatesArguments(device="cpu", smallest=True)
    *_, outcome = measure(Budget(0), args)
    (figures,) = outcome.values()
    assert figures["not_measured"]
    assert not figures.get("entries", figures.get("backends"))


def test_the_figures_of_an_interrupted_run_are_written(tmp_path, monkeypatch):
    written = []

    def interrupted(parts, args):
        yield {"name": "loss", "result": "running", "seconds": 1.0, "loss": {"entries": []}}
        written.append(json.loads((tmp_path / "gpu_candidates.json").read_text(encoding="utf-8")))
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_candidates, "run_parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_candidates.run([], GpuCandidatesArguments(str(tmp_path), "cpu"))
    assert [part["result"] for part in written[0]["parts"]] == ["running"]


def rung(name, speedup, passes=True, is_candidate=True):
    return {
        "name": name,
        "subject": "loss",
        "passes": passes,
        "is_candidate": is_candidate,
        "milliseconds": 60 / speedup,
        "speedup": speedup,
        "saves_enough": 1 - 1 / speedup >= 0.03,
        "tokens_per_second": 1.0,
        "utilization": None,
        "milliseconds_to_launch": 1.0,
        "kernel_milliseconds": None,
        "launches": 2050,
        "syncs": 3,
        "gradient_error": 0.01,
        "allowed_gradient_error": 0.02,
    }


def test_decisions():
    rungs = [
        {key: value for key, value in rung("today", 1.0).items() if key != "is_candidate"},
        rung("slower of two", 1.1),
        rung("fastest", 1.2),
        rung("wrong", 1.4, passes=False),
        rung("too little", 1.02),
        rung("only measured", 1.3, is_candidate=False),
        {"name": "broken", "subject": "loss", "is_candidate": True, "passes": False, "error": "RuntimeError: no"},
        {**rung("cut off", 1.3), "subject": "ends"},
    ]
    figures = {"device": "cuda", "rungs": rungs, "chosen": ["fastest", "too little"], "not_measured": []}
    figures["decided"] = ["loss"]
    outcome = {"name": "ladder_base", "result": "ok", "seconds": 1.0, "ladder": figures}
    *_, decisions = candidates_report.tables([outcome])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in decisions.splitlines()[2:]]
    assert [(row[1], row[2], row[4]) for row in rows] == [
        ("slower of two", "9.1%", "delete"),
        ("fastest", "16.7%", "move into the package"),
        ("wrong", "28.6%", "delete"),
        ("too little", "2.0%", "delete"),
        ("broken", "", "none, because it raised an error"),
        ("cut off", "23.1%", "none, because its subject was not measured to the end"),
    ]


def test_an_unknown_part_and_an_unknown_device_are_errors():
    with pytest.raises(SystemExit, match='there is no part "step"; choose among: environment, plans'):
        gpu_candidates.main([*OPTIONS, "--parts", "step"])
    with pytest.raises(SystemExit, match="device is tpu"):
        gpu_candidates.main(["--device", "tpu"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_at_once(tmp_path):
    with pytest.raises(SystemExit, match="device is cuda, but torch finds no GPU here"):
        gpu_candidates.main(["--output", str(tmp_path)])


def test_budget():
    budget = Budget(0.05)
    assert not budget.is_spent()
    assert 0 < budget.remaining() <= 0.05
    time.sleep(0.06)
    assert budget.is_spent()
