"""Processes that work at once: what they start with, and how they end."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from scripts.side_by_side import as_they_end, count_one, makespan, side_by_side


LONG = 600


def end_at_once() -> None:
    os._exit(1)


def is_running(process: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_the_end_of(process: int) -> None:
    until = time.monotonic() + 60
    while is_running(process):
        assert time.monotonic() < until
        time.sleep(0.05)


def meet(own: Path, other: Path) -> None:
    """End when both have begun."""
    own.touch()
    until = time.monotonic() + 60
    while not other.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_two_at_once_each_on_one_core(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one, two = tmp_path / "one", tmp_path / "two"
    with side_by_side(2) as (executor, _):
        for future in [executor.submit(meet, one, two), executor.submit(meet, two, one)]:
            future.result()
        assert executor.submit(torch.get_num_threads).result() == 1
        assert executor.submit(os.getpid).result() != os.getpid()
        assert executor.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_work_is_counted(capsys):
    with side_by_side(2) as (executor, count):
        futures = [executor.submit(count_one) for _ in range(5)]
        assert set(as_they_end(futures, count, total=5, unit=" pieces")) == set(futures)
        assert count.value == 5
    assert "5/5" in capsys.readouterr().err


def test_an_error_ends_the_others():
    processes = []

    def interrupt() -> None:
        with side_by_side(1) as (executor, _):
            processes.append(executor.submit(os.getpid).result())
            executor.submit(time.sleep, LONG)
            executor.submit(time.sleep, LONG)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert not is_running(processes[0])


def test_a_process_that_is_gone_is_told():
    with side_by_side(1) as (executor, _), pytest.raises(BrokenProcessPool):
        executor.submit(end_at_once).result()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_none_is_left_when_the_first_is_killed():
    code = f"""
import os, time
from scripts.side_by_side import side_by_side
if __name__ == "__main__":
    with side_by_side(1) as (executor, _):
        process = executor.submit(os.getpid).result()
        executor.submit(time.sleep, {LONG})
        print(process, flush=True)
        time.sleep({LONG})
"""
    root = Path(__file__).resolve().parents[1]
    first = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    process = int(first.stdout.readline())
    assert is_running(process)
    first.kill()
    first.wait()
    wait_for_the_end_of(process)


@pytest.mark.parametrize(
    ("seconds", "processes", "expected"),
    [([3.0, 2.0, 1.0], 1, 6.0), ([3.0, 2.0, 1.0], 2, 3.0), ([1.0, 2.0, 3.0], 2, 4.0), ([5.0], 3, 5.0)],
)
def test_makespan(seconds, processes, expected):
    assert makespan(seconds, processes) == expected
