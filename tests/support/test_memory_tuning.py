"""Keep and release freed memory; measured in a child process, because mallopt() settings last until a process ends."""

import json
import os
import platform
import sys
import weakref
from pathlib import Path

import pytest
import torch
from transformers import TrainerState

from hf_vanilla_transformer.acceleration.prepacked_weights import pack
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.support import memory_tuning
from hf_vanilla_transformer.support import peak_memory as peak_memory_module
from hf_vanilla_transformer.support.memory_tuning import keep_freed_memory, release_freed_memory
from hf_vanilla_transformer.support.peak_memory import peak_memory
from hf_vanilla_transformer.training.trainer_callbacks import ReleaseMemory
from tests.apps.cli.tiny_run import recipe
from tests.invariants.killed import exit_code, start


def fresh_pages(times_before: int) -> int:
    """Page faults of allocating 300 MB that were freed `times_before` times before."""
    import resource

    for _ in range(times_before):
        use_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use_memory()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def use_memory() -> None:
    _tensors = [torch.ones(2_500_000) for _ in range(30)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure(path: Path) -> None:
    """Write the measurements that `measured` returns."""
    # Otherwise the release below would include memory that the imports freed.
    release_freed_memory()
    measurements = [fresh_pages(1)]
    assert keep_freed_memory()
    measurements.append(fresh_pages(5))
    # Used blocks alternate with freed ones, so that the end of the heap is in use.
    tensors = [torch.ones(100_000 if place % 2 else 2_500_000) for place in range(60)]
    tensors = tensors[1::2]
    for step in (24, 25):
        ReleaseMemory().on_step_end(None, TrainerState(global_step=step), None)
        measurements.append(resident())
    path.write_text(json.dumps(measurements))


on_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/statm").is_file(), reason="needs glibc"
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> list[int]:
    """Page faults without and with keep_freed_memory(), and resident bytes before and after a release."""
    folder = tmp_path_factory.mktemp("memory")
    path, log = folder / "found", folder / "log"
    assert exit_code(start(measure, path, log=log)) == 0, log.read_text()
    return json.loads(path.read_text())


@on_glibc
def test_freed_memory_is_used_again(measured):
    released, faults_when_kept, *_ = measured
    # 300 MB are 73,000 pages of 4 KiB.
    assert released > 20_000
    assert faults_when_kept < 1_000


@on_glibc
def test_freed_memory_is_released(measured):
    *_, before, after = measured
    # 30 blocks of 10 MB.
    assert 280e6 < before - after < 320e6


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(memory_tuning.ctypes, "CDLL", None)
    assert not memory_tuning.keep_freed_memory()
    assert not memory_tuning.release_freed_memory()


def test_the_peak_is_that_of_the_system(monkeypatch):
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    # On Linux, the system's figure may include the peak of the process that started this one, so it is an upper bound.
    # The kernel adds up the pages of threads at different times for the two figures.
    peak = peak_memory()
    memory_file = Path("/proc/self/statm")
    if memory_file.exists():
        # The second number is the current memory in pages.
        current_memory = int(memory_file.read_text().split()[1]) * resource.getpagesize()
        assert peak >= 0.99 * current_memory
    assert 0 < peak <= 1.01 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr(peak_memory_module, "_read_peak_from_proc", lambda: None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert before <= peak_memory() <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr(sys, "platform", "win32")
    assert peak_memory() is None


def test_an_evaluation_drops_prepacked_weights():
    layer = torch.nn.Linear(8, 8)
    packed = weakref.ref(pack(layer))
    ReleaseMemory().on_evaluate(None, None, None)
    assert packed() is None


@pytest.mark.parametrize("capacity", [None, "7"])
def test_a_training_limits_the_cache_of_onednn(tmp_path, monkeypatch, capacity):
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, capacity or "")
    if capacity is None:
        monkeypatch.delenv(name)
    train.main(recipe(tmp_path, max_steps=1))
    assert os.environ[name] == (capacity or "64")
