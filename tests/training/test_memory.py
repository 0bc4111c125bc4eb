"""In processes of their own: what is set for the C library holds until the end of a process."""

import platform
import subprocess
import sys

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


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    assert not memory.keep_freed_memory()


def test_the_peak_is_that_of_the_system(monkeypatch):
    resource = pytest.importorskip("resource")
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    peak = memory.peak_memory()
    assert before <= peak <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    monkeypatch.setattr(sys, "platform", "win32")
    assert memory.peak_memory() is None
