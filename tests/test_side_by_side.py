"""Processes that work at once: what they start with, and how they end."""

import io
import os
import platform
import signal
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scripts.side_by_side import as_they_end, count_one, makespan, side_by_side


LONG = 600
IS_GLIBC = platform.libc_ver()[0] == "glibc"


def end_at_once() -> None:
    os._exit(1)


def fresh_pages() -> int:
    """How many it takes to use 100 MB again, once the heap has its size."""
    import resource

    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(2_500_000) for _ in range(10)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


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


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def meet(own: Path, other: Path) -> None:
    """End when both have begun."""
    own.touch()
    wait_for(other)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> SimpleNamespace:
    """What two processes at once have said, and how it was told that one of them is gone."""
    folder, bar = tmp_path_factory.mktemp("work"), io.StringIO()
    one, two = folder / "one", folder / "two"
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(bar):
        patch.delenv("OMP_NUM_THREADS", raising=False)
        with side_by_side(2) as (executor, count):
            for future in [executor.submit(meet, one, two), executor.submit(meet, two, one)]:
                future.result()
            said = {
                "threads": executor.submit(torch.get_num_threads).result(),
                "process": executor.submit(os.getpid).result(),
                "at_ctrl_c": executor.submit(signal.getsignal, signal.SIGINT).result(),
                "fresh_pages": executor.submit(fresh_pages).result() if IS_GLIBC else None,
            }
            futures = [executor.submit(count_one) for _ in range(5)]
            ended = set(as_they_end(futures, count, total=5, unit=" pieces")) == set(futures)
            at_the_end = executor.submit(end_at_once).exception()
    return SimpleNamespace(**said, ended=ended, count=count.value, bar=bar.getvalue(), at_the_end=at_the_end)


def test_two_at_once_each_on_one_core(work):
    assert work.threads == 1
    assert work.process != os.getpid()
    assert work.at_ctrl_c == signal.SIG_IGN


@pytest.mark.skipif(not IS_GLIBC, reason="it takes glibc")
def test_they_keep_the_memory_that_they_free(work):
    # 100 MB are 24,000 pages of 4 KiB.
    assert work.fresh_pages < 1_000


def test_work_is_counted(work):
    assert work.ended
    assert work.count == 5
    assert "5/5" in work.bar


def test_a_process_that_is_gone_is_told(work):
    assert isinstance(work.at_the_end, BrokenProcessPool)


def test_an_error_ends_the_others(monkeypatch):
    # Not at the head, which the processes of `work` read.
    from tests.invariants.killed import fork_what_is_spawned

    fork_what_is_spawned(monkeypatch)
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


def hold(path: Path) -> None:
    """Start a process that sleeps, note its number, and sleep, too."""
    with side_by_side(1) as (executor, _):
        process = executor.submit(os.getpid).result()
        executor.submit(time.sleep, LONG)
        part = path.with_suffix(".part")
        part.write_text(str(process))
        part.replace(path)
        time.sleep(LONG)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_none_is_left_when_the_first_is_killed(tmp_path):
    from tests.invariants.killed import start

    path = tmp_path / "process"
    first = start(hold, path, log=tmp_path / "log")
    try:
        wait_for(path)
        process = int(path.read_text())
        assert is_running(process)
    finally:
        first.kill()
        first.join()
    wait_for_the_end_of(process)


@pytest.mark.parametrize(
    ("seconds", "processes", "expected"),
    [([3.0, 2.0, 1.0], 1, 6.0), ([3.0, 2.0, 1.0], 2, 3.0), ([1.0, 2.0, 3.0], 2, 4.0), ([5.0], 3, 5.0)],
)
def test_makespan(seconds, processes, expected):
    assert makespan(seconds, processes) == expected
