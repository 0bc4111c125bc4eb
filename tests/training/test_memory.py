"""In processes of their own: what is set for the C library holds until the end of a process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla_transformer.training import memory


# Tensors of 300 MB, all freed, and again: how many fresh pages does another time take, once the heap has its size?
FRESH_PAGES = """
import resource, sys
import torch
from hf_vanilla_transformer.training.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def use_memory():
    tensors = [torch.ones(2_500_000) for _ in range(30)]

for _ in range(5 if sys.argv[1] == "keep" else 1):
    use_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(what: str) -> int:
    command = [sys.executable, "-c", FRESH_PAGES, what]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it takes glibc")
def test_freed_memory_is_used_again():
    # 300 MB are 73,000 pages of 4 KiB.
    assert fresh_pages("leave") > 20_000
    assert fresh_pages("keep") < 1_000


# Blocks that are in use lie between those that were freed, so that none of it is at the end of the heap.
RESIDENT = """
import torch
from pathlib import Path
from hf_vanilla_transformer.training.memory import GiveBackMemory, keep_freed_memory
from transformers import TrainerState

assert keep_freed_memory()
tensors = [torch.ones(100_000 if place % 2 else 2_500_000) for place in range(60)]
tensors = tensors[1::2]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

found = []
for step in (49, 50):
    GiveBackMemory().on_step_end(None, TrainerState(global_step=step), None)
    found.append(resident())
print(*found)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/statm").is_file(), reason="it takes glibc"
)
def test_memory_that_nobody_uses_is_given_back():
    command = [sys.executable, "-c", RESIDENT]
    before, after = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    # 30 blocks of 10 MB.
    assert 280e6 < before - after < 320e6


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    assert not memory.keep_freed_memory()
    assert not memory.give_back_freed_memory()


def test_the_peak_is_that_of_the_system(monkeypatch):
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    peak = memory.peak_memory()
    assert before <= peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr(sys, "platform", "win32")
    assert memory.peak_memory() is None
