"""benchmarks/gpu_check.py runs with torch and transformers alone, and an error in one part does not end the others."""

import json
import multiprocessing
import os
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import GpuCheckArguments
from benchmarks.support import timed_parts
from benchmarks.support.timed_parts import Part
from tests.bare_python import make_folder_of_packages, run_bare
from tests.device import checks


pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# The program is made for a machine without these.
ABSENT = ["pytest", "datasets", "evaluate", "accelerate", "sacrebleu", "matplotlib", "pyarrow"]
MEGABYTES_THAT_TRAVEL = 64


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder to import from that has torch, transformers and their dependencies only."""
    return make_folder_of_packages(tmp_path_factory.mktemp("site-packages"), "torch", "transformers")


@pytest.fixture(scope="module")
def rehearsal(bare, tmp_path_factory):
    """The output of the whole program on the CPU, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("gpu_check")
    options = ["--device", "cpu", "--smallest", "--output", str(folder)]
    result = run_bare(bare, "-m", "benchmarks.gpu_check", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, folder


def test_the_rehearsal_lacks_all_other_packages(bare):
    program = f"from importlib.util import find_spec\nprint([name for name in {ABSENT} if find_spec(name)])"
    assert run_bare(bare, "-c", program).stdout.strip() == "[]"


def test_every_part_runs_with_torch_and_transformers_alone(rehearsal):
    printed, folder = rehearsal
    assert {path.name for path in folder.iterdir()} == {"gpu_check.json", "gpu_check.md"}
    parts = json.loads((folder / "gpu_check.json").read_text(encoding="utf-8"))["parts"]
    assert [part["name"] for part in parts] == [part.name for part in gpu_check.PARTS]
    skipped = {part["name"]: part["result"] for part in parts if part["result"] != "ok"}
    without_gpu, without_accelerate = "skipped: no GPU", "skipped: no accelerate"
    assert skipped == {
        "loading_with_device_map": without_accelerate,
        "trainer": without_accelerate,
        "flash_attention": without_gpu,
        "flex_attention": without_gpu,
    }
    written = (folder / "gpu_check.md").read_text(encoding="utf-8")
    for part in parts:
        assert f"{part['name']} " in printed
        assert f"| {part['name']} " in written


def test_the_tables_have_the_figures(rehearsal):
    _, folder = rehearsal
    parts = json.loads((folder / "gpu_check.json").read_text(encoding="utf-8"))["parts"]
    figures = {part["name"]: part for part in parts}
    assert figures["environment"]["environment"]["torch"] == version("torch")
    assert figures["environment"]["environment"]["datasets"] is None
    written = (folder / "gpu_check.md").read_text(encoding="utf-8")
    steps = figures["training_base_bf16"]["training"]["steps"]["sizes"]["base"]
    assert [entry["name"] for entry in steps["entries"]] == ["ours-bf16", "marian-sdpa-bf16"]
    for entry in steps["entries"]:
        assert f"| {entry['tokens_per_second']:.0f} " in written
    job = figures["decoding"]["decoding"]["cells"]["jobs"]["1 x 1"]
    assert job["ours-fp32"]["same"] == 1
    assert f"| {job['ours-fp32']['milliseconds_a_step']:.2f};" in written
    assert f"| {32 / job['ours-fp32']['seconds'][0]:.0f} " in written


def test_every_check_is_a_part():
    names = [part.name for part in gpu_check.PARTS]
    assert len(set(names)) == len(names)
    listed = [*checks.CHECKS, *checks.GPU_CHECKS, *checks.COMPILED_CHECKS]
    assert {check.__name__ for check in listed} <= set(names)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run parts, given as functions, and return the exit code and the outcomes."""
    # A spawned process imports torch, which these parts do not need.
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(timed_parts.multiprocessing, "get_context", lambda method: context)
    monkeypatch.setattr(timed_parts, "START", 0)

    def run_functions(*functions, seconds=60, limit=30):
        args = GpuCheckArguments(str(tmp_path), "cpu", seconds=seconds)
        code = gpu_check.run([Part(function.__name__, function, limit) for function in functions], args)
        return code, json.loads((tmp_path / "gpu_check.json").read_text())["parts"]

    return run_functions


def fine(args):
    return {"process": os.getpid()}


def test_a_failure_is_named_and_the_next_part_runs_in_the_same_process(run, capsys, tmp_path):
    def wrong(args):
        raise AssertionError("logits differ")

    code, parts = run(fine, wrong, fine)
    assert code == 1
    assert [part["result"] for part in parts] == ["ok", "failed", "ok"]
    assert parts[0]["process"] == parts[2]["process"]
    assert 'raise AssertionError("logits differ")' in parts[1]["error"]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong")]
    assert line.endswith("failed AssertionError: logits differ")
    assert "## wrong failed" in (tmp_path / "gpu_check.md").read_text()


@pytest.mark.parametrize(
    ("break_process", "error"),
    [
        (lambda: os._exit(3), "its process ended"),
        (lambda: time.sleep(60), "it was stopped after 2 seconds"),
        (lambda: divmod(1, 0), "ZeroDivisionError"),
    ],
    ids=["it ends", "it hangs", "it fails"],
)
def test_a_new_process_continues_after_a_broken_one(run, break_process, error, monkeypatch):
    # Stands for what torch says of a GPU on which no kernel runs any more.
    monkeypatch.setattr(timed_parts, "BROKEN", "ZeroDivisionError")

    def broken(args):
        break_process()

    code, parts = run(fine, broken, fine, limit=2)
    assert code == 1
    assert [part["result"] for part in parts] == ["ok", "failed", "ok"]
    assert error in parts[1]["error"]
    assert parts[0]["process"] != parts[2]["process"]


def test_parts_that_do_not_fit_are_not_run(run):
    def slow(args):
        time.sleep(60)

    code, parts = run(fine, slow, fine, seconds=2)
    assert code == 0
    assert [part["result"] for part in parts] == ["ok", "not run: time", "not run: time"]
    code, parts = run(fine, seconds=0)
    assert code == 0
    assert [part["result"] for part in parts] == ["not run: time"]


def figures_so_far(then):
    def yields(args):
        yield {"first": 1}
        yield {"first": 1, "second": 2}
        then()

    return yields


def outcomes_of(*parts, seconds=60):
    return list(timed_parts.run_parts(parts, GpuCheckArguments(device="cpu", seconds=seconds)))


def test_a_part_that_yields_its_figures_keeps_them(run):
    first, second, last = outcomes_of(Part("a", figures_so_far(lambda: None), 30))
    assert (first["result"], first["first"], "second" in first) == ("running", 1, False)
    assert (second["result"], second["second"]) == ("running", 2)
    assert (last["result"], last["first"], last["second"]) == ("ok", 1, 2)


def test_the_figures_of_a_part_that_fails_are_not_lost(run):
    def fail():
        raise AssertionError("wrong")

    *_, last = outcomes_of(Part("a", figures_so_far(fail), 30))
    assert (last["result"], last["second"]) == ("failed", 2)
    assert "AssertionError: wrong" in last["error"]


def test_the_figures_of_a_part_that_is_stopped_are_not_lost(run):
    def hang():
        time.sleep(60)

    parts = (Part("a", figures_so_far(hang), 2), Part("b", fine, 30))
    *_, stopped, other = outcomes_of(*parts)
    assert (stopped["result"], stopped["second"]) == ("failed", 2)
    assert other["result"] == "ok"
    *_, stopped, other = outcomes_of(*parts, seconds=1)
    assert (stopped["result"], stopped["second"]) == ("cut off: time", 2)
    assert other["result"] == "not run: time"


def test_parts_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "run", lambda parts, args: [part.name for part in parts])
    options = ["--device", "cpu", "--output", str(tmp_path)]
    assert gpu_check.main([*options, "--parts", "logits", "ddp"]) == ["logits", "ddp"]
    with pytest.raises(SystemExit, match='there is no part "logit"; choose among: environment, logits'):
        gpu_check.main([*options, "--parts", "logit"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_at_once(tmp_path):
    with pytest.raises(SystemExit, match="device is cuda, but torch finds no GPU here"):
        gpu_check.main(["--output", str(tmp_path)])


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_checkout_is_small_enough_to_travel():
    """Machines with a GPU receive all tracked files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = [(ROOT / name).stat().st_size for name in listed.split("\0") if (ROOT / name).is_file()]
    assert 0 < sum(sizes) < MEGABYTES_THAT_TRAVEL * 2**20
