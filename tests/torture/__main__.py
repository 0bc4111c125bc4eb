"""Kill jobs at random moments, and let their disk fail at every operation; then run them again.

Usage: python -m tests.torture [--cases N] [--pairs P] [--seed S] [--jobs train average translate] [--every K]

After each case the same command must give the result of an uninterrupted run, bit for bit. A failing disk must end in
one sentence. Of a pair of processes with one output one is killed; the other must end with that result, or in one
sentence. Prints a line for each kind of case, and ends with 1 if one failed. Needs gcc for the failing disk.
"""

import argparse
import ctypes
import errno
import faulthandler
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tqdm import tqdm


SOURCE = Path(__file__).with_name("failing_disk.c")
# How a child ends: well, with one sentence, or with an exception that is a defect.
DONE, SENTENCE, DEFECT = 0, 3, 4
# A child that takes longer hangs.
SECONDS_TO_WAIT = 120


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=200, help="Kills in all.")
    options.add_argument("--pairs", type=int, default=20, help="Pairs of processes with one output, for each job.")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--jobs", nargs="+", default=["train", "average", "translate"])
    options.add_argument("--every", type=int, default=1, help="Let every K-th operation fail.")
    args = options.parse_args()
    print(f"seed {args.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    torture = Torture(folder, random.Random(args.seed))
    failures = []
    for number, name in enumerate(args.jobs):
        kills = args.cases * (number + 1) // len(args.jobs) - args.cases * number // len(args.jobs)
        failures += torture.job(name, kills, args.every, args.pairs)
    print("\n".join(failures) if failures else "no failures")
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


class Torture:
    """Cases of a job, each in a forked process, which has imported everything already."""

    def __init__(self, folder: Path, chance: random.Random):
        from tests.torture import jobs

        self.folder, self.random, self.jobs = folder, chance, jobs
        self.disk = ctypes.CDLL(None)
        self.refused = 0  # Processes that ended in one sentence because another wrote their output.

    def job(self, name: str, kills: int, every: int, pairs: int) -> list[str]:
        """Kill a job some times, let its disk fail at every K-th operation, and run pairs; returns the failures."""
        job, whole = self.jobs.JOBS[name], self.folder / name / "whole"
        self.jobs.clear(whole)
        operations = self.folder / name / "operations"
        seconds = min(self.timed(name, whole, operations) for _ in range(2))
        expected, failures = job.result(whole), []
        moments = [self.random.uniform(0, seconds) for _ in range(kills)]
        for moment in tqdm(moments, f"{name}: kills", disable=not sys.stderr.isatty()):
            case = self.folder / name / "killed"
            self.jobs.clear(case)
            child = self.start(name, case)
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            failures += self.again(name, case, expected, f"killed after {moment:.3f} s")
        self.refused = 0
        for _ in tqdm(range(pairs), f"{name}: pairs", disable=not sys.stderr.isatty()):
            failures += self.pair(name, expected, self.random.uniform(0, seconds))
        count = int(operations.read_text(encoding="utf-8"))
        numbers = range(1, count + 1, every)
        for code in (errno.ENOSPC, errno.EIO):
            for number in tqdm(numbers, f"{name}: {errno.errorcode[code]}", disable=not sys.stderr.isatty()):
                case = self.folder / name / "failed"
                self.jobs.clear(case)
                what = f"{errno.errorcode[code]} at operation {number} of {count}"
                end = self.end_of(self.start(name, case, number, code))
                if end not in (DONE, SENTENCE):
                    failures.append(f"{name}, {what}: {self.log(name)}")
                failures += self.again(name, case, expected, what)
        done = f"{kills} kills in runs of {seconds:.2f} s, {pairs} pairs ({self.refused} refused)"
        disk = f"{len(numbers)} operations of {count} failed with ENOSPC and with EIO"
        print(f"{name}: {done}, {disk}; {len(failures)} failures", flush=True)
        return failures

    def pair(self, name: str, expected: Any, moment: float) -> list[str]:
        """Start a job twice with one output, and kill one of the two; returns what is wrong."""
        job, case = self.jobs.JOBS[name], self.folder / name / "pair"
        self.jobs.clear(case)
        children = [self.start(name, case, log_file="log"), self.start(name, case, log_file="other")]
        victim = self.random.randrange(2)
        time.sleep(moment)
        os.kill(children[victim], signal.SIGKILL)
        os.waitpid(children[victim], 0)
        end = self.end_of(children[1 - victim])
        self.refused += end == SENTENCE
        what = f"two processes, number {victim + 1} killed after {moment:.3f} s"
        if end not in (DONE, SENTENCE):
            return [f"{name}, {what}: {self.log(name, 'log' if victim else 'other')}"]
        if end == DONE and not self.jobs.are_equal(job.result(case), expected):
            return [f"{name}, {what}: another result"]
        return self.again(name, case, expected, what)

    def timed(self, name: str, folder: Path, operations: Path) -> float:
        self.jobs.clear(folder)
        started = time.perf_counter()
        if self.end_of(self.start(name, folder, operations=operations)) != DONE:
            raise RuntimeError(f"{name} failed without torture: {self.log(name)}")
        return time.perf_counter() - started

    def again(self, name: str, case: Path, expected: Any, what: str) -> list[str]:
        """Run a job again where it was stopped; returns what is wrong."""
        job = self.jobs.JOBS[name]
        # A process that was killed after another had completed the output leaves its lock and its part.
        may_leave = job.is_complete(case)
        if not may_leave and self.end_of(self.start(name, case)) != DONE:
            return [f"{name}, {what}, then again: {self.log(name)}"]
        if not self.jobs.are_equal(job.result(case), expected):
            return [f"{name}, {what}, then again: another result"]
        remaining = [path.name for path in case.rglob(".*") if path.suffix in (".lock", ".part")]
        return [f"{name}, {what}, then again: {', '.join(remaining)} remaining"] if remaining and not may_leave else []

    def log(self, name: str, file: str = "log") -> str:
        lines = (self.folder / name / file).read_text(encoding="utf-8").strip().splitlines()
        return " | ".join(lines[-4:])

    def end_of(self, child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def start(
        self,
        name: str,
        case: Path,
        number: int = 0,
        code: int = 0,
        operations: Path | None = None,
        log_file: str = "log",
    ) -> int:
        """Fork a process that does a job; its disk fails at an operation."""
        child = os.fork()
        if child:
            return child
        # Forked processes share tqdm's lock, which a killed one may hold.
        tqdm.set_lock(threading.RLock())
        end = DEFECT
        with (self.folder / name / log_file).open("w", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
            os.dup2(log.fileno(), 2)
            faulthandler.dump_traceback_later(SECONDS_TO_WAIT, exit=True, file=log)
            try:
                self.disk.failing_disk_arm(os.fsencode(case), ctypes.c_long(number), code)
                self.jobs.JOBS[name].run(case)
                end = DONE
            except SystemExit as stop:
                print(stop.code)
                end = SENTENCE if isinstance(stop.code, str) and "\n" not in stop.code.strip() else DEFECT
            except (OSError, ValueError) as error:  # From Python; the command line tells it in one sentence.
                print(error)
                end = SENTENCE if name == "average" else DEFECT
            except BaseException:
                traceback.print_exc()
            if operations is not None:
                operations.write_text(str(self.disk.failing_disk_counted()), encoding="utf-8")
        os._exit(end)


def start_again_with_the_library() -> None:
    """Build the failing disk, and start this program once more with it."""
    library = Path(tempfile.mkdtemp(prefix="failing-disk-")) / "failing_disk.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.torture", *sys.argv[1:]], environment)


if __name__ == "__main__":
    if "failing_disk" not in os.environ.get("LD_PRELOAD", ""):
        start_again_with_the_library()
    sys.exit(main())
